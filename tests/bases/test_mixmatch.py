"""MixMatch: the guess and what replaces it, the mixture, the two losses; the methods inside it."""

import pytest
import torch
from torch import Tensor, nn

from fastget.bases.base import Losses, Step
from fastget.bases.mixmatch import MixMatch, draw, mean_of, two_views
from fastget.bases.settings import MixMatchSettings
from fastget.methods.base import Method, Seen, Task, Term
from fastget.methods.settings import PLSettings
from fastget.networks.network import Network
from fastget.selftest.engine import steps
from tests.support import batch, engine_of, images

B, K, C, D = 4, 2, 3, 5
CPU = torch.device("cpu")


class Given(Method):
    """Labels that are given, of the two views one after the other."""

    Config = PLSettings

    def __init__(self, *labels: list[int]) -> None:
        super().__init__(PLSettings(), Task(C, D, 50))
        self.given = [torch.tensor(part) for part in labels]
        self.shown: list[Seen] = []

    def forward(self, seen: Seen) -> Term:
        raise AssertionError("a term is not this base model's matter")

    def keep(self, seen: Seen) -> str:
        self.shown.append(seen)
        return "kept"

    def labels(self, seen: Seen) -> Tensor:
        return self.given.pop(0)


def model(*labels: list[int], **settings: float) -> MixMatch:
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), 4, C, D, norm=False)
    return MixMatch(network, Given(*labels), 0.1, config=MixMatchSettings(**settings)).double()


def step(**more: object) -> Step:
    given: dict[str, object] = {"target": batch(images(B, 2), second=images(B, 3), first=7)}
    given |= {"progress": 0.25, "adapting": False, "seed": 5, "number": 11}
    return Step(batch(images(B, 1), torch.tensor([0, 1, 2, 0])), **{**given, **more})  # type: ignore[arg-type]  # by name


def plain_step(base: MixMatch, given: Step, guess: list[list[float]]) -> tuple[float, float]:
    """METHODS 2.8: cross-entropy and squared error of the mixed rows, one by one."""
    labelled = [part for part in (given.source, given.shots) if part is not None]
    classes = [c for part in labelled for c in part.labels.tolist()]
    x = torch.cat([*(part.images for part in labelled), *two_views(given)])
    y = [[float(c == label) for c in range(C)] for label in classes] + guess + guess
    share, order = draw(given, len(x), base.config.alpha, CPU)
    assert 0.5 <= share <= 1
    entropy, squared = 0.0, 0.0
    for i, j in enumerate(order.tolist()):
        p = torch.softmax(base.network((share * x[i] + (1 - share) * x[j])[None])[1][0], 0).tolist()
        wanted = [share * a + (1 - share) * b for a, b in zip(y[i], y[j], strict=True)]
        if i < len(classes):
            entropy -= sum(w * float(torch.tensor(q).log()) for w, q in zip(wanted, p, strict=True)) / len(classes)
        else:
            squared += sum((q - w) ** 2 for w, q in zip(wanted, p, strict=True)) / (2 * B * C)
    return entropy, squared


def plain_guess(base: MixMatch, given: Step, temperature: float) -> list[list[float]]:
    rows = []
    for b in range(B):
        p1, p2 = (torch.softmax(base.network(view[b : b + 1])[1][0], 0) for view in two_views(given))
        sharp = ((p1 + p2) / 2) ** (1 / temperature)
        rows.append((sharp / sharp.sum()).tolist())
    return rows


@pytest.mark.parametrize("temperature", [0.5, 0.8])
def test_alone_it_trains_on_its_guess(temperature: float) -> None:
    base, given = model(temperature=temperature, weight=40.0), step()
    losses: Losses = base(given)
    entropy, squared = plain_step(base, given, plain_guess(base, given, temperature))
    assert losses.parts()["loss_source"].item() == pytest.approx(entropy, abs=1e-6)
    assert losses.parts()["loss_target"].item() == pytest.approx(squared, abs=1e-6)
    assert losses.loss.item() == pytest.approx(entropy + 40 * 0.25 * squared, abs=1e-5)
    assert losses.term is None


def test_labelled_target_images_count_as_labelled() -> None:
    base, given = model(), step(shots=batch(images(K, 4), torch.tensor([2, 1])))
    losses: Losses = base(given)
    entropy, squared = plain_step(base, given, plain_guess(base, given, 0.5))
    assert losses.parts()["loss_source"].item() == pytest.approx(entropy, abs=1e-6)
    assert losses.parts()["loss_target"].item() == pytest.approx(squared, abs=1e-6)


def test_a_methods_labels_replace_the_guess() -> None:
    """Half for each view; a row without a label keeps the guess. The memory learns from both views as one."""
    base, given = model([0, 1, -1, 2], [0, 2, 1, 2]), step(adapting=True)
    own = plain_guess(base, given, 0.5)
    losses: Losses = base(given)
    guess = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], own[2], [0.0, 0.0, 1.0]]
    entropy, squared = plain_step(base, given, guess)
    assert losses.parts()["loss_source"].item() == pytest.approx(entropy, abs=1e-6)
    assert losses.parts()["loss_target"].item() == pytest.approx(squared, abs=1e-6)
    assert losses.term is not None
    assert losses.term.kept == "kept"
    assert losses.seen is not None
    (f1, z1), (f2, z2) = map(base.network, two_views(given))
    torch.testing.assert_close(losses.seen.features, (f1 + f2) / 2)
    mean = (torch.softmax(z1, 1) + torch.softmax(z2, 1)) / 2
    torch.testing.assert_close(torch.softmax(losses.seen.logits, 1), mean)
    assert losses.seen.index.tolist() == [7, 8, 9, 10]
    assert isinstance(base.method, Given)
    assert len(base.method.shown) == 1


def test_what_is_learned_carries_gradient_and_the_guess_does_not() -> None:
    base, given = model(), step()
    guess, _, _ = base.guess(given, *base.look(given, "guess"))
    assert not guess.requires_grad
    losses: Losses = base(given)
    losses.loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in base.network.parameters())


def test_the_draw_depends_on_seed_and_step_alone() -> None:
    share, order = draw(step(), 12, 0.75, CPU)
    again = draw(step(), 12, 0.75, CPU)
    assert (again[0], again[1].tolist()) == (share, order.tolist())
    assert sorted(order.tolist()) == list(range(12))
    others = [draw(step(**{name: value}), 12, 0.75, CPU) for name, value in (("seed", 6), ("number", 12))]
    assert all(other[0] != share and other[1].tolist() != order.tolist() for other in others)
    shares = torch.tensor([draw(step(number=k), 2, 0.75, CPU)[0] for k in range(2000)])
    assert (shares >= 0.5).all()
    beta = torch.distributions.Beta(torch.tensor(0.75), torch.tensor(0.75)).sample(torch.Size([200_000]))
    assert shares.mean() == pytest.approx(torch.maximum(beta, 1 - beta).mean().item(), abs=0.01)
    places = torch.stack([draw(step(number=k), 6, 0.75, CPU)[1] for k in range(3000)])
    for row in range(6):  # each row is paired with each as often
        assert torch.bincount(places[:, row], minlength=6).float().div(3000).sub(1 / 6).abs().max() < 0.03


def test_the_mean_of_two_views_is_of_probabilities() -> None:
    z = torch.tensor([[0.0, 900.0]], dtype=torch.float64)
    classifier = nn.Linear(2, 2)
    one, other = (Seen(f, z, torch.tensor([3]), classifier, 0.0) for z, f in ((z, z + 1), (-z, z - 1)))
    mean = mean_of(one, other)
    torch.testing.assert_close(torch.softmax(mean.logits, 1), torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(mean.features, z)


def test_with_a_method_inside_it_is_not_mixmatch_alone() -> None:
    """In ATDOC's public code a flag that never matches makes MixMatch + NA plain MixMatch."""
    given = {"method__base": "mixmatch", "train__warmup_steps": 0}
    names = ("source-only", "pl", "atdoc-nc", "atdoc-na", "get")
    assert len({tuple(steps(engine_of(method__name=name, **given), 4)) for name in names}) == len(names)

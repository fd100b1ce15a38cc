"""The plain base model: what goes through the network together, what a step's loss is made of."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget import bases
from fastget.bases.base import Base, Losses, Step
from fastget.bases.plain import Plain
from fastget.bases.settings import PlainSettings
from fastget.methods.base import Method, Seen, Task, Term
from fastget.methods.settings import SourceOnlySettings
from fastget.networks.network import Network
from tests.support import batch, images

C, D = 3, 5
LABELS = torch.tensor([0, 1, 2, 0])


class Pull(Method):
    """Half the squared length of the features, with a parameter, so that each part can be told."""

    Config = SourceOnlySettings

    def __init__(self) -> None:
        super().__init__(SourceOnlySettings(), Task(C, D, 50))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.seen: list[Seen] = []

    def forward(self, seen: Seen) -> Term:
        self.seen.append(seen)
        loss = self.scale * seen.features.square().sum() / 2
        return Term(loss, {"loss_pull": loss}, kept="kept")


@pytest.fixture
def model() -> Plain:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4))
    return Plain(Network(backbone, 4, C, D, norm=False), Pull(), label_smoothing=0.1).double()


def step(**more: object) -> Step:
    given = {"target": batch(images(5, 2), first=7), "weight": 0.5, "progress": 0.25}
    return Step(batch(images(4, 1), LABELS), **{**given, **more})  # type: ignore[arg-type]  # by name


def features_of(model: Plain, x: Tensor) -> Tensor:
    found: Tensor = model.network.bottleneck(model.network.backbone(x))
    return found


def test_the_loss_is_its_parts(model: Plain) -> None:
    losses: Losses = model(step())
    f_s, f_t = features_of(model, images(4, 1)), features_of(model, images(5, 2))
    source = F.cross_entropy(model.network.classifier(f_s), LABELS, label_smoothing=0.1)
    term = 2 * f_t.square().sum() / 2
    torch.testing.assert_close(losses.source, source)
    torch.testing.assert_close(losses.loss, source + 0.5 * term)
    assert list(losses.parts()) == ["loss", "loss_source", "loss_target", "loss_pull"]
    assert not any(part.requires_grad for part in losses.parts().values())


def test_what_the_method_sees(model: Plain) -> None:
    losses: Losses = model(step())
    assert isinstance(model.method, Pull)
    (seen,) = model.method.seen
    assert seen.features.requires_grad
    assert seen.index.tolist() == [7, 8, 9, 10, 11]
    assert (seen.progress, seen.classifier) == (0.25, model.network.classifier)
    assert losses.seen is not None
    assert losses.term is not None
    assert not losses.seen.features.requires_grad
    assert losses.term.kept == "kept"


def test_shots_go_with_the_target_and_are_supervised(model: Plain) -> None:
    shots, labels = images(2, 3), torch.tensor([2, 1])
    calls: list[int] = []
    model.network.backbone.register_forward_hook(lambda m, i, o: calls.append(len(i[0])))
    losses: Losses = model(step(shots=batch(shots, labels)))
    assert calls == [4, 7]  # one domain, one call
    f = features_of(model, torch.cat([images(5, 2), shots]))
    supervised = F.cross_entropy(model.network.classifier(f[5:]), labels, label_smoothing=0.1)
    assert losses.source is not None
    torch.testing.assert_close(losses.loss, losses.source + supervised + 0.5 * f[:5].square().sum())
    assert isinstance(model.method, Pull)
    assert len(model.method.seen[0].features) == 5  # the method sees the unlabelled ones alone


def test_jointly_all_images_are_one_call(model: Plain) -> None:
    """Only the batch-norm's statistics tell."""
    labels = torch.tensor([2, 1])
    joint = Plain(model.network, Pull(), label_smoothing=0.1, config=PlainSettings(joint=True)).double()
    calls: list[int] = []
    model.network.backbone.register_forward_hook(lambda m, i, o: calls.append(len(i[0])))
    given = step(shots=batch(images(2, 3), labels))
    apart, together = model(given), joint(given)
    assert calls == [4, 7, 11]
    assert apart.loss != together.loss
    f = features_of(model, torch.cat([images(4, 1), images(5, 2), images(2, 3)]))
    z = model.network.classifier(f)
    supervised = F.cross_entropy(z[:4], LABELS, label_smoothing=0.1) + F.cross_entropy(
        z[9:], labels, label_smoothing=0.1
    )
    torch.testing.assert_close(together.loss, supervised + 0.5 * f[4:9].square().sum())
    model.network.eval()
    torch.testing.assert_close(model(given).loss, joint(given).loss)
    calls.clear()
    joint(step(target=None))
    assert calls == [4]


@pytest.mark.parametrize("base", ["plain", "cdan"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_method_that_asks_sees_the_labelled_images(base: str, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their gradient; its memory does not."""
    monkeypatch.setattr(Pull, "needs", frozenset({"target", *(["labelled"] if asked else [])}))
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), 4, C, D, norm=False)
    model = bases.base_of(base)(network, Pull(), config=bases.settings_of(base)()).double()
    shots = batch(images(2, 3), torch.tensor([2, 1]))
    losses: Losses = model(step(shots=shots))
    assert isinstance(model.method, Pull)
    (seen,) = model.method.seen
    for found, of in ((seen.source, batch(images(4, 1), LABELS)), (seen.shots, shots)):
        assert (found is not None) == asked
        if found is not None:
            f, z = network(of.images)
            torch.testing.assert_close((found.features, found.logits), (f, z))
            assert torch.equal(found.labels, of.labels)
            assert found.features.requires_grad
    assert losses.seen is not None
    assert losses.seen.source is losses.seen.shots is None
    assert torch.equal(losses.seen.features, seen.features)
    model(step())
    assert model.method.seen[1].shots is None


def test_a_step_without_a_target_still_reaches_every_parameter(model: Plain) -> None:
    """Or DistributedDataParallel would wait for the method's."""
    losses: Losses = model(step(target=None))
    torch.testing.assert_close(losses.loss, losses.source)
    assert losses.term is None
    losses.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert isinstance(model.method, Pull)
    assert model.method.scale.grad == 0


def test_again_is_in_evaluation_mode_and_leaves_no_trace(model: Plain) -> None:
    model.train()
    model(step())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = model.again(step())
    assert model.network.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not seen.features.requires_grad
    model.network.eval()
    torch.testing.assert_close(seen.features, features_of(model, images(5, 2)))
    assert seen.index.tolist() == [7, 8, 9, 10, 11]


def test_a_method_cannot_log_under_the_runs_own_names(model: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pull, "forward", lambda self, seen: Term(seen.features.sum(), {"loss": seen.features.sum()}))
    with pytest.raises(ValueError, match="Pull logs 'loss'"):
        model(step())


def test_half_logits_are_summed_in_float32_and_float64_stays() -> None:
    from fastget.bases.base import widened

    assert widened(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert widened(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("name", bases.names())
def test_the_registry(name: str) -> None:
    assert issubclass(bases.base_of(name), Base)

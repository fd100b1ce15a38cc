"""CDAN+E: what its discriminator sees, what is reversed, and what it adds to the step."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget.bases.base import Losses, Step
from fastget.bases.cdan import CDAN, JointMap, reversal
from fastget.bases.settings import CDANSettings
from fastget.methods.base import Method, Seen, Task, Term
from fastget.methods.settings import SourceOnlySettings
from fastget.networks.network import Network
from tests.support import batch, images

B, K, C, D = 6, 2, 3, 5
LABELS = torch.arange(B) % C


class Pull(Method):
    Config = SourceOnlySettings

    def forward(self, seen: Seen) -> Term:
        return Term(seen.features.square().sum())


def model(**settings: object) -> CDAN:
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), 4, C, D, norm=False).double()
    config = CDANSettings(hidden=7, **settings)  # type: ignore[arg-type]  # by name
    return CDAN(network, Pull(SourceOnlySettings(), Task(C, D, 50)), 0.1, config=config).double()


def step(**more: object) -> Step:
    given = {"target": batch(images(B, 2)), "weight": 0.5, "progress": 0.3, "adapting": False}
    return Step(batch(images(B, 1), LABELS), **{**given, **more})  # type: ignore[arg-type]  # by name


def entropy(p: Tensor) -> Tensor:
    return -(p * p.log()).sum(1)


def plain_domain_loss(cdan: CDAN, f_s: Tensor, z_s: Tensor, f: Tensor, z: Tensor) -> Tensor:
    """METHODS 2.7 without the reversal, row by row."""
    total = torch.zeros((), dtype=torch.float64)
    for features, logits, domain in ((f_s, z_s, 1.0), (f, z, 0.0)):
        p = torch.softmax(logits, 1)
        w = 1 + torch.exp(-entropy(p))
        v = w / w.sum().detach()
        for i in range(len(features)):
            outer = torch.stack([features[i, d] * p[i, c].detach() for c in range(C) for d in range(D)])
            d_i = torch.sigmoid(cdan.discriminator(outer)[0])
            total = total - v[i] * (domain * d_i.log() + (1 - domain) * (1 - d_i).log())
    return total / 2


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_the_loss_and_every_gradient(progress: float) -> None:
    """The discriminator descends; features and logits get the reversed gradient, by both of their paths."""
    cdan = model()
    f_s, z_s, f, z = (torch.randn(B, n, dtype=torch.float64, requires_grad=True) for n in (D, C, D, C))
    given = (f_s, z_s, f, z, *cdan.discriminator.parameters())
    wanted = plain_domain_loss(cdan, f_s, z_s, f, z)
    slopes = torch.autograd.grad(wanted, given)
    factor = 2 / (1 + math.exp(-10 * progress)) - 1
    assert reversal(progress) == factor
    found = cdan.domain_loss(f_s, z_s, f, z, factor)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-12)
    for i, (slope, mine) in enumerate(zip(slopes, torch.autograd.grad(found, given), strict=True)):
        torch.testing.assert_close(mine, -factor * slope if i < 4 else slope, rtol=0, atol=1e-12)


def test_a_step_is_its_parts() -> None:
    cdan, given = model(weight=2.0), step()
    losses: Losses = cdan(given)
    f_s, f = (cdan.network(images(B, seed))[0] for seed in (1, 2))
    z_s, z = cdan.network.classifier(f_s), cdan.network.classifier(f)
    source = F.cross_entropy(z_s, LABELS, label_smoothing=0.1)
    domain = plain_domain_loss(cdan, f_s, z_s, f, z)
    torch.testing.assert_close(losses.loss, source + 2 * domain)
    assert losses.term is None
    assert set(losses.parts()) == {"loss", "loss_source", "loss_domain"}
    adapting: Losses = cdan(given._replace(adapting=True))
    torch.testing.assert_close(adapting.loss, source + 2 * domain + 0.5 * f.square().sum())
    assert adapting.parts()["loss_target"] == f.square().sum().detach()


def test_the_labelled_target_images_are_of_the_target() -> None:
    cdan = model()
    losses: Losses = cdan(step(shots=batch(images(K, 3), torch.tensor([2, 1]))))
    f_s, f = cdan.network(images(B, 1))[0], cdan.network(torch.cat([images(B, 2), images(K, 3)]))[0]
    z_s, z = cdan.network.classifier(f_s), cdan.network.classifier(f)
    supervised = F.cross_entropy(z_s, LABELS, label_smoothing=0.1)
    supervised = supervised + F.cross_entropy(z[B:], torch.tensor([2, 1]), label_smoothing=0.1)
    torch.testing.assert_close(losses.loss, supervised + plain_domain_loss(cdan, f_s, z_s, f, z))


def test_the_random_map() -> None:
    """Its inner products are those of the whole outer product, on the whole."""
    torch.manual_seed(0)
    f, p = torch.randn(2, D), torch.softmax(torch.randn(2, C), 1)
    whole, drawn = JointMap(D, C, None), JointMap(D, C, 200_000)
    assert (whole.width, drawn.width) == (C * D, 200_000)
    a, b = whole(f, p), drawn(f, p)
    torch.testing.assert_close(b @ b.T, a @ a.T, rtol=0.05, atol=0.05)
    assert {"map.of_features", "map.of_classes"} <= set(model(random_dim=8).state_dict())  # a checkpoint holds it

"""MME: who maximises and who minimises the entropy, the two steps of the optimizer, the cosine head."""

import pytest
import torch
from torch import nn

from fastget.config import make_config
from fastget.data.domains import load_domains
from fastget.methods.base import Seen, Task
from fastget.methods.mme import MME
from fastget.methods.settings import MMESettings
from fastget.networks.network import CosineHead, Network
from fastget.serving.predictor import load_predictor
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.support import tiny

C, D = 4, 6


def test_the_head() -> None:
    head = CosineHead(D, C, 0.05).double()
    f = torch.randn(5, D, dtype=torch.float64)
    wanted = torch.stack([(head.weight @ (row / row.norm())) / 0.05 for row in f])
    torch.testing.assert_close(head(f), wanted)
    torch.testing.assert_close(head(3 * f), wanted)  # the length of the features does not count, that of W does
    assert set(head.state_dict()) == {"weight"}


def test_the_classifier_maximises_the_entropy_and_everything_below_minimises_it() -> None:
    torch.manual_seed(0)
    network = Network(nn.Linear(3, 5), 5, C, D, norm=False, cosine=0.5).double()
    x = torch.randn(7, 3, dtype=torch.float64)
    f, z = network(x)
    parameters = dict(network.named_parameters())
    p = torch.softmax(z, 1)
    entropy = -(p * p.log()).sum(1).mean()
    slopes = torch.autograd.grad(entropy, list(parameters.values()), retain_graph=True)
    term = MME(MMESettings(), Task(C, D, 50))(Seen(f, z, torch.arange(7), network.classifier, 0.0))
    assert term.loss.item() == pytest.approx(-entropy.item(), abs=1e-12)
    found = torch.autograd.grad(term.loss, list(parameters.values()))
    for name, mine, slope in zip(parameters, found, slopes, strict=True):
        sign = -1 if name.startswith("classifier") else 1  # descending on -H raises H
        torch.testing.assert_close(mine, sign * slope, rtol=0, atol=1e-12)


def test_an_iteration_is_two_steps_of_the_optimizer() -> None:
    """First the labelled images of both domains, then the entropy of the unlabelled ones."""
    config = tiny("two", method__name="mme", data__setting="ssda", train__warmup_steps=0)
    assert (config.network.head, config.method.weight, config.optim.label_smoothing) == ("cosine", 0.1, 0.0)
    engine = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    seen: list[tuple[int, list[int]]] = []
    forwards: list[int] = []
    engine.network.register_forward_hook(lambda m, i, o: forwards.append(len(i[0])))
    engine.optimizer.register_step_post_hook(lambda o, a, k: seen.append((len(seen), list(forwards))))
    batches = engine.steps()
    engine.train_step(next(batches))
    batches.close()
    assert [shown for _, shown in seen] == [[16, 5], [16, 5, 11]]
    means = engine.read_means()
    assert set(means) == {"loss", "loss_source", "loss_target"}


def test_a_run_is_loaded_with_its_head() -> None:
    given = {"method__name": "mme", "data__setting": "ssda"}
    folder = train(tiny("run", **given), quiet=True).folder
    assert isinstance(load_predictor(folder).network.classifier, CosineHead)


def test_it_needs_its_head() -> None:
    with pytest.raises(ValueError, match=r"mme needs network.head=cosine, got linear: set network.head=cosine"):
        make_config({"method.name": "mme", "data.setting": "ssda", "network.head": "linear"})
    make_config({"network.head": "cosine"})  # any method may have it

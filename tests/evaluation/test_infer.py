"""What a pass over images asks of the device: the run's number type in every convolution, and no waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fastget.common.precision import of_a_run
from fastget.common.preprocessing import Preprocessing
from fastget.common.ranks import Ranks
from fastget.config import make_config
from fastget.data.lists import ImageList
from fastget.evaluation.infer import Inferred, class_means, infer
from fastget.evaluation.sample import Sample
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler
from fastget.loading.stream import Batch, Stream
from fastget.networks.network import Network, build_network
from fastget.networks.preprocessing import filled
from tests.fake_cuda import Waits, autocast_on_fake_cuda, to_fake_cuda

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class Given:
    """A loader of batches that are on the fake device already."""

    def __init__(self, batches: int) -> None:
        self.device, self._batches = CUDA, batches
        self.stream = SimpleNamespace(sampler=EvalSampler(4 * batches, 4, margin=0))

    def batches(self) -> Iterator[Batch]:
        for k in range(self._batches):
            place = np.arange(4 * k, 4 * k + 4)
            images = torch.empty(4, 28, 28, 3, device="cuda").permute(0, 3, 1, 2)
            yield Batch(images, torch.zeros(4, dtype=torch.int64, device="cuda"), place, torch.empty(4, device="cuda"))


@pytest.fixture
def network() -> Network:
    sizes = {"network.name": "small", "network.weights": "none", "data.resize": 32, "data.crop": 28}
    return build_network(filled(make_config(sizes)).network, 10, 28)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_runs_type_reaches_every_convolution(
    dtype: torch.dtype, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fake GPU; between the batches nothing waits for it, and what they say stays there."""
    autocast_on_fake_cuda(monkeypatch)
    made: list[tuple[torch.dtype, bool]] = []  # by convolutions: what leaves one has the type it is computed in

    def note(module: nn.Module, given: Any, out: Tensor) -> None:
        made.append((out.dtype, torch.is_inference_mode_enabled()))

    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    for module in convolutions:
        module.register_forward_hook(note)
    sample, loader = Sample(12, 5, Ranks()), cast(Loader, Given(3))
    with FakeTensorMode(allow_non_fake_inputs=True), Waits(sent=False) as waits:
        to_fake_cuda(network)
        share = infer(network, loader, keep_features=True, look=sample.add, dtype=dtype)
        means = class_means(network, loader, dtype=dtype)
        assert waits.seen == []
        assert share.logits.shape == (12, 10)
        for tensor in (share.logits, *share.features, means.means):
            assert (tensor.dtype, tensor.device.type) == (torch.float32, "cuda")
        with pytest.raises(Exception, match=r"DataDependent|item|_local_scalar"):
            share.logits[0, 0].item()  # the check can fail
        share.logits.cpu()
        assert waits.seen
    assert len(made) == 2 * 3 * len(convolutions)
    assert set(made) == {(dtype, True)}


def on_cpu(network: Network, *, dtype: torch.dtype = torch.float32) -> Inferred:
    images = ImageList("four", Path(), tuple(f"{i}.png" for i in range(4)), np.arange(4), tuple("abcdefghij"))
    sampler, made = EvalSampler(4, 3, margin=0), Preprocessing(28, 28)
    loader = Loader(Stream(images, sampler, made), CPU, "synthetic")
    return infer(network, loader, keep_features=True, dtype=dtype)


def test_what_is_said_can_be_kept_and_trained_with(network: Network) -> None:
    """Made in inference mode, autograd would refuse to save it; and float32 has the bits that it had without."""
    share = on_cpu(network)
    weight = torch.ones(10, requires_grad=True)
    (share.logits * weight).sum().backward()
    (torch.cat(share.features) @ torch.ones(256, 1, requires_grad=True)).sum().backward()
    assert weight.grad is not None
    assert torch.equal(torch.nan_to_num(weight.grad), torch.nan_to_num(share.logits.sum(0)))
    images = torch.randn(3, 28, 28, 3, generator=torch.Generator().manual_seed(0)).permute(0, 3, 1, 2)
    with torch.no_grad():
        _, plain = network.eval()(images)
    assert torch.equal(share.logits[:3], plain)
    assert not torch.equal(on_cpu(network, dtype=torch.bfloat16).logits[:3], plain)


def test_a_checkpoint_runs_in_its_runs_type_where_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastget.common.precision.cpu_has_bfloat16", lambda: False)
    assert of_a_run("auto", CPU) == of_a_run("float16", CPU) == of_a_run("bfloat16", CPU) == torch.float32
    assert of_a_run("bfloat16", CPU, force=True) == torch.bfloat16
    monkeypatch.setattr("fastget.common.precision.cpu_has_bfloat16", lambda: True)
    assert of_a_run("bfloat16", CPU) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert (of_a_run("auto", CUDA), of_a_run("bfloat16", CUDA)) == (torch.float16, torch.float32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert [of_a_run(name, CUDA) for name in ("auto", "float16", "float32")] == [
        torch.bfloat16, torch.float16, torch.float32,
    ]  # fmt: skip

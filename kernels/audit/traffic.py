"""Launches and bytes of one GeT step: eager PyTorch, these kernels, and the least that any code could do.

Nothing is computed: the reference runs on fake tensors under a counter, the kernels run dry.

    count = fused_step(256, 345, 2048)
    count.launches, count.bytes, A100.seconds(count.transfers)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastget.kernels.audit.step import StepInputs, dry_step, step

SIZES = ((36, 65, 256), (256, 345, 2048), (4096, 1000, 2048))  # (B, C, D)
LATENCY = 4e-6  # seconds from one kernel's launch to the next, as a stream of eager launches has it
NO_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "_unsafe_view"}
OVERWRITES = {"copy_", "fill_", "zero_"}  # their first operand is written and not read


@dataclass(frozen=True)
class GPU:
    """A data sheet."""

    name: str
    bandwidth: float  # bytes per second

    def seconds(self, transfers: tuple[int, ...], latency: float = LATENCY) -> float:
        """Launches one after the other, each as long as its bytes or its launch takes, whichever is more."""
        return sum(max(latency, moved / self.bandwidth) for moved in transfers)


A100 = GPU("A100 80GB", 2.039e12)


@dataclass(frozen=True)
class Traffic:
    """What one step does on the device."""

    names: tuple[str, ...]  # of the launches
    transfers: tuple[int, ...]  # bytes that each reads and writes
    others: tuple[str, ...] = ()  # operators of PyTorch beside the kernels

    @property
    def launches(self) -> int:
        return len(self.names)

    @property
    def bytes(self) -> int:
        return sum(self.transfers)


def nbytes(tensor: Tensor) -> int:
    """Bytes of the elements that a tensor holds; an expanded axis is one element wide."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride != 0 else min(size, 1)
    return elements * tensor.element_size()


class CountOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each operator that would launch a kernel in eager mode, with the bytes of its operands and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.transfers: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        read = (args[1:] if name in OVERWRITES else args, kwargs)
        operands = [t for t in tree_leaves(read) if isinstance(t, Tensor)]
        results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if results and not (func.is_view or name in NO_LAUNCH):
            self.names.append(name)
            self.transfers.append(sum(map(nbytes, operands)) + sum(map(nbytes, results)))
        return out


def eager_step(B: int, C: int, D: int, dtype: torch.dtype = torch.float32, recipe: str = "default") -> Traffic:
    """The reference in eager PyTorch, operator by operator."""
    with FakeTensorMode():
        x = StepInputs.make(B, C, D, dtype, recipe, backend="reference")
        assert x.get.prior  # made at the start, and by each step for the next
        with CountOperators() as counter:
            step(x)
    return Traffic(tuple(counter.names), tuple(counter.transfers))


def fused_step(B: int, C: int, D: int, dtype: torch.dtype = torch.float32, recipe: str = "default") -> Traffic:
    """The kernels, launch by launch, and what PyTorch does beside them."""
    x = StepInputs.make(B, C, D, dtype, recipe)
    with CountOperators() as counter:
        launches = dry_step(x)
    beside = tuple(name for name in counter.names if name != "ones_like")  # the 1 that backward() starts from
    return Traffic(tuple(x.name for x in launches), tuple(x.bytes for x in launches), beside)


def minimum_bytes(B: int, C: int, D: int, dtype: torch.dtype = torch.float32, recipe: str = "default") -> int:
    """Bytes of a step whose every phase reads its inputs and writes its outputs once, and keeps nothing else.

    E        features, mu, mu_g, mu_f, log pi, labels by (4*)     -> S_g, S_f, y_M, the statistics to be all-reduced
    C, loss  S_g, S_f, y_M, column sums, powers of (6)            -> five scalars
    backward features, mu_g, mu_f, S_g, S_f, y_M, column sums     -> their three gradients
    memory   mu, pi, trust, class sums, counts, prior_sum, health -> mu, pi, health, log pi, powers
    """
    half = torch.empty((), dtype=dtype).element_size()
    features, prototypes, logits, classes, y_M = B * D * half, C * D * 4, B * C * 4, C * 4, B * 8
    labels = y_M if StepInputs.make(1, 2, 1, recipe=recipe).labels is not None else 0
    sums = prototypes + classes
    expectation = features + 3 * prototypes + classes + labels + 2 * logits + y_M + 3 * classes + 8 + sums
    loss = 2 * logits + y_M + 2 * classes + 8 + 20
    backward = 2 * features + 4 * prototypes + 2 * logits + y_M + 2 * classes
    memory = 2 * prototypes + 2 * classes + 4 + sums + classes + 8 + 32 + classes + 8
    return expectation + loss + backward + memory


def products(B: int, C: int, D: int) -> float:
    """Floating-point operations of the matrix products: three forward, four backward, one of the class sums."""
    return 2.0 * B * C * D * (3 + 4 + 1)

"""What a network computes, moves and keeps for one image, counted exactly: its forward pass is traced without content.

Every operation is counted by itself, since an operation is bound either by its multiplications or by its memory.
Views cost nothing. Two images are traced and halved, because batch-norm refuses one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fastget.config import NetworkConfig
from fastget.networks.network import build_network

IMAGES = 2


class Operation(NamedTuple):
    """Of the forward pass."""

    flops: float  # of one image: a multiplication and an addition are two
    moved: float  # numbers of one image that it reads and writes
    weights: int  # parameters that it reads, once for all images of a call


@dataclass(frozen=True)
class Counted:
    """A network."""

    operations: tuple[Operation, ...]
    parameters: int
    head_parameters: int  # of bottleneck and classifier
    saved: float  # floating-point numbers of one image that a backward pass needs again
    saved_bytes: float  # and bytes of other types: a pooling's places
    largest: float  # numbers of the largest tensor that an operation makes of one image

    @property
    def flops(self) -> int:
        """Of one image's forward pass."""
        return round(sum(operation.flops for operation in self.operations))


@lru_cache
def count_network(network: NetworkConfig, classes: int, side: int) -> Counted | None:
    """The network for images of `side` pixels; None if it has an operation that cannot be traced without content."""
    plain = dataclasses.replace(network, weights="none", head="linear")  # a cosine head's autocast is of real devices
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            built = build_network(plain, classes, side).train()
        images = torch.zeros(IMAGES, 3, side, side, device="meta")
        try:
            return _trace(built, images)
        except NotImplementedError:
            return None


def _trace(network: nn.Module, images: Tensor) -> Counted:
    parameters = list(network.parameters())
    tracer, kept = _Tracer(parameters), _Kept([*parameters, *network.buffers(), images])
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor), tracer:
        network(images)
    backbone = sum(p.numel() for p in network.get_submodule("backbone").parameters())
    total = sum(p.numel() for p in parameters)
    return Counted(
        tuple(tracer.operations), total, total - backbone, kept.numbers / IMAGES, kept.bytes / IMAGES, tracer.largest
    )


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Tracer(TorchDispatchMode):
    """Notes every operation but views."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._parameters = {_storage(parameter) for parameter in parameters}
        self.operations: list[Operation] = []
        self.largest = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        if func.is_view or not any(tensor.numel() for tensor in tensors):
            return out
        count: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=out) if count is not None else 0
        weights = [tensor for tensor in tensors if _storage(tensor) in self._parameters]
        moved = sum(tensor.numel() for tensor in tensors if _storage(tensor) not in self._parameters)
        self.operations.append(Operation(flops / IMAGES, moved / IMAGES, sum(weight.numel() for weight in weights)))
        made = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.largest = max(self.largest, max(made, default=0) / IMAGES)
        return out


class _Kept:
    """What autograd saves for the backward pass, every memory once, without the network itself and the images."""

    def __init__(self, without: Iterable[Tensor]) -> None:
        self._seen = {_storage(tensor): tensor for tensor in without}  # held: a freed memory's number comes again
        self.numbers = self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._seen:
            self._seen[_storage(tensor)] = tensor
            size = tensor.untyped_storage().nbytes()
            if tensor.is_floating_point():
                self.numbers += size // tensor.element_size()
            else:
                self.bytes += size
        return tensor

"""`fastget` in float64, to be started by torchrun.

Two runs that add up the same numbers in another order agree in float64 to many digits on any CPU. In float32 they drift
apart as fast as the CPU's instructions have it, until an argmax falls the other way.
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from fastget.commands.main import main
from fastget.networks.network import Network


def widen(module: nn.Module, images: tuple[Any, ...]) -> Any:
    """The loaders make float32."""
    return tuple(image.double() for image in images) if isinstance(module, Network) else None


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)  # of the network and of GeT's memory
    register_module_forward_pre_hook(widen)
    sys.exit(main())

"""`fastget` in float64, to be started by torchrun; with `every FOLDER` a short run of every method on every base model.

Two runs that add up the same numbers in another order agree in float64 to many digits on any CPU. In float32 they drift
apart as fast as the CPU's instructions have it, until an argmax falls the other way.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from fastget import bases
from fastget.commands.main import main
from fastget.common.ranks import joined
from fastget.networks.network import Network
from fastget.training.train import train
from tests.support import PAIRS, fitting, tiny


def widen(module: nn.Module, images: tuple[Any, ...]) -> Any:
    """The loaders make float32."""
    return tuple(image.double() for image in images) if isinstance(module, Network) else None


SOME = [("atdoc-na", "plain"), ("mme", "plain"), ("get", "mixmatch")]  # one of a kind


def every(folder: Path, pairs: list[tuple[str, str]]) -> None:
    """In one group of ranks: to start one takes longer than to train."""
    with joined(torch.device("cpu")):
        for method, base in pairs:
            short = {"train__max_steps": 8, "train__warmup_steps": 4, "train__batch_size": 24, "train__eval_every": 8}
            given = {**fitting(method, base), **short, "train__log_every": 1}
            given |= {} if bases.settings_of(base).ignores else {"method__weight": 1}
            train(tiny(folder / f"{method}-{base}", **given), quiet=True)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)  # of the network and of GeT's memory
    register_module_forward_pre_hook(widen)
    if sys.argv[1] not in ("every", "some"):
        sys.exit(main())
    every(Path(sys.argv[2]), PAIRS if sys.argv[1] == "every" else SOME)

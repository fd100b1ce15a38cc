"""Runs in float64, of one rank or, started by torchrun, of several: python -m tests.common.float64 FOLDER NAME ...

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
from fastget.common.ranks import joined
from fastget.networks.network import Network
from fastget.training.train import train
from tests.support import PAIRS, fitting, tiny

STEPS = {"train__max_steps": 24, "train__log_every": 1, "train__eval_every": 12}
SHORT = {"train__max_steps": 8, "train__warmup_steps": 4, "train__batch_size": 24, "train__eval_every": 8,
         "train__log_every": 1}  # fmt: skip
MEMORY = {"method__name": "atdoc-na", "method__weight": 1, "train__max_steps": 12, "train__warmup_steps": 2,
          "train__checkpoint_every": 6, "train__log_every": 1, "train__eval_every": 12}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {"get": STEPS, "memory": MEMORY}
SOME = ["atdoc-na-plain", "mme-plain", "shot-plain", "aad-plain", "get-mixmatch"]  # one of a kind
for method, base in PAIRS:
    # batch-norm's statistics are each rank's own
    RUNS[f"{method}-{base}"] = {**fitting(method, base), **SHORT, "network__bottleneck_norm": False}
    if not bases.settings_of(base).ignores:
        RUNS[f"{method}-{base}"]["method__weight"] = 1


def widen(module: nn.Module, images: tuple[Any, ...]) -> Any:
    """The loaders make float32."""
    return tuple(image.double() for image in images) if isinstance(module, Network) else None


if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    torch.set_default_dtype(torch.float64)  # of the network and of GeT's memory
    register_module_forward_pre_hook(widen)
    with joined(torch.device("cpu")):  # one group for all: to start one takes longer than to train
        for name in names:  # a run that is there goes on
            train(tiny(folder / name, train__resume="auto", **RUNS[name]))

"""What a checkpoint contains of a run, and how an engine resumes from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastget.config import Config, changed
from fastget.evaluation.classes import Tally
from fastget.networks.provenance import other_start
from fastget.runs.checkpoint import load_checkpoint, sha256_of
from fastget.runs.folder import RunFolder
from fastget.training.engine import Engine


def state_of(engine: Engine) -> dict[str, Any]:
    """All that the trajectory depends on, and what a reader of the checkpoint needs. Every rank calls it."""
    ranks, assessor = engine.ranks, engine.assessor
    return {
        "step": engine.steps_done,
        "seed": engine.seed,
        "model": engine.model.state_dict(),
        "statistics": ranks.gather(_statistics(engine)) if ranks.world > 1 else None,
        "optimizer": engine.optimizer.state_dict(),
        "scaler": engine.scaler.state_dict(),
        "started": engine.started,
        "before": assessor.before,
        "totals": {name: ranks.mean(total) for name, total in engine.totals.items()},
        "counted": engine.counted,
        "tallies": [one._asdict() for one in assessor.tallies],
        "rng": torch.get_rng_state(),
        "config": engine.config.to_dict(),
        "classes": list(engine.target.classes),
        "backbone": engine.backbone,
    }


def load_state(engine: Engine, state: dict[str, Any]) -> None:
    """Go on from a checkpoint's state; ValueError says what does not fit."""
    try:
        _refuse_another_run(engine, state)
        engine.model.load_state_dict(state["model"])
        if len(state["statistics"] or ()) == engine.ranks.world:
            engine.network.load_state_dict(state["statistics"][engine.ranks.rank], strict=False)
        engine.optimizer.load_state_dict(state["optimizer"])
        engine.scaler.load_state_dict(state["scaler"])
        engine.steps_done, engine.started, engine.counted = state["step"], state["started"], state["counted"]
        engine.assessor.before = state["before"]
        engine.assessor.tallies = [Tally(**one) for one in state.get("tallies", ())]  # earlier versions kept none
        engine.totals = {name: total.to(engine.device) for name, total in state["totals"].items()}
        torch.set_rng_state(state["rng"])
        began = state.get("backbone")  # not in checkpoints of earlier versions
        engine.other_start = other_start(began or {}, engine.backbone)
        engine.backbone = began or engine.backbone
    except RuntimeError as error:  # other tensors than the network's
        first = " ".join(str(error).split())[:200]
        raise ValueError(f"the checkpoint is of another network: {first}. Choose another --out") from error
    except KeyError as error:
        raise ValueError(f"the checkpoint lacks {error}: it is not of this version of fastget") from error


def go_on(run: RunFolder, engine: Engine, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """From the newest checkpoint in the run's folder that fits, whose state this is. Rank 0 chooses it, and every rank
    reads that one."""
    found: list[dict[str, Any]] = []

    def choose() -> tuple[Path, str] | None:
        state = run.checkpoints.restore(lambda state: load_state(engine, state), warn)
        if state is None:
            return None
        found.append(state)
        file = run.checkpoints.restored
        return file, sha256_of(file) if engine.ranks.world > 1 else ""

    def follow(file: Path, digest: str) -> None:
        if engine.ranks.main:
            return
        found.append(load_checkpoint(file))
        if sha256_of(file) != digest:
            raise ValueError(f"{file} is not the file that rank 0 sees")
        load_state(engine, found[0])

    chosen = engine.ranks.decided(choose)
    if chosen is None:
        return None
    engine.ranks.agreed("cannot go on: all ranks need the run's folder, on a shared disk", lambda: follow(*chosen))
    return found[0]


def refuse_other_settings(stored: dict[str, dict[str, Any]], config: Config) -> None:
    """ValueError if a run's stored configuration leads elsewhere than this one."""
    differing = changed(stored, config)
    if differing:
        raise ValueError(f"the run there has other settings: {'; '.join(differing)}. Choose another --out")


def _refuse_another_run(engine: Engine, state: dict[str, Any]) -> None:
    classes = list(engine.target.classes)
    if state["classes"] != classes:
        raise ValueError(
            f"the checkpoint is of another data set: it knows {len(state['classes'])} classes, "
            f"this one has {len(classes)} or names them otherwise. Choose another --out"
        )
    refuse_other_settings(state["config"], engine.config)


def _statistics(engine: Engine) -> dict[str, Tensor]:
    """Batch-norm's running statistics, which are each rank's own: `model` holds rank 0's."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {name: value.cpu() for name, value in engine.network.named_buffers() if name.endswith(names)}

"""Checkpoints of earlier versions, brought up to date as they are read.

Format 1 (fastget 0.1) knew one method: its tensors stood beside the network's, where they now lie under `method.`,
and that it had started was told by the metrics at the end of the warm-up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FORMAT = 2
State = dict[str, Any]


def _from_1(state: State) -> State:
    weights = state.get("model")
    if isinstance(weights, dict):
        weights = {name if name.startswith("network.") else f"method.{name}": t for name, t in weights.items()}
    return {**state, "model": weights, "started": state.get("before") is not None, "statistics": None}


_UPGRADES: dict[int, Callable[[State], State]] = {1: _from_1}  # format -> to the one after it


def upgrade(state: State) -> State:
    """The state as this version writes it. ValueError says which version can read it."""
    found = state.get("fastget_format")
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"it is not a checkpoint of fastget: its format is {found!r}")
    if found > FORMAT:
        raise ValueError(f"it is of format {found}, and this version of fastget reads up to {FORMAT}: use a later one")
    for number in range(found, FORMAT):
        state = _UPGRADES[number](state)
    return {**state, "fastget_format": FORMAT}

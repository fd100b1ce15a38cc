"""Which iterate of a run counts: the final model, those that label-free criteria would take, and the best one.

The headline is the final model. The best iterate is an oracle: who adapts has no labels to find it by. It is shown to
tell what such a choice would have hidden, beside choices that need no target labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastget.archive.statistics import Metric
from fastget.runs.sinks import jsonl

FINAL, ORACLE = "final", "best iterate (oracle)"
VALIDATION = "validation_mean_class_accuracy"  # in metrics.jsonl, where a run has such a list


def choices_of(run: Path, metric: Metric) -> dict[str, float]:
    """Of a run's folder."""
    from fastget.runs.folder import METRICS as LOG

    return choices(jsonl.read(run / LOG), metric)


def choices(lines: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, float]:
    """Selection -> the metric of the iterate it takes, from the lines of metrics.jsonl; the first on a tie. Where
    evaluations before the last one looked at a draw of the target, iterates are compared on that draw."""
    from fastget.evaluation.selection import CRITERIA

    evaluated = [{**line, **line.get("on_draw", {})} for line in lines if line.get(metric) is not None]
    if not evaluated:
        return {}
    found = {ORACLE: max(line[metric] for line in evaluated)}
    for name, more in CRITERIA.items():
        key = VALIDATION if name == "validation" else name
        known = [line for line in evaluated if line.get(key) is not None]
        if known:
            best = (max if more else min)(known, key=lambda line: float(line[key]))
            found[name.replace("_", " ")] = best[metric]
    return found

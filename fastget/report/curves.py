"""The figures over all runs: accuracy, losses and throughput over steps, and where the time went.

A line is a group's mean over seeds, its band reaches one standard deviation to either side.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastget.report.figure import Figure, choice, rounded, series
from fastget.report.read import Group, Run

FEW = 5  # groups whose runs are all timed, and runs of a group
Lines = Sequence[Mapping[str, Any]]
ORACLE = {"accuracy": "accuracy", "mean_class_accuracy": "mean class accuracy"}
HELD_OUT = {"validation_accuracy": "validation accuracy"}
LABEL_FREE = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "neighbourhood_density": "neighbourhood density",
}


def convergence(groups: Sequence[Group]) -> Figure:
    """Accuracy on the target at each evaluation; without labels the label-free criteria alone."""
    percents = _choices(groups, {**ORACLE, **HELD_OUT}, _evaluations, "%", 100)
    choices = percents + _choices(groups, LABEL_FREE, _evaluations, "", 1)
    few = {line["images"] for group in groups for run in group.runs for line in run.evaluations if "of" in line}
    shown = f"on a draw of {min(few):,} target images, the last on all of them" if few else "on the whole target"
    words = f"At each evaluation, {shown}. Its labels report, they never select."
    if not percents:
        words = "The target has no labels: what can be said without them. Lower entropy is surer, the others rise."
    why = "" if choices else "no evaluation was made yet"
    return Figure("convergence", "Convergence", "lines", words, _lines(choices, groups), why)


def losses(groups: Sequence[Group]) -> Figure:
    """The loss and its parts."""
    logged = [name for group in groups for run in group.runs for line in run.logs for name in line]
    names = [name for name in dict.fromkeys(logged) if name.startswith(("loss", "structure"))]
    choices = _choices(groups, {name: name.replace("_", " ") for name in names}, lambda run: run.logs, "", 1)
    words = "Means over each log interval. The target's part begins after the warm-up."
    return Figure("losses", "Losses", "lines", words, _lines(choices, groups), "" if choices else "nothing was logged")


def throughput(groups: Sequence[Group]) -> Figure:
    """Images a second."""
    names = {"images_per_second": "images per second", "step_ms": "ms per step", "method_ms": "ms of the method"}
    choices = _choices(groups, names | {"memory_mib": "memory, MiB"}, lambda run: run.timing, "", 1)
    words = "Images per second over all steps so far, evaluations and checkpoints left out."
    why = "" if choices else "no log interval was reached"
    return Figure("throughput", "Throughput", "lines", words, _lines(choices, groups), why)


def where_the_time_went(groups: Sequence[Group]) -> Figure:
    """Seconds of each run, by what they were spent on; of many groups the first run of each."""
    several = len(groups) > FEW
    rows = [
        {"name": group.name if len(group.runs) == 1 else f"{group.name}, seed {run.seed}", "parts": parts}
        for group in groups
        for run in group.runs[: 1 if several else FEW]
        if (parts := _seconds(run))
    ]
    words = f"Wall-clock seconds{' of the first seed' if several else ''}, up to the last log line."
    why = "" if rows else "the runs were made by a version that did not time a step"
    return Figure("time", "Where the time went", "stacks", words, {"rows": rows} if rows else {}, why)


def _seconds(run: Run) -> list[dict[str, Any]]:
    lines = [line for line in run.timing if "step_ms" in line]
    if not lines:
        return []
    before = [0, *(line["step"] for line in lines)]
    steps = [line["step"] - start for line, start in zip(lines, before, strict=False)]
    whole = sum(n * line["step_ms"] for n, line in zip(steps, lines, strict=True)) / 1000
    method = sum(n * line["method_ms"] for n, line in zip(steps, lines, strict=True)) / 1000
    data = min(lines[-1]["data_wait"] * whole, whole - method)
    parts = {
        "network and optimizer": max(0.0, whole - method - data),
        "the method": method,
        "waiting for data": max(0.0, data),
        "evaluations and checkpoints": _grown(line.get("paused_s", 0.0) for line in lines),
    }
    return [{"name": name, "seconds": rounded(value)} for name, value in parts.items()]


def _grown(counts: Iterable[float]) -> float:
    """The whole of a count that starts again at 0 where a run was resumed."""
    total, last = 0.0, 0.0
    for count in counts:
        total += count - last if count >= last else count
        last = count
    return total


# --- lines ---------------------------------------------------------------------------------------


def _evaluations(run: Run) -> Lines:
    """With the model at the end of the warm-up, where it was looked at."""
    before = run.summary.source_only if run.summary is not None else None
    lines = run.evaluations
    if before and before.get("step") and before["step"] not in {line["step"] for line in lines}:
        lines = sorted([*lines, before], key=lambda line: line["step"])
    return lines


def _lines(choices: list[dict[str, Any]], groups: Sequence[Group]) -> dict[str, Any]:
    if not choices:
        return {}
    ends = {warmup for group in groups for run in group.runs if (warmup := warmup_of(run))}
    return {"x": "step", "choices": choices, "marks": [[end, "adaptation starts"] for end in sorted(ends)[:1]]}


def warmup_of(run: Run) -> int | None:
    """The step at which adaptation began, where there was a warm-up."""
    before = run.summary.source_only if run.summary is not None else None
    return int(before["step"]) if before and before.get("step") else None


def _choices(
    groups: Sequence[Group], names: Mapping[str, str], lines_of: Callable[[Run], Lines], unit: str, scale: float
) -> list[dict[str, Any]]:
    """A choice for each name that any run has values of."""
    found = []
    for key, words in names.items():
        drawn = []
        for colour, group in enumerate(groups):
            points = _over_seeds([_points(lines_of(run), key, scale) for run in group.runs])
            if points:
                drawn.append(series(group.name, colour, points))
        if drawn:
            found.append(choice(words, unit, drawn))
    return found


def _points(lines: Lines, key: str, scale: float) -> dict[float, float]:
    values = ((line["step"], line.get(key)) for line in lines)
    return {step: scale * value for step, value in values if value is not None and math.isfinite(value)}


def _over_seeds(runs: Sequence[Mapping[float, float]]) -> list[tuple[float, ...]]:
    """Mean and band, at the steps that every run with values has."""
    runs = [run for run in runs if run]
    if not runs:
        return []
    shared = sorted(set.intersection(*(set(run) for run in runs)))
    if len(runs) == 1:
        return [(step, runs[0][step]) for step in shared]
    found: list[tuple[float, ...]] = []
    for step in shared:
        values = [run[step] for run in runs]
        mean, std = statistics.fmean(values), statistics.stdev(values)
        found.append((step, mean, mean - std, mean + std))
    return found

"""What the jobs of a study came to: figures by seed, why some are missing, and a row a job in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastget.archive.statistics import METRICS, Metric
from fastget.common import files
from fastget.common.text import counted
from fastget.config.combinations import title_of
from fastget.studies.jobs import Job, Outcome


def values(outcomes: Sequence[Outcome], metric: Metric) -> dict[int, float]:
    """Seed -> the metric, of the runs that are done and whose target has labels."""
    found = {one.job.seed: one.summary[metric] for one in outcomes if one.summary is not None}
    return {seed: value for seed, value in found.items() if value is not None}


def state(outcomes: Sequence[Outcome]) -> str:
    """In place of a figure: why there is none."""
    found = {one.status for one in outcomes}
    if found == {"done"}:
        return "no labels"
    return next((word for word in ("refused", "failed") if word in found), "not done")


def not_run(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each reason why runs are missing, and which ones they are."""
    by_reason: dict[tuple[str, ...], list[Job]] = {}
    for one in outcomes:
        if one.status in ("failed", "refused"):
            point = ", ".join(f"{key}={value}" for key, value in one.job.point.items())
            who = title(one.job) + (f", {point}" if point else f" in {one.job.setting}")
            by_reason.setdefault((who, one.status, one.reason), []).append(one.job)
    lines = []
    for (who, status, reason), jobs in by_reason.items():
        tasks = dict.fromkeys(f"{job.value('data.source')} -> {job.value('data.target')}" for job in jobs)
        seeds = dict.fromkeys(str(job.seed) for job in jobs)
        where = f" ({', '.join(tasks)}; seeds {', '.join(seeds)})" if status == "failed" else ""
        lines.append(f"- {who}{where}, {status}: {reason}")
    return lines


def title(job: Job) -> str:
    """Its row's name, else the method, and the base model where that is not the plain one."""
    return job.row or title_of(job.value("method.name"), job.value("method.base"))


# --- files ---------------------------------------------------------------------------------------


def write_outcomes(file: Path, outcomes: Sequence[Outcome]) -> None:
    """A row a job."""
    fields = list(outcomes[0].job.point)
    free = list(dict.fromkeys(key for one in outcomes if one.summary and fields for key in one.summary.label_free))
    row = ["row"] if any(one.job.row for one in outcomes) else []
    head = [*fields, *row, "method", "base", "recipe", "setting", "source", "target", "seed", *METRICS, *free]
    rows: list[list[Any]] = [[*head, "steps", "seconds", "verdict", "status", "reason"]]
    keys = ("method.name", "method.base", "method.recipe")
    for one in outcomes:
        job, found = one.job, one.summary
        figures = [None] * len(METRICS) if found is None else [found[metric] for metric in METRICS]
        figures += [None if found is None else found.label_free.get(key) for key in free]
        rows.append(
            [*job.point.values(), *(title(job) for _ in row), *map(job.value, keys), job.setting,
             job.value("data.source"), job.value("data.target"), job.seed, *figures,
             None if found is None else found.steps, one.seconds, verdict(one), one.status, one.reason]
        )  # fmt: skip
    files.write_csv(file, rows)


def verdicts(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each kind of finding and row, and of how many of its runs it is said."""
    runs: dict[str, int] = {}
    wrong: dict[tuple[str, str], int] = {}
    for one in outcomes:
        if one.summary is not None:
            who = f"{title(one.job)} in {one.job.setting}"
            runs[who] = runs.get(who, 0) + 1
            for name in verdict(one).split():
                wrong[who, name] = wrong.get((who, name), 0) + 1
    return [f"- {who}: {name.replace('_', ' ')} in {n} of {counted(runs[who], 'run')}"
            for (who, name), n in wrong.items()]  # fmt: skip


def verdict(one: Outcome) -> str:
    """The names of what is known to be wrong with a run."""
    return " ".join(finding["name"] for finding in one.summary.verdict) if one.summary is not None else ""

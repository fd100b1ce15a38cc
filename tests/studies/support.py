"""Stand-ins for a study's runs: processes that end at once, with figures of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fastget.runs.summary import SeedSummary
from fastget.studies import jobs
from fastget.studies.jobs import Job, Slot

CHILD = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(parents=True, exist_ok=True); "
CHILD += "(p / 'timing.jsonl').write_text(sys.argv[3]); (p / 'summary.json').write_text(sys.argv[2])"
ACCURACY = {"source-only": 0.6, "get": 0.9, "mcc": 0.895, "bnm": 0.7}


def summary(job: Job) -> SeedSummary:
    """Made up: by the method, a little by the seed; a harder target is worth less."""
    accuracy = ACCURACY[job.value("method.name")] + 0.01 * job.seed
    accuracy -= 0.1 * (job.setting == "pda") + 0.05 * float(job.point.get("get.tau", 0))
    return SeedSummary(
        method=job.value("method.name"), base=job.value("method.base"), data="digits", setting=job.setting,
        source=job.value("data.source"), target=job.value("data.target"), steps=6, images={}, accuracy=accuracy,
        mean_class_accuracy=accuracy / 2, source_only=None, per_class_accuracy={}, seed=job.seed,
        label_free={"entropy": 1 - accuracy, "mutual_information": accuracy},
    )  # fmt: skip


def stand_in(monkeypatch: pytest.MonkeyPatch, failing: str = "") -> list[str]:
    """Let each job be such a process; the jobs that were started. Those of the `failing` method fail."""
    started: list[str] = []

    def command(job: Job, slot: Slot, file: str | None) -> list[str]:
        started.append(str(job.folder))
        if job.value("method.name") == failing:
            return [sys.executable, "-c", "print('fine so far'); raise RuntimeError('no luck')"]
        text = json.dumps(summary(job).to_dict())
        times = json.dumps({"step": 6, "step_ms": 500.0}) + "\n"
        return [sys.executable, "-c", CHILD, str(job.folder), text, times]

    monkeypatch.setattr(jobs, "command", command)
    monkeypatch.setattr(jobs, "POLL", 0.01)
    return started


def mtimes(out: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in out.rglob("summary.json")}

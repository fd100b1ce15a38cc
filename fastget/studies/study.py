"""A study, `compare` or `sweep`: many runs in one folder, shown while they run, written up when they are done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fastget.archive.statistics import METRICS, Metric, metric_of
from fastget.common.errors import Interrupted, RunFailed
from fastget.common.files import write_atomically
from fastget.common.lock import held
from fastget.common.text import counted, nearest
from fastget.config import Config, free_fields, make_config, parse_settings
from fastget.studies.jobs import Job, Outcome, Pool, find_slots
from fastget.studies.outcomes import title, verdict, write_outcomes

KEPT = {"train.seeds": "--seeds", "train.out": "--out", "train.resume": "nothing: a study always goes on"}


@dataclass(frozen=True, kw_only=True)
class Study:
    """What the studies have in common."""

    kind: str  # its file in the folder is KIND.json
    out: Path
    jobs: Sequence[Job]
    metric: Metric
    settings: Mapping[str, str]  # of every job
    file: str | None = None  # --config
    axes: Mapping[str, Sequence[str]]  # what the jobs are the product of, but for refused ones
    table: Callable[[Sequence[Outcome]], Table]  # of what is done so far
    write: Callable[[Sequence[Outcome]], list[Path]]  # the table and the plot; the places of both


def run_study(
    study: Study, count: int | None = None, console: Console | None = None, slurm: Mapping[str, str] | None = None
) -> int:
    """All jobs that are not done yet, `count` at a time, here or by SLURM with these options. 0, or 1 if some failed;
    ValueError if none can run, or the folder is another study's; Interrupted by a signal, with what is done written
    up."""
    console = console or Console()
    device = device_of(study)
    pool = Pool(study.jobs, find_slots(count, device), study.file) if slurm is None else by_slurm(study, slurm, count)
    claim(study.out, study.kind, study.settings, study.file, study.axes)
    before = len(pool.jobs) - len(pool.left)
    start = f"{counted(len(pool.jobs), 'job')}, {len(pool.slots)} at a time, in {study.out}"
    refused = sum(one.status == "refused" for one in pool.outcomes)
    start += f"; {before - refused} done before" if before > refused else ""
    _say(console, start + (f"; {refused} refused" if refused else ""))
    try:
        _shown(study, pool, console)
    except Interrupted as stop:
        _write(study, pool.outcomes)
        again = f"{stop.text}. Go on with the same command and --out {study.out}"
        raise Interrupted(stop.number, again) from stop
    except OSError as error:
        raise RunFailed(
            f"cannot write to {study.out} ({error.strerror}). What is there is kept: make room, then go on with the "
            "same command"
        ) from error
    files = _write(study, pool.outcomes)
    console.print(study.table(pool.outcomes))
    failed = [one for one in pool.outcomes if one.status == "failed"]
    for one in failed:
        _say(console, f"failed: {name(one.job)}: {one.reason}")
    for file in files:
        _say(console, f"written: {file}")
    return 1 if failed else 0


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def by_slurm(study: Study, options: Mapping[str, str], count: int | None) -> Pool:
    from fastget.studies.slurm import SlurmPool

    return SlurmPool(study.jobs, study.out, options, count, study.file)


def device_of(study: Study) -> str:
    """train.device of the jobs. ValueError if every one of them is refused."""
    config = next((job.config for job in study.jobs if job.config is not None), None)
    if config is None:
        raise ValueError(f"every one of the {len(study.jobs)} jobs is refused; the first: {study.jobs[0].refused}")
    if config.train.device.startswith("cuda:"):
        raise ValueError(
            f"train.device={config.train.device}: a {study.kind} gives each job a GPU of its own. Leave it out, and "
            "say which GPUs by CUDA_VISIBLE_DEVICES"
        )
    return config.train.device


def _shown(study: Study, pool: Pool, console: Console) -> None:
    """Run them: a table that grows in a terminal, a line a job elsewhere."""

    def line(one: Outcome) -> None:
        over = len(pool.jobs) - len(pool.left) - pool.running
        what = one.reason if one.summary is None else _figures(one)
        _say(console, f"{over}/{len(pool.jobs)} {name(one.job)}: {one.status}, {what}")

    told = set()

    def tell_waiting() -> None:
        for job in pool.waiting:
            if job.folder not in told:
                told.add(job.folder)
                _say(console, f"waiting for {name(job)}: another process is busy with it (it holds {job.log})")

    if not console.is_terminal:
        pool.run(line, tell_waiting)
        return
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        state, said = Text(style="dim"), Text(style="bold")  # what a signal is answered with stands below the table

        def draw() -> None:
            state.plain = f"{pool.running} running, {len(pool.left)} to come; Ctrl-C saves and stops"
            tell_waiting()
            live.update(Group(study.table(pool.outcomes), state, said))

        def say(text: str) -> None:
            said.plain = f"fastget: {text}"

        draw()
        pool.run(lambda one: line(one) if one.status == "failed" else draw(), draw, say)


def _figures(one: Outcome) -> str:
    assert one.summary is not None
    wrong = verdict(one).replace("_", " ")
    known = [(metric, one.summary[metric]) for metric in METRICS if one.summary[metric] is not None]
    words = ", ".join(f"{metric.replace('_', ' ')} {100 * value:.1f} %" for metric, value in known)
    return (words or "no target labels") + (f"; verdict: {wrong}" if wrong else "")


def name(job: Job) -> str:
    """A job in a line."""
    point = ", ".join(f"{key}={value}" for key, value in job.point.items())
    task = f"{job.value('data.source')} -> {job.value('data.target')}"
    return f"{title(job)}, {point or f'{job.setting}, {task}'}, seed {job.seed}"


def _write(study: Study, outcomes: Sequence[Outcome]) -> list[Path]:
    table = study.out / "results.csv"
    write_outcomes(table, outcomes)
    return [table, *study.write(outcomes)]


# --- what people give ----------------------------------------------------------------------------


def choose(text: str, known: Sequence[str], what: str) -> list[str]:
    """The names of a list with commas, or all."""
    if text.strip() == "all":
        return list(known)
    names = [part.strip() for part in text.split(",") if part.strip()]
    for one in names:
        if one not in known:
            raise ValueError(f"unknown {what} {one!r}{nearest(one, known)}: choose from {', '.join(known)}, or all")
    if not names or len(set(names)) != len(names):
        raise ValueError(f"--{what}s takes one or more different names separated by commas, or all, got {text!r}")
    return names


def choose_seeds(text: str) -> tuple[int, ...]:
    return make_config({"train.seeds": text}).train.seeds


def choose_metric(text: str | None, data: str) -> Metric:
    """As asked, else the data set's own."""
    if text is None:
        return metric_of(data)
    for metric in METRICS:
        if text == metric:
            return metric
    raise ValueError(f"--metric must be one of {', '.join(METRICS)}, got {text!r}{nearest(text, METRICS)}")


def refuse_kept(settings: Mapping[str, str], kept: Mapping[str, str], command: str) -> None:
    """An error for a field that the study sets itself."""
    for key, option in {**KEPT, **kept}.items():
        if key in settings:
            raise ValueError(f"{key} is set by fastget {command} itself: leave it out, and use {option}")


def try_config(settings: Mapping[str, str], file: str | None) -> tuple[Config | None, str]:
    """The configuration, or why these settings do not go together."""
    try:
        return make_config(settings, file=file), ""
    except ValueError as error:
        return None, str(error)


# --- a study's folder ----------------------------------------------------------------------------


def claim(
    out: Path, kind: str, settings: Mapping[str, str], file: str | None, axes: Mapping[str, Sequence[str]]
) -> None:
    """Record in OUT/KIND.json what the study is. A folder of another one is refused; one that holds a part of this
    (fewer methods, seeds ...) goes on to be all of it."""
    mine: dict[str, Any] = {
        "settings": {key: _plain(value) for key, value in parse_settings(settings).items() if key not in free_fields()},
        "config": Path(file).read_text(encoding="utf-8") if file else None,
        "axes": {name: list(axis) for name, axis in axes.items()},
    }
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another --out")
    try:
        with held(out, wait=30):  # of two that start together the second sees what the first has written
            _record(out, kind, mine)
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}; choose another one by --out") from error


def _record(out: Path, kind: str, mine: Mapping[str, Any]) -> None:
    record = out / f"{kind}.json"
    content = [part.name for part in out.iterdir() if not part.name.startswith(".")]
    if record.is_file():
        _refuse_other(json.loads(record.read_text(encoding="utf-8")), mine, out, kind)
    elif content:
        raise ValueError(f"{out} is not empty and holds no {kind} of before ({kind}.json): choose another --out")
    write_atomically(record, (json.dumps(mine, indent=2) + "\n").encode())


def _refuse_other(there: Mapping[str, Any], mine: Mapping[str, Any], out: Path, kind: str) -> None:
    old, new = there["settings"], mine["settings"]
    differing = [
        f"{key} ({old.get(key, 'not set')} there, {new.get(key, 'not set')} here)"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]
    if there["config"] != mine["config"]:
        differing.append("the file of --config")
    if list(there["axes"]) != list(mine["axes"]):
        differing.append(f"{kind} over {', '.join(there['axes'])} there, over {', '.join(mine['axes'])} here")
    for name, axis in mine["axes"].items():
        gone = [part for part in there["axes"].get(name, []) if part not in axis]
        if gone:
            differing.append(f"{name} ({', '.join(gone)} there, not here: it may grow, not shrink)")
    if differing:
        raise ValueError(f"{out} holds another {kind}: {'; '.join(differing)}. Choose another --out")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

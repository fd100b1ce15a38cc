"""`fastget sweep`: a grid over any fields, over seeds; a table sorted by the metric, a CSV file, a plot.

To take the best of it by target accuracy is an oracle: who adapts has no target labels. So the label-free criteria
stand beside it, with what each of them would have chosen.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_origin

from rich.console import Console
from rich.table import Table

from fastget.archive.plots import draw_grid, draw_lines
from fastget.archive.statistics import (
    METRICS,
    Mean,
    Metric,
    cell,
    markdown,
    marks,
    mean_over_seeds,
    mean_over_tasks,
    shown,
    words,
    write_lines,
)
from fastget.common.fields import types_of
from fastget.common.text import counted
from fastget.config import describe_type, every_section, parse_settings
from fastget.studies.jobs import Job, Outcome
from fastget.studies.outcomes import not_run, state, values
from fastget.studies.study import Study, run_study, try_config

ORACLE = (
    "Sorted by the score on the target's labels: to choose by it is an oracle, which nobody has who adapts. The "
    "criteria on the right need no labels; what each of them chooses is said below."
)
Point = tuple[str, ...]  # a value of each field
Line = tuple[Point, Mean | None, list[Outcome]]  # of the table


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid."""

    fields: Mapping[str, Sequence[str]]  # section.field -> its values
    seeds: Sequence[int] = (0,)
    given: Mapping[str, str]  # of every job
    file: str | None = None  # --config
    metric: Metric = "mean_class_accuracy"

    def points(self) -> list[Point]:
        return list(itertools.product(*self.fields.values()))


def split_fields(given: Mapping[str, str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """From --set: the fields with several values, and those with one. ValueError names the field."""
    fields: dict[str, list[str]] = {}
    fixed: dict[str, str] = {}
    for key, text in given.items():
        section, _, name = key.partition(".")
        kinds = types_of(every_section()[section]) if section in every_section() else {}
        parts = [part.strip() for part in text.split(",")]
        if name in kinds and get_origin(kinds[name]) is tuple and len(parts) > 1:
            raise ValueError(
                f"--set {key}={text}: commas separate the values of a sweep, and {key} is {describe_type(key)} itself: "
                "give it by --config"
            )
        found = [parse_settings({key: part})[key] for part in parts]
        if len(set(found)) < len(found):
            raise ValueError(f"--set {key}={text}: the values must differ")
        if len(parts) > 1:
            fields[key] = parts
        else:
            fixed[key] = text
    if not fields:
        raise ValueError("nothing to sweep: give a field several values, as in --set get.tau=0.1,0.2")
    return fields, fixed


def sweep(what: Sweep, out: Path, count: int | None = None, console: Console | None = None) -> int:
    """Run it, or what is left of it. 0, or 1 if a job failed."""
    study = Study(
        kind="sweep", out=out, jobs=plan(what, out), metric=what.metric, settings=what.given, file=what.file,
        axes={**{key: list(found) for key, found in what.fields.items()}, "seeds": list(map(str, what.seeds))},
        table=lambda outcomes: live_table(what, outcomes), write=lambda outcomes: write(what, out, outcomes),
    )  # fmt: skip
    return run_study(study, count, console)


def plan(what: Sweep, out: Path) -> list[Job]:
    """Every job, in the order of the grid."""
    jobs: list[Job] = []
    for place in what.points():
        point = dict(zip(what.fields, place, strict=True))
        settings = {**what.given, **point}
        config, refused = try_config(settings, what.file)
        setting = config.data.setting if config else settings.get("data.setting", "")
        jobs += Job.each(what.seeds, out / point_folder(point), settings, setting=setting, point=point, config=config,
                         refused=refused)  # fmt: skip
    return jobs


def point_folder(point: Mapping[str, str]) -> str:
    """A point as a folder's name; with a hash where a value has signs that a name cannot hold."""
    text = ",".join(f"{key}={value}" for key, value in point.items())
    plain = re.sub(r"[^\w.,=+-]", "_", text)
    if plain == text and len(text) <= 120:
        return text
    return f"{plain[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# --- results -------------------------------------------------------------------------------------


def by_point(what: Sweep, outcomes: Sequence[Outcome]) -> dict[Point, list[Outcome]]:
    found: dict[Point, list[Outcome]] = {point: [] for point in what.points()}
    for one in outcomes:
        found[tuple(one.job.point.values())].append(one)
    return found


def live_table(what: Sweep, outcomes: Sequence[Outcome]) -> Table:
    """The best of the points so far first."""
    seeds = counted(len(what.seeds), "seed")
    table = Table(
        title=f"{words(what.metric)}, %, final models; {seeds}", title_justify="left",
        caption="sorted by target accuracy, an oracle; table.md has what needs no labels", caption_justify="left",
        min_width=60,
    )  # fmt: skip
    for key in what.fields:
        table.add_column(key)
    table.add_column(words(what.metric), justify="right")
    table.add_column("done", justify="right")
    for point, figure, found in _sorted(what, outcomes):
        done = sum(one.status == "done" for one in found)
        table.add_row(*point, shown(figure) if figure else state(found), f"{done}/{len(found)}")
    return table


def _sorted(what: Sweep, outcomes: Sequence[Outcome]) -> list[Line]:
    found = by_point(what, outcomes).items()
    rows = [(point, mean_over_seeds(values(each, what.metric)), each) for point, each in found]
    return sorted(rows, key=lambda row: -row[1].mean if row[1] else 1.0)


def _criteria(found: Sequence[Outcome]) -> dict[str, float]:
    """Each label-free criterion, as the mean over seeds."""
    known: dict[str, list[float]] = {}
    for part in (one.summary.label_free for one in found if one.summary is not None):
        for name, value in part.items():
            if value is not None:
                known.setdefault(name, []).append(value)
    return {name: statistics.fmean(each) for name, each in known.items()}


def write(what: Sweep, out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """table.md and plot.png."""
    rows = _sorted(what, outcomes)
    figures = {metric: [mean_over_seeds(values(found, metric)) for _, _, found in rows] for metric in METRICS}
    order = [what.metric, *(metric for metric in METRICS if metric != what.metric)]
    criteria = [_criteria(found) for _, _, found in rows]
    names = list(dict.fromkeys(name for found in criteria for name in found))
    table = []
    for number, (point, _, found) in enumerate(rows):
        pairs = [(figures[metric][number], marks(figures[metric])[number]) for metric in order]
        cells = [cell(*pair, len(what.seeds), state(found)) for pair in pairs]
        free = [f"{criteria[number][name]:.4g}" if name in criteria[number] else "-" for name in names]
        table.append([", ".join(point), *cells, *free])
    head = [", ".join(what.fields), *(f"{words(metric)}, %" for metric in order), *map(_words, names)]
    lines = [f"# Sweep over {', '.join(what.fields)}, {counted(len(what.seeds), 'seed')}", "", ORACLE, ""]
    lines += ["**Bold**: the best. †: within one std of it, the best's own std over seeds. Mean ± std over seeds, of "
              "the final models; the criteria are means over seeds.", "", *markdown(head, table)]  # fmt: skip
    lines += _chosen(rows, criteria, names, what)
    if why := not_run(outcomes):
        lines += ["", "## Not there, and why", "", *why]
    write_lines(out / "table.md", lines)
    return [out / "table.md", _draw(what, outcomes, out / "plot.png")]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _chosen(
    rows: Sequence[Line],
    criteria: Sequence[Mapping[str, float]],
    names: Sequence[str],
    what: Sweep,
) -> list[str]:
    """What each criterion would have taken, and what that is worth."""
    from fastget.evaluation.selection import CRITERIA

    directions: Mapping[str, bool] = {str(name): more for name, more in CRITERIA.items()}
    lines = []
    for name in names:
        known = [(found[name], row) for found, row in zip(criteria, rows, strict=True) if name in found]
        best, (point, figure, _) = (max if directions[name] else min)(known, key=lambda one: one[0])
        chosen = ", ".join(f"{key}={value}" for key, value in zip(what.fields, point, strict=True))
        worth = f": {words(what.metric)} {shown(figure)} %" if figure else ""
        which = "the most" if directions[name] else "the least"
        lines.append(f"- by {_words(name)} ({which}, {best:.4g}): {chosen}{worth}")
    return ["", "## Chosen without labels", "", *lines] if lines else []


def _draw(what: Sweep, outcomes: Sequence[Outcome], file: Path) -> Path:
    """One field: a line; two: a heat map; more: a line for each, over all values of the others."""
    found, metric = by_point(what, outcomes), words(what.metric)
    if len(what.fields) == 2:
        first, second = what.fields
        cells = {(p[0], p[1]): mean_over_seeds(values(outcome, what.metric)) for p, outcome in found.items()}
        return draw_grid((first, second), (what.fields[first], what.fields[second]), cells, metric, file)
    lines: dict[str, dict[str, Mean | None]] = {}
    for number, (key, each) in enumerate(what.fields.items()):
        lines[key] = {}
        for value in each:
            parts = [values(outcome, what.metric) for p, outcome in found.items() if p[number] == value]
            lines[key][value] = mean_over_tasks([part for part in parts if part])
    return draw_lines(lines, metric, file, ", of the mean over the other fields' values" if len(lines) > 1 else "")

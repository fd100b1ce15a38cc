"""The page: everything in one HTML file, which opens without network, server or any other file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fastget import __version__
from fastget.common.files import write_atomically, writing
from fastget.common.text import and_more
from fastget.report import curves, detail
from fastget.report.detail import images
from fastget.report.embedding import Projection, embedding
from fastget.report.figure import Figure
from fastget.report.read import Group, Run, protocol_of
from fastget.runs.sinks.display import percent, verdict_lines, with_std
from fastget.runs.summary import FIGURES, SeedSummary, over_seeds

SECTIONS = {"overview": "Overview", "training": "Training", "closer": "A closer look", "cost": "Cost", "setup": "Setup"}
SAID = 20  # findings that the page names one by one
DETAILED = 6  # groups that are looked at more closely, by their first run: a page of all would be too large


class Report(NamedTuple):
    """All that a page shows, and all that is drawn to files."""

    groups: list[Group]
    figures: list[Figure]  # over all runs
    details: list[tuple[str, Run, list[Figure]]]  # of the first run of each group


def make_report(
    groups: list[Group],
    *,
    projection: Projection = "auto",  # of the features
    root: Path | None = None,  # where the images are now
    detailed: int = DETAILED,
    working_on: Callable[[str], object] = lambda text: None,  # told what takes a while
) -> Report:
    """Every figure of these runs."""
    shared = [curves.convergence, curves.losses, curves.throughput, curves.where_the_time_went]
    details = []
    for group in groups[:detailed]:
        run = group.runs[0]
        name = f"{group.name}, seed {run.seed}" if len(group.runs) > 1 else group.name
        working_on(name)
        own = [detail.per_class, detail.confusion, detail.confidence, detail.prior, detail.pseudo_labels]
        found = [*(make(run) for make in own), embedding(run, projection), images(run, root)]
        details.append((name, run, found))
    return Report(groups, [make(groups) for make in shared], details)


def write_page(report: Report, file: Path) -> None:
    """The page as `file`, whole or not at all."""
    with writing(file):
        write_atomically(file, render(report).encode("utf-8", "replace"))


def render(report: Report) -> str:
    """The page's text. What comes from a run is escaped: a class may be called anything."""
    groups, details = report.groups, report.details
    every = [*report.figures, *(details[0][2] if details else [])]
    data = {
        "figures": [figure.to_dict() for figure in report.figures],
        "runs": [{"name": name, "figures": [figure.to_dict() for figure in own]} for name, _, own in details],
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_part("page.html")).render(
        title=page_title(groups),
        subtitle=_subtitle(groups),
        sections=list(SECTIONS.items()),
        verdict=_verdict(groups),
        notes=_notes(report),
        cards=_cards(groups[0]) if len(groups) == 1 else [],
        table=_table(groups) if len(groups) > 1 else None,
        titles={figure.id: figure.title for figure in every},
        runs=[name for name, _, _ in details],
        setups=[{"name": name, "facts": facts(run), "yaml": _yaml(run)} for name, run, _ in details],
        version=__version__,
        css=Markup(_part("page.css")),
        js=Markup(_part("page.js")),
        data=_as_script(data),
    )


def _part(name: str) -> str:
    return files("fastget.report").joinpath(name).read_text(encoding="utf-8")


def _as_script(data: Any) -> Markup:
    """JSON that cannot end the element that it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


# --- in words ------------------------------------------------------------------------------------


def page_title(groups: Sequence[Group]) -> str:
    """The task; where there are several, the data."""
    runs = [group.runs[0] for group in groups]
    tasks = dict.fromkeys(f"{_stem(run.value('data.source'))} → {_stem(run.value('data.target'))}" for run in runs)
    if len(tasks) == 1:
        return next(iter(tasks))
    return and_more(list(dict.fromkeys(str(run.value("data.name")) for run in runs)))


def _stem(domain: object) -> str:
    """A domain's name; a list file's without folders and ending."""
    return Path(str(domain)).stem if str(domain).endswith(".txt") else str(domain)


def _subtitle(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    names = and_more(list(dict.fromkeys(group.runs[0].title for group in groups)))
    data = and_more(list(dict.fromkeys(f"{run.value('data.name')} ({protocol_of(run)})" for run in runs)), 3)
    steps = sorted({run.steps for run in runs})
    length = f"{steps[0]:,} steps" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,} steps"
    count = f"{len(runs)} runs" if len(runs) > 1 else f"seed {runs[0].seed}"
    return f"{names} on {data} · {count} · {length}"


def _verdict(groups: Sequence[Group]) -> list[str]:
    """What is known to be wrong with the runs, a paragraph each."""
    found = []
    for group in groups:
        summary = summary_of(group)
        named = f"{group.name}: " if len(groups) > 1 else ""
        found += [f"{named}{text}" for text in (verdict_lines(summary) if summary else [])]
    return found if len(found) <= SAID else [*found[:SAID], f"and {len(found) - SAID} more: summary.json of each run"]


def _notes(report: Report) -> list[str]:
    runs = [run for group in report.groups for run in group.runs]
    notes = []
    if unfinished := [str(run.folder) for run in runs if run.summary is None]:
        notes.append(f"Not ended yet, and shown as far as they are: {and_more(unfinished)}.")
    if not any(run.labelled for run in runs) and len(unfinished) < len(runs):
        notes.append("The target has no labels: this page shows what can be said without them.")
    if (left := len(report.groups) - len(report.details)) > 0:
        notes.append(
            f"The closer look is at {len(report.details)} of {len(report.groups)} groups; {left} are left out."
        )
    return notes


def summary_of(group: Group) -> Mapping[str, Any]:
    """The figures of its finished runs, with std over seeds; empty if none has ended."""
    done = [run.summary for run in group.runs if isinstance(run.summary, SeedSummary)]
    if not done:
        return {}
    return over_seeds(done) if len(done) > 1 else done[0]


def _cards(group: Group) -> list[dict[str, str]]:
    """The headline."""
    summary, run = summary_of(group), group.runs[0]
    cards: list[tuple[str, str, str]] = []  # name, value, and more of it
    seeds = f"final model, {len(group.runs)} seeds" if len(group.runs) > 1 else "final model"
    before, now = (summary.get("source_only") or {}).get("accuracy"), summary.get("accuracy")
    for name, words in zip(FIGURES, ("Accuracy", "Mean class accuracy"), strict=True):
        if summary.get(name) is not None:
            std = summary.get(f"{name}_std")
            cards.append((words, percent(summary[name]), seeds if std is None else f"± {100 * std:.1f}, {seeds}"))
    if before is not None and now is not None:
        cards.append(("Before adaptation", percent(before), "accuracy at the end of the warm-up"))
        cards.append(("Gain", f"{100 * (now - before):+.1f}", "points of accuracy"))
    if not cards and run.predictions:
        sure = sum(row.confidence for row in run.predictions) / len(run.predictions)
        cards.append(("Mean confidence", percent(sure), "no labels to compare with"))
        named = len({row.prediction for row in run.predictions})
        cards.append(("Classes predicted", f"{named:,}", f"of {len(run.classes):,}"))
    if summary:
        target = f"{summary['images'].get('target', 0):,}"
        cards.append(("Target images", target, f"{len(run.classes):,} classes"))
    if run.timing:
        rate = f"{run.timing[-1]['images_per_second']:,.0f}"
        cards.append(("Images per second", rate, str(run.environment().get("device", ""))))
    return [dict(zip(("name", "value", "more"), card, strict=True)) for card in cards]


def _table(groups: Sequence[Group]) -> dict[str, Any]:
    """A row a group."""
    head = ["", "seeds", "accuracy", "mean class accuracy", "before adaptation", "gain", "steps", "images/s"]
    rows = []
    for group in groups:
        summary = summary_of(group)
        figures = [with_std(summary, name) if summary else "not ended" for name in FIGURES]
        before, now = (summary.get("source_only") or {}).get("accuracy"), summary.get("accuracy")
        gain = "-" if before is None or now is None else f"{100 * (now - before):+.1f}"
        rates = [run.timing[-1]["images_per_second"] for run in group.runs if run.timing]
        rate = f"{sum(rates) / len(rates):,.0f}" if rates else "-"
        steps = f"{max(run.steps for run in group.runs):,}"
        rows.append([group.name, str(len(group.runs)), *figures, percent(before), gain, steps, rate])
    return {"head": head, "rows": rows}


def facts(run: Run) -> list[tuple[str, str]]:
    """What was run on what."""
    summary, machine = run.summary, run.environment()
    found: dict[str, object] = {
        "method": run.title,
        "recipe": run.value("method.recipe"),
        "data": f"{run.value('data.name')}, {protocol_of(run)}",
        "source": run.value("data.source"),
        "target": run.value("data.target"),
        "network": f"{run.value('network.name')}, weights {run.value('network.weights')}",
        "image size": f"{run.value('data.resize')} resized, {run.value('data.crop')} cropped",
        "seed": run.seed,
        "steps": f"{run.steps:,} of {run.value('train.batch_size')} images from each domain",
        "learning rate": run.value("optim.lr"),
    }
    if summary is not None:
        found["images"] = ", ".join(f"{role.replace('_', ' ')} {count:,}" for role, count in summary.images.items())
        found["settings"] = ", ".join(f"{key}={value}" for key, value in summary.settings.items())
        found["left out"] = and_more(summary.left_out)
    if machine:
        versions = {name: version for name, version in machine.get("versions", {}).items() if version}
        found["device"] = machine.get("device")
        found["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
        found["commit"] = machine.get("commit")
        found["command"] = " ".join(["fastget", *machine.get("command", [])])
    found["folder"] = run.folder
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]


def _yaml(run: Run) -> str:
    return yaml.safe_dump({name: dict(section) for name, section in run.config.items()}, sort_keys=False)

"""A model card of a run: Markdown under the YAML that Hugging Face reads (license, tags, datasets, model-index)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from fastget import __version__
from fastget.common.text import and_more
from fastget.report.page import facts, page_title, summary_of
from fastget.report.read import Group, Run, protocol_of
from fastget.runs.sinks.display import verdict_lines, with_std
from fastget.runs.summary import FIGURES

NAMES = {"accuracy": "Accuracy", "mean_class_accuracy": "Mean class accuracy"}
SHOWN = 100  # classes that the card names one by one


def model_card(group: Group, *, name: str | None = None, license: str = "unknown") -> str:
    """The card of a group's runs. ValueError if none of them has ended: there is nothing to say of it yet."""
    summary, run = summary_of(group), group.runs[0]
    if not summary:
        raise ValueError(f"{run.folder} has not ended, so that there are no figures for a card: go on by --resume auto")
    name = name or f"{run.value('data.name')}-{run.title.replace(' ', '-')}"
    head = yaml.safe_dump(metadata(run, summary, name, license), sort_keys=False, allow_unicode=True)
    parts = [f"---\n{head}---\n", f"# {name}\n", _introduction(group, summary)]
    parts += [_verdict(run, summary), _results(run, summary), _use(run), _training(run), _limits(run, summary)]
    return "\n".join(part for part in parts if part)


def metadata(run: Run, summary: Mapping[str, Any], name: str, license: str) -> dict[str, Any]:
    """The card's YAML. A target without labels gives no result."""
    known = [figure for figure in FIGURES if summary[figure] is not None]
    content: dict[str, Any] = {
        "license": license,
        "library_name": "fastget",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "domain-adaptation", f"method:{run.title}", protocol_of(run).split(",")[0]],
        "datasets": [str(run.value("data.name"))],
    }
    if not known:
        return content
    result = {
        "task": {"type": "image-classification", "name": f"Domain adaptation ({protocol_of(run)})"},
        "dataset": {"type": str(run.value("data.name")), "name": f"{run.value('data.name')}, {title_of_run(run)}"},
        "metrics": [
            {"type": "accuracy", "name": NAMES[figure], "value": round(100 * summary[figure], 2)} for figure in known
        ],
    }
    return content | {"metrics": ["accuracy"], "model-index": [{"name": name, "results": [result]}]}


def title_of_run(run: Run) -> str:
    return page_title([Group("", [run])])


def _introduction(group: Group, summary: Mapping[str, Any]) -> str:
    run, images = group.runs[0], summary["images"]
    labels = ", and a few with labels" if run.value("data.setting") == "ssda" else ", without their labels"
    many = f" The figures are means over {len(group.runs)} seeds." if len(group.runs) > 1 else ""
    return (
        f"An image classifier of {len(run.classes):,} classes, a `{run.value('network.name')}` adapted from "
        f"**{run.value('data.source')}** ({images.get('source', 0):,} labelled images) to "
        f"**{run.value('data.target')}** ({images.get('target', 0):,} images{labels}) by `{run.title}` "
        f"with fastget {__version__}.{many}\n"
    )


def _verdict(run: Run, summary: Mapping[str, Any]) -> str:
    """What is known to be wrong, and what of the classes is therefore not told; empty: nothing is."""
    lines = [f"- {text}" for text in verdict_lines(summary)]
    if run.untold_classes:
        lines.append(f"- {_plain(run.untold_classes)}")
    return "\n".join(["## Verdict", "", *lines]) + "\n" if lines else ""


def _results(run: Run, summary: Mapping[str, Any]) -> str:
    if summary["accuracy"] is None:
        return "## Results\n\nThe target has no labels: accuracy is not known.\n"
    lines = ["## Results", "", f"On {run.value('data.target')}, the final model:", "", "| | accuracy | mean class |"]
    lines += ["| --- | --- | --- |"]
    if before := summary["source_only"]:
        lines.append(f"| before adaptation | {with_std(before, FIGURES[0])} | {with_std(before, FIGURES[1])} |")
    lines.append(f"| **adapted** | {with_std(summary, FIGURES[0])} | {with_std(summary, FIGURES[1])} |")
    known = {name: value for name, value in summary["per_class_accuracy"].items() if value is not None}
    lowest = sorted(known.items(), key=lambda pair: pair[1])[:3]
    if lowest:
        words = ", ".join(f"{_plain(name)} ({100 * value:.1f} %)" for name, value in lowest)
        lines += ["", f"Lowest by class: {words}."]
    return "\n".join(lines) + "\n"


def _use(run: Run) -> str:
    shown = and_more([_plain(name) for name in run.classes], SHOWN)
    if run.value("data.name") == "features":
        how = "It takes stored features in place of images: `fastget eval --checkpoint RUN --root FEATURES`."
    else:
        how = (
            "```\nfastget predict --checkpoint model.safetensors IMAGES... > labels.csv\n```\n\n"
            f"Images are resized to {run.value('data.resize')} pixels on both sides and cropped at the centre to "
            f"{run.value('data.crop')}. `fastget export --checkpoint RUN --out model.safetensors` makes the file."
        )
    return f"## Use\n\n{how}\n\nClasses: {shown}.\n"


def _training(run: Run) -> str:
    private = ("folder", "command", "left out")  # places of the machine that it was made on
    rows = [f"| {name} | {_plain(value)} |" for name, value in facts(run) if name not in private]
    return "\n".join(["## Training", "", "| | |", "| --- | --- |", *rows]) + "\n"


def _limits(run: Run, summary: Mapping[str, Any]) -> str:
    lines = ["## Limits", "", "- It gives every image one of its classes, also one that shows none of them."]
    lines.append("- It was adapted to one target: images of other domains were not tried.")
    if summary["accuracy"] is not None:
        given = "But for the few that are given, labels" if run.value("data.setting") == "ssda" else "Labels"
        lines.append(f"- {given} of the target were used for the figures above only, never to train.")
    elif run.predictions:
        lines.append("- Its accuracy is not known.")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Without what Markdown would take for a table's end."""
    return " ".join(text.split()).replace("|", "\\|")

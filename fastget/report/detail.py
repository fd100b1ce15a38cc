"""The figures of one run: its classes, confusions, confidence, prior, pseudo-labels, and images worth a look.

Shapes: N target images, C classes.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastget.config import make_config
from fastget.data.decode import BadImage, read_image
from fastget.data.domains import find_domains
from fastget.evaluation.sample import SURE
from fastget.report.figure import Figure, choice, rounded, series
from fastget.report.read import PredictedImage, Run

BINS = 20  # of the confidence
FEW = 10  # classes whose shares are drawn as lines
UNFINISHED = "the run has not ended: predictions are written when it does"
NO_LABELS = "the target has no labels to compare with"
OLDER = "was made by a version that did not store it, or with train.watch=0"


def per_class(run: Run) -> Figure:
    """A row a class: images, predictions, accuracy, shares, and whether it is probably absent."""
    figure = Figure("classes", "Classes", "classes")
    if not run.predictions:
        return figure.empty(UNFINISHED)
    C = len(run.classes)
    predicted = np.bincount(run.pairs[:, 1], minlength=C)
    counts = np.bincount(run.pairs[run.pairs[:, 0] >= 0, 0], minlength=C)
    before = _accuracy_before(run)
    rows = []
    for c, name in enumerate(run.classes):
        row: dict[str, Any] = {"name": name, "predicted": int(predicted[c])}
        if run.labelled and run.summary is not None:
            row |= {"images": int(counts[c]), "accuracy": _percent(run.summary.per_class_accuracy[name])}
            row["before"] = _percent(before.get(c))
        row |= _estimate(run, c)
        rows.append(row)
    absent = [row["name"] for row in rows if row.get("absent")]
    words = "Click a heading to sort."
    if run.labelled and any(row["before"] is not None for row in rows):
        words += " The tick on a bar is the accuracy before adaptation, on the run's sample of the target."
    words = f"{run.untold_classes} {words}" if run.untold_classes else words
    return figure.of(words, {"rows": rows, "absent": absent, "labelled": run.labelled})


def _accuracy_before(run: Run) -> dict[int, float]:
    """By class, of the sample at the end of the warm-up."""
    sample = run.sample("before")
    if sample is None:
        return {}
    labels, right = sample["labels"], sample["predictions"] == sample["labels"]
    return {int(c): float(right[labels == c].mean()) for c in np.unique(labels[labels >= 0])}


def _estimate(run: Run, c: int) -> dict[str, Any]:
    """What the run says of a class's share: its classes.csv, else the last shares that the method gave, unless they
    are not to be told."""
    if run.estimates:
        row = run.estimates[c]
        shares = {key: _percent(_number(row.get(key))) for key in ("share", "low", "high", "true_share")}
        return shares | {"absent": row.get("probably_absent") == "true"}
    told = run.labels and not run.untold_classes
    last = next(iter(run.labels[-1]["shares"].values()), None) if told else None
    true = None if run.true_shares is None else run.true_shares[c]
    return {"share": None if last is None else _percent(last[c]), "true_share": _percent(true)}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _percent(share: float | None) -> float | None:
    return None if share is None else rounded(100 * share)


def confusion(run: Run) -> Figure:
    """Label by prediction: the cells that are not empty."""
    figure = Figure("confusion", "Confusion matrix", "matrix")
    if not run.labelled:
        return figure.empty(NO_LABELS if run.predictions else UNFINISHED)
    C = len(run.classes)
    table = np.bincount(run.pairs[:, 0] * C + run.pairs[:, 1], minlength=C * C).reshape(C, C)
    cells = [[int(i), int(j), int(table[i, j])] for i, j in zip(*np.nonzero(table), strict=True)]
    wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: -cell[2])[:5]
    often = [f"{run.classes[i]} taken for {run.classes[j]} ({n})" for i, j, n in wrong]
    words = "Rows are labels, columns predictions; a cell's colour is its share of the row."
    words += f" Most often: {', '.join(often)}." if often else " No image was mistaken."
    return figure.of(words, {"classes": run.classes, "cells": cells})


def confidence(run: Run) -> Figure:
    """How sure the network is of the target, and how often it is right when it is."""
    figure = Figure("confidence", "Confidence", "histogram")
    if not run.predictions:
        return figure.empty(UNFINISHED)
    sure = np.array([row.confidence for row in run.predictions])
    edges = np.linspace(0, 1, BINS + 1)
    right = run.pairs[:, 0] == run.pairs[:, 1]
    parts = [("right", right), ("wrong", ~right)] if run.labelled else [("all", np.ones(len(sure), dtype=np.bool_))]
    bars = [{"name": name, "counts": np.histogram(sure[mask], edges)[0].tolist()} for name, mask in parts]
    words = f"The mean confidence is {100 * sure.mean():.1f} %"
    words += f", the accuracy {100 * right.mean():.1f} %." if run.labelled else "; without labels, not how right it is."
    return figure.of(words, {"edges": edges.round(4).tolist(), "bars": bars})


def prior(run: Run) -> Figure:
    """The shares that the method takes the classes to have, at each evaluation, against those of the labels."""
    figure = Figure("prior", "Estimated prior", "shares")
    lines = [line for line in run.labels if line["shares"]]
    if not lines or not run.classes:
        why = f"{run.title} estimates no shares of the classes" if run.labels else f"the run {OLDER}"
        return figure.empty(why)
    tag = next(iter(lines[-1]["shares"]))
    lines = [line for line in lines if tag in line["shares"]]
    steps, shares = [line["step"] for line in lines], np.array([line["shares"][tag] for line in lines])
    data: dict[str, Any] = {"classes": run.classes, "steps": steps, "shares": _percents(shares)}
    words = "Drag the slider to go through the evaluations."
    if run.summary is not None and (told := run.summary.agreement) is not None:
        words = (
            f"Two labellers agree on {100 * told['agreement']:.1f} % of the target (kappa {told['kappa']:.2f}): trust "
            f"{told['trust']:.2f}, from 0, none, to 1, in full. {words}"
        )
    if run.true_shares is not None:
        off = np.abs(shares - run.true_shares).sum(1) / 2
        data |= {"true": _percents(run.true_shares), "distance": _percents(off)}
        words += f" Ticks are the labels' shares; in the end {100 * off[-1]:.1f} % of the mass lies elsewhere."
    data["over_time"] = {"x": "step", "choices": _over_time(run, steps, shares), "marks": []}
    return figure.of(words, data)


def _over_time(run: Run, steps: list[int], shares: NDArray[np.float64]) -> list[dict[str, Any]]:
    """How far the shares are from those of the labels, and the shares themselves, of the largest few classes."""
    choices = []
    if run.true_shares is not None:
        off = 50 * np.abs(shares - run.true_shares).sum(1)
        drawn = [series("off the labels' shares", 0, list(zip(steps, off.tolist(), strict=True)))]
        choices.append(choice("distance from the labels", "%", drawn))
    largest = sorted(np.argsort(-shares[-1], kind="stable")[:FEW].tolist())
    drawn = [
        series(run.classes[c], i, list(zip(steps, (100 * shares[:, c]).tolist(), strict=True)))
        for i, c in enumerate(largest)
    ]
    name = "each class" if len(run.classes) <= FEW else f"the {FEW} largest classes"
    return [*choices, choice(name, "%", drawn)]


def _percents(shares: Any) -> Any:
    return np.round(100 * shares, 3).tolist()


def pseudo_labels(run: Run) -> Figure:
    """What the labels that the method trains on are worth: accuracy, and the share of sure ones."""
    figure = Figure("pseudo", "Pseudo-labels", "lines")
    names = list(dict.fromkeys(name for line in run.labels for name in line["quality"]))
    if not names:
        return figure.empty(f"the run {OLDER}")
    kinds = {
        "accuracy": "accuracy",
        "coverage": f"coverage (confidence ≥ {SURE:g})",
        "accuracy_sure": "accuracy where covered",
    }
    choices = []
    for key, words in kinds.items():
        drawn = []
        for colour, name in enumerate(names):
            points = [
                (line["step"], 100 * line["quality"][name][key])
                for line in run.labels
                if line["quality"].get(name, {}).get(key) is not None
            ]
            if points:
                drawn.append(series(name, colour, points, dash=name == "network"))
        if drawn:
            choices.append(choice(words, "%", drawn))
    words = "On the run's sample of the target; dashed: the network's own predictions."
    if names == ["network"]:
        words = f"{run.title} names no pseudo-labels: the network's own predictions, on the run's sample of the target."
    return figure.of(words, {"x": "step", "choices": choices, "marks": []})


SIDE, SHOWN = 96, 24  # pixels; images of a kind


def images(run: Run, root: Path | None = None) -> Figure:
    """The least certain images; with labels also the most confidently wrong ones."""
    figure = Figure("images", "Images worth a look", "images")
    if not run.predictions:
        return figure.empty(UNFINISHED)
    try:
        folder = _target_root(run, root)
    except ValueError as error:
        first = str(error).partition(". ")[0].rstrip(".")  # what may help is for the command line
        return figure.empty(f"the images cannot be found: {first}. Tell where by --root")
    if folder is None:
        return figure.empty("the run was shown stored features: there are no images to show")
    uncertain = sorted(run.predictions, key=lambda row: row.confidence)
    kinds = [("Hardest: the least certain" if run.labelled else "The least certain", uncertain)]
    if run.labelled:
        wrong = sorted((row for row in run.predictions if row.label != row.prediction), key=lambda row: -row.confidence)
        kinds.insert(0, ("Most confidently wrong", wrong))
    cards = {name: _cards(rows, folder) for name, rows in kinds if rows}
    if not any(card["src"] for kind in cards.values() for card in kind):
        return figure.empty(f"none of them can be read in {folder}. Tell where by --root")
    words = "Under each: the prediction and how sure it was" + (", then the label." if run.labelled else ".")
    return figure.of(words, {"kinds": [{"name": name, "images": kind} for name, kind in cards.items()]})


def _target_root(run: Run, root: Path | None) -> Path | None:
    """The folder that the paths of predictions.csv start from; None where they are no images."""
    if run.value("data.name") == "features":
        return None
    stored = {f"data.{name}": value for name, value in run.config.get("data", {}).items()}
    data = make_config(stored | ({"data.root": str(root)} if root is not None else {})).data
    return find_domains(data)[1].root


def _cards(rows: Sequence[PredictedImage], folder: Path) -> list[dict[str, Any]]:
    return [
        {
            "src": _thumbnail(os.path.join(folder, row.path)),
            "path": row.path.encode("utf-8", "replace").decode(),  # a name that is no UTF-8
            "label": row.label,
            "prediction": row.prediction,
            "confidence": row.confidence,
        }
        for row in rows[:SHOWN]
    ]


def _thumbnail(file: str) -> str:
    """A data: address; empty where the file cannot be read any more."""
    try:
        image = read_image(file, SIDE)
    except (BadImage, OSError):
        return ""
    content = io.BytesIO()
    image.save(content, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"

"""Images worth a look, small enough to lie in the page: the least certain ones, and those confidently mistaken."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastget.config import make_config
from fastget.data.decode import BadImage, read_image
from fastget.data.domains import find_domains
from fastget.report.detail import UNFINISHED
from fastget.report.figure import Figure
from fastget.report.read import PredictedImage, Run

SIDE, SHOWN = 96, 24  # pixels; images of a kind


def images(run: Run, root: Path | None = None) -> Figure:
    """The least certain images; with labels also the most confidently wrong ones."""
    title = "Images worth a look"
    if not run.predictions:
        return Figure("images", title, "images", why=UNFINISHED)
    try:
        folder = _target_root(run, root)
    except ValueError as error:
        first = str(error).partition(". ")[0].rstrip(".")  # what may help is for the command line
        return Figure("images", title, "images", why=f"the images cannot be found: {first}. Tell where by --root")
    if folder is None:
        return Figure("images", title, "images", why="the run was shown stored features: there are no images to show")
    uncertain = sorted(run.predictions, key=lambda row: row.confidence)
    kinds = [("Hardest: the least certain" if run.labelled else "The least certain", uncertain)]
    if run.labelled:
        wrong = sorted((row for row in run.predictions if row.label != row.prediction), key=lambda row: -row.confidence)
        kinds.insert(0, ("Most confidently wrong", wrong))
    cards = {name: _cards(rows, folder) for name, rows in kinds if rows}
    if not any(card["src"] for kind in cards.values() for card in kind):
        return Figure("images", title, "images", why=f"none of them can be read in {folder}. Tell where by --root")
    words = "Under each: the prediction and how sure it was" + (", then the label." if run.labelled else ".")
    return Figure(
        "images", title, "images", words, {"kinds": [{"name": name, "images": kind} for name, kind in cards.items()]}
    )


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

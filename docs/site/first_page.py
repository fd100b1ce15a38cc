"""The picture of the site's first page, drawn from two runs on `digits`:

    fastget train --method source-only --out runs/before
    fastget train --out runs/after
    python docs/site/first_page.py runs/before runs/after      # writes docs/images/digits.svg

The target's images are a draw by chance, not a choice; their labels colour the predictions and nothing else.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from svg import Pen

from fastget.data.digits import digits_root

OUT = Path(__file__).resolve().parents[1] / "images" / "digits.svg"
ROWS, COLUMNS = 3, 10


def predictions(run: Path) -> dict[str, tuple[str, str]]:
    """Image -> (label, prediction)."""
    with (run / "predictions.csv").open(encoding="utf-8") as file:
        return {row["path"]: (row["label"], row["prediction"]) for row in csv.DictReader(file)}


def accuracy(run: Path) -> float:
    return 100 * float(json.loads((run / "summary.json").read_text(encoding="utf-8"))["accuracy"])


def draw(before: Path, after: Path) -> Pen:
    root, chance = digits_root(), random.Random(1)
    pen = Pen(560, 400, "Digits rendered from fonts teach a network to read handwritten ones, without a label of these")
    fonts = [line.split()[0] for line in (root / "fonts.txt").read_text(encoding="utf-8").splitlines()]
    pen.text(20, 30, "You have: labelled images of one kind", 14, "E", bold=True)
    for n in range(COLUMNS):
        file = chance.choice([path for path in fonts if path.startswith(f"fonts/{n}/")])
        pen.image(20 + 53 * n, 42, 43, (root / file).read_bytes())
        pen.text(41.5 + 53 * n, 101, str(n), 13, "E", bold=True, anchor="middle", mono=True)
    pen.text(20, 138, "You want: labels of another kind", 14, "M", bold=True)
    pen.text(540, 138, "before → after", 12, "soft", anchor="end")
    first, then = predictions(before), predictions(after)
    for n, path in enumerate(chance.sample(sorted(then), ROWS * COLUMNS)):
        x, y = 20 + 53 * (n % COLUMNS), 150 + 66 * (n // COLUMNS)
        file = next(found for found in (root / path, Path(path)) if found.is_file())
        pen.image(x, y, 43, file.read_bytes())
        for (label, told), shift in ((first[path], 9), (then[path], 34)):
            pen.text(x + shift, y + 57, told, 13, "right" if told == label else "wrong", True, "middle", True)
        pen.text(x + 21.5, y + 56, "→", 11, "soft", anchor="middle")
    bars = (("source only", accuracy(before), "soft"), ("GeT", accuracy(after), "M"))
    for n, (words, value, colour) in enumerate(bars):
        y = 354 + 20 * n
        pen.text(20, y + 11, words, 12, "ink", bold=n == 1)
        pen.rect(104, y, 380, 14, fill="fill", r=3)
        pen.rect(104, y, 3.8 * value, 14, fill=colour, r=3)
        pen.text(540, y + 11.5, f"{value:.1f} %", 13, "ink", bold=True, anchor="end")
    return pen


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:3])).save(OUT)

"""`fastget demo`: source-only and GeT on the embedded digits over a few seeds, a table, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fastget import methods
from fastget.archive.collect import FOLDER
from fastget.archive.record import DoneRun, RecordHead, build, write
from fastget.archive.statistics import metric_of
from fastget.config import make_config
from fastget.data.digits import digits_root
from fastget.data.lists import read_list
from fastget.runs.folder import METRICS, read_predictions
from fastget.runs.sinks import jsonl
from fastget.runs.sinks.display import results_table
from fastget.runs.summary import SeedSummary, read_summary
from fastget.training.train import Result, train

METHODS = ("source-only", "get")
COLOURS = ("#9a6324", "#1f6fb2")  # of each


def demo(
    out: Path, seeds: tuple[int, ...], console: Console | None = None, settings: dict[str, Any] | None = None
) -> int:
    """Both methods, the table, the picture; 0 when GeT gained, 1 when it did not."""
    console = console or Console()
    console.print("[bold]From rendered to handwritten digits[/], labels of the source only", highlight=False)
    results: dict[str, Result] = {}
    for method in METHODS:
        place = {"method.name": method, "train.out": str(out / method), "train.seeds": seeds}
        results[method] = train(make_config({**(settings or {}), **place}), console=console, brief=True)
    rows = [(method, results[method].summary) for method in METHODS]
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
    console.print(results_table(f"real digits, final models, {count}", rows))
    before, after = (summary.mean_class_accuracy for _, summary in rows)
    assert before is not None
    assert after is not None  # the digits are labelled
    gain = 100 * (after - before)
    better = f"[bold]GeT is {gain:.1f} points of mean class accuracy above source-only[/]"
    console.print(better if gain > 0 else f"GeT did not gain here: {gain:.1f} points", highlight=False)
    _write_results(results, seeds, out)
    picture = draw(results, seeds, out / "demo.png")
    console.print(f"picture: {picture.resolve()}", highlight=False, soft_wrap=True)
    return 0 if gain > 0 else 1


def _write_results(results: dict[str, Result], seeds: tuple[int, ...], out: Path) -> None:
    """As data: out/results/digits/uda/METHOD.json."""
    for method, result in results.items():
        found = [(folder, read_summary(folder)) for folder in (_seed_folder(result, seed) for seed in seeds)]
        runs = [DoneRun(folder, summary) for folder, summary in found if isinstance(summary, SeedSummary)]
        first = runs[0].summary
        row = RecordHead(
            data=first.data, setting=first.setting, method=method, base=first.base, recipe=first.recipe,
            title=_title(method), metric=metric_of(first.data), study="demo",
        )  # fmt: skip
        task = f"{first.source}->{first.target}"
        built = build(row, {task: [runs]}, task, {})
        write(out / FOLDER, [] if built is None else [built])


def _title(method: str) -> str:
    return methods.settings_of(method).title or method


def _seed_folder(result: Result, seed: int) -> Path:
    folder = result.folder / f"seed-{seed}"
    return folder if folder.is_dir() else result.folder


def accuracy_over_steps(folder: Path) -> tuple[list[int], list[float]]:
    """The evaluations of a run's metrics.jsonl."""
    evaluations = [line for line in jsonl.read(folder / METRICS) if line.get("accuracy") is not None]
    return [e["step"] for e in evaluations], [100 * e["mean_class_accuracy"] for e in evaluations]


def draw(results: dict[str, Result], seeds: tuple[int, ...], file: Path, columns: int = 16) -> Path:
    """Accuracy over steps of both methods, and a row of real digits with both predictions, mistakes marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(10, 5.6), dpi=150, layout="constrained")
    grid = figure.add_gridspec(2, columns, height_ratios=[3, 1])
    curve = figure.add_subplot(grid[0, :])
    for (method, result), colour in zip(results.items(), COLOURS, strict=True):
        for seed in seeds:
            steps, accuracy = accuracy_over_steps(_seed_folder(result, seed))
            label = _title(method) if seed == seeds[0] else None
            curve.plot(steps, accuracy, color=colour, alpha=0.85, marker="o", markersize=3, label=label)
    curve.set(xlabel="step", ylabel="mean class accuracy, %", ylim=(0, 100))
    curve.set_title("Rendered to real digits: accuracy on the real ones, a line a seed", loc="left")
    curve.grid(alpha=0.25)
    curve.legend(loc="lower right")

    root = digits_root()
    paths, labels = read_list(root / "handwritten.txt", root)
    guesses = {method: read_predictions(_seed_folder(result, seeds[0])) for method, result in results.items()}
    for column, row in enumerate(_spread(labels, columns)):
        cell = figure.add_subplot(grid[1, column])
        cell.imshow(plt.imread(root / paths[row]), cmap="gray")
        cell.set_xticks([])
        cell.set_yticks([])
        truth = str(labels[row])
        for line, method in enumerate(METHODS):
            guess = guesses[method][paths[row]]
            wrong = guess != truth
            cell.text(
                0.5, -0.25 - 0.42 * line, f"{guess} ✗" if wrong else guess, transform=cell.transAxes,
                ha="center", va="center", fontsize=9, color="#c0392b" if wrong else "black",
                weight="bold" if wrong else "normal",
            )  # fmt: skip
        if column == 0:
            for line, name in enumerate(map(_title, METHODS)):
                y = -0.25 - 0.42 * line
                cell.text(-0.15, y, name, transform=cell.transAxes, ha="right", va="center", fontsize=9)
    figure.savefig(file)
    plt.close(figure)
    return file


def _spread(labels: np.ndarray[Any, Any], count: int) -> list[int]:
    """Rows to show: the classes in turn, chosen by position alone, never by whether they were guessed."""
    by_class = [np.flatnonzero(labels == c) for c in range(10)]
    return [int(by_class[k % 10][37 + 11 * (k // 10)]) for k in range(count)]

"""What a run shows while it runs: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fastget.evaluation import Evaluation


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


class Display:
    """Progress of one seed's run."""

    def __init__(self, title: str, steps: int, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console()
        self.quiet = quiet
        self.steps = steps
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.progress.add_task(title, total=steps, figures="")

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def logged(self, step: int, losses: Mapping[str, float], speed: Mapping[str, float]) -> None:
        words = [f"loss {losses['loss']:.3f}"]
        if "loss_target" in losses:
            words.append(f"(source {losses['loss_source']:.3f}, g {losses['loss_g']:.3f}, f {losses['loss_f']:.3f})")
        words.append(f"lr {speed['lr']:.2g}, {speed['images_per_second']:,.0f} img/s")
        words.append(f"(data {100 * speed['data_wait']:.0f} %), {speed['memory_mib'] / 1024:.1f} GiB")
        self.progress.update(self.task, completed=step, figures=" ".join(words))

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        if evaluation.accuracy is None or self.quiet:
            return
        self.progress.console.print(
            f"  step {step:>6}/{self.steps}   target accuracy {percent(evaluation.accuracy)}   "
            f"mean class accuracy {percent(evaluation.mean_class_accuracy)}",
            highlight=False,
        )

    def warn(self, text: str) -> None:
        self.progress.console.print(f"[yellow]warning:[/] {text}", highlight=False)


def results_table(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Final accuracies: a row a method, mean and std over seeds where there are several."""
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("accuracy", justify="right")
    table.add_column("mean class accuracy", justify="right")
    for name, summary in rows:
        table.add_row(name, *(with_std(summary, field) for field in ("accuracy", "mean_class_accuracy")))
    return table


def with_std(summary: Mapping[str, Any], field: str) -> str:
    """`93.1 ± 0.4 %` for several seeds, `93.1 %` for one."""
    value, std = summary[field], summary.get(f"{field}_std")
    if value is None or std is None:
        return percent(value)
    return f"{100 * value:.1f} ± {100 * std:.1f} %"

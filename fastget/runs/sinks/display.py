"""What a run shows while it runs: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fastget.common import signals
from fastget.common.progress import NowAndThen
from fastget.common.text import escaped
from fastget.evaluation.score import Evaluation


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


class Display:
    """Progress of one seed's run."""

    def __init__(
        self,
        title: str,
        steps: int,
        console: Console | None = None,
        quiet: bool = False,
        brief: bool = False,  # without a terminal, of all evaluations the last alone
    ) -> None:
        self.console = console or Console()
        self.title, self.quiet = title, quiet
        self.steps = steps
        self.left, self.means = "ETA -:--", ""  # the time that is left, and the last losses, in words
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            expand=True,
        )
        self.task = self.progress.add_task(title, total=steps, left=self.left)
        self.phase = self.progress.add_task("evaluation", total=None, visible=False, left="")
        self.lines = NowAndThen()  # where there is no bar
        self.figures = Text(style="dim")
        self.said = Text(style="bold")  # to a signal
        self.live = Live(get_renderable=self._drawn, console=self.console, refresh_per_second=4, transient=True)
        self.shown = not quiet and self.console.is_terminal
        self.brief = brief and not self.shown

    def __enter__(self) -> Display:
        if self.shown:
            self.live.start()
        elif not self.quiet:  # a log has no bar to tell whose lines they are
            self.console.print(f"{self.title}: {self.steps:,} steps", highlight=False, markup=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drawn(self) -> Group:
        return Group(self.progress, *(text for text in (self.figures, self.said) if text.plain))

    def answer(self, text: str) -> None:
        """To a signal, at once, in the midst of anything. Below the bar, which a line of its own would tear, and which
        would be drawn over that line in a moment."""
        if self.shown:
            self.said.plain = f"fastget: {text}"
        else:
            signals.answer(text)

    def close(self) -> None:
        """The bar vanishes; what is printed from now on stands below what was."""
        if self.shown:
            self.live.stop()

    def logged(self, step: int, losses: Mapping[str, float], speed: Mapping[str, float], cost: str) -> None:
        """`cost` is of a step, in words; what the method adds to it is in `speed`."""
        words = [f"epoch {speed['epoch']:.1f}", f"loss {losses['loss']:.3f}"]
        parts = {name.removeprefix("loss_"): value for name, value in losses.items() if name.startswith("loss_")}
        if len(parts) > 1:
            words[-1] += f" ({', '.join(f'{name} {value:.2f}' for name, value in parts.items())})"
        words.append(f"lr {speed['lr']:.2g}")
        words.append(f"{speed['images_per_second']:,.0f} img/s")
        words.append(f"data wait {100 * speed['data_wait']:.0f} %")
        words.append(f"{speed['memory_mib'] / 1024:.1f} GiB")
        method, whole = speed["method_ms"], max(speed["step_ms"], 1e-9)
        added = f"of {whole:,.0f} ms the method's {method:,.1f} ({100 * method / whole:.0f} %)"
        self.means = words[1]
        self.figures.plain = f"{', '.join(words)}\n{cost}; {added}, and {speed['method_mib']:,.1f} MiB"

    def stepped(self, step: int, seconds_left: float) -> None:
        """A step is done; `seconds_left` counts the evaluations that are to come."""
        self.progress.update(self.task, completed=step)
        self.time_left(seconds_left)
        self.progress.update(self.phase, visible=False)
        if self._owed():
            self._line(f"step {step:>6}/{self.steps}", *filter(None, [self.means]), self.left)

    def time_left(self, seconds: float) -> None:
        """Until the run is done."""
        self.left = f"ETA {timedelta(seconds=round(seconds))}"
        self.progress.update(self.task, left=self.left)

    def looking(self, what: str, done: int, total: int) -> None:
        """A pass over images that is no training: an evaluation, say. Outside of a terminal a line now and then."""
        self.progress.update(self.phase, description=f"  {what}", completed=done, total=total, visible=done < total)
        if done < total and self._owed():
            self._line(f"{what}: {done:,} of {total:,} images", self.left)

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        if self.brief and step < self.steps:
            return
        words = [f"step {step:>6}/{self.steps}"]
        if evaluation.accuracy is not None:
            words.append(f"target accuracy {percent(evaluation.accuracy)}")
            words.append(f"mean class accuracy {percent(evaluation.mean_class_accuracy)}")
        elif (entropy := evaluation.label_free.get("entropy")) is not None:
            words.append(f"mean entropy {entropy:.3f}, no labels to compare with")
        if evaluation.validation is not None:
            words.append(f"validation {percent(evaluation.validation.mean_class_accuracy)}")
        if evaluation.of is not None:
            words.append(f"on {len(evaluation.index):,} of {evaluation.of:,} images")
        if len(words) > 1 and not self.quiet:
            self._line(*words)

    def _owed(self) -> bool:
        """Whether a log, which has no bar, has been silent for long."""
        return not self.shown and not self.quiet and self.lines.due()

    def _line(self, *words: str) -> None:
        self.console.print(f"  {'   '.join(words)}", highlight=False, markup=False, soft_wrap=True)
        self.lines.told()

    def warn(self, text: str) -> None:
        self.console.print(Text.assemble(("warning: ", "yellow"), escaped(text)), soft_wrap=True)


def show_verdict(console: Console, summary: Mapping[str, Any]) -> None:
    """What is known to be wrong, a line each."""
    for text in verdict_lines(summary):
        console.print(Text.assemble(("verdict: ", "bold yellow"), text), soft_wrap=True)


def verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    """In words; of several seeds each with its own."""
    return [f"seed {one['seed']}: {one['text']}" if "seed" in one else one["text"] for one in summary["verdict"]]


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

"""What a study shows while its runs are on."""

import io
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from fastget.studies.study import _shown


def test_the_answer_to_a_signal_stands_below_the_table() -> None:
    """A line of its own would be drawn over by the table half a second later."""
    out = io.StringIO()
    drawn: list[str] = []

    def run(ended: Callable[..., object], tick: Callable[[], object], say: Callable[[str], object]) -> None:
        say("SIGINT: every run saves and stops")
        for _ in range(2):
            tick()
            time.sleep(0.6)  # the screen's own thread draws twice a second
            drawn.append(out.getvalue())

    pool: Any = SimpleNamespace(jobs=[], left=[], running=1, waiting=[], outcomes=[], run=run)
    study: Any = SimpleNamespace(table=lambda outcomes: Table("method"))
    _shown(study, pool, Console(file=out, force_terminal=True, width=100))
    assert "fastget: SIGINT: every run saves and stops" in drawn[0].rpartition("1 running")[2]
    assert len(drawn[1]) > len(drawn[0])
    assert "fastget: SIGINT: every run saves and stops" in drawn[1].rpartition("1 running")[2]

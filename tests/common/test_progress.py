"""The progress bar: on a terminal, and gone at the end; elsewhere a line now and then."""

import io
import time

import pytest
from rich.console import Console

from fastget.common.progress import progress_bar


def test_a_bar_counts_what_it_is_told() -> None:
    screen = io.StringIO()
    with progress_bar("checking", 20, Console(file=screen, force_terminal=True, width=80)) as advance:
        advance(12)
        advance(8)
    assert "checking" in screen.getvalue()
    assert "20/20" in screen.getvalue()


def test_a_hidden_bar_writes_nothing() -> None:
    screen = io.StringIO()
    with progress_bar("checking", None, Console(file=screen, force_terminal=True), hidden=True) as advance:
        advance(3)
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("total", "of"), [(1000, " of 1,000"), (None, "")])
def test_a_log_has_lines(total: int | None, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = io.StringIO(), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with progress_bar("checking", total, Console(file=log)) as advance:
        for _ in range(10):
            now += 9
            advance(100)
    assert log.getvalue().splitlines() == [f"checking: 400{of}", f"checking: 800{of}"]

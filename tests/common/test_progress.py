"""The progress bar: on a terminal only, and gone at the end."""

import io

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

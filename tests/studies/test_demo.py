"""The demo on a short run: both methods, a table, a picture that can be opened."""

from pathlib import Path

from PIL import Image
from rich.console import Console

from fastget.studies.demo import accuracy_over_steps, demo


def test_demo(tmp_path: Path) -> None:
    console = Console(record=True, width=100, force_terminal=False)
    settings = {"train.max_steps": 40, "train.warmup_steps": 20, "train.eval_every": 20}
    code = demo(tmp_path / "d", (0,), console, settings)
    text = console.export_text()
    assert "source-only" in text
    assert "picture:" in text
    assert "get, seed 0: 40 steps" in text  # a heading a seed, and the last evaluation alone
    assert text.count("target accuracy") == 2
    steps, accuracy = accuracy_over_steps(tmp_path / "d" / "get")
    assert steps == [20, 40]
    before = accuracy_over_steps(tmp_path / "d" / "source-only")[1]
    assert code == (0 if accuracy[-1] > before[-1] else 1)
    with Image.open(tmp_path / "d" / "demo.png") as picture:
        assert picture.size[0] >= 1000

"""The pictures of the kernels show the launches that are counted."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from tests.documents.blocks import ROOT
from tests.pictures import this_fastget

SCRIPT = ROOT / "docs" / "site" / "kernels.py"
SHOWN = ROOT / "docs" / "images" / "kernels"


def test_they_are_what_would_be_drawn_now(tmp_path: Path) -> None:
    """In a process of its own: the script puts its folder on Python's path."""
    code = f"import runpy; from pathlib import Path; runpy.run_path({str(SCRIPT)!r})['main'](Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, env=this_fastget())
    drawn = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    shown = {file.name: file.read_text(encoding="utf-8") for file in SHOWN.iterdir()}
    assert sorted(drawn) == sorted(shown)
    for name, text in drawn.items():
        assert text == shown[name], f"{name}: run TRITON_INTERPRET=1 python {SCRIPT.relative_to(ROOT)}"
    assert "6 launches" in drawn["strip.svg"]
    assert importlib.util.find_spec("svg") is None

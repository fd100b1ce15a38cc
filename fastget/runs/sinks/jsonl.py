"""Files of one JSON object a line: metrics.jsonl, timing.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append(file: Path, values: Mapping[str, Any]) -> None:
    """One more line."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(values) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file: a killed run may have left a part of one. No line if there is no such file."""
    if not file.is_file():
        return []
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is damaged ({error}): remove it to go on without what it logged") from error

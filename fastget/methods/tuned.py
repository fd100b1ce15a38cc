"""The table of block sizes that `fastget tune` found for this card: kept in the user's cache, put to use by a backend.

A table is of one card, driver, Triton and state of the kernels' source: another of any of them, and it is not used.
A table whose times are the model's, as `fastget tune` makes on a CPU, is never used on a GPU.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
import torch

from fastget.common.files import write_atomically

FILE = "tune.json"
MODELLED = "the model's times, for want of a GPU"


@dataclass(frozen=True, kw_only=True)
class TunedEntry:
    """What one kernel does best with at one shape."""

    kernel: str  # "logits" or "backward"
    B: int
    C: int
    D: int
    precision: str
    config: dict[str, Any]
    microseconds: float
    rule: float  # microseconds of what the rules choose


def place() -> Path:
    """The file."""
    return Path(platformdirs.user_cache_dir("fastget")) / FILE


def kernels_version() -> str:
    """A hash of the source that a step runs."""
    from fastget import kernels

    folder = Path(str(kernels.__file__)).resolve().parent
    texts = (file.read_bytes() for file in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def key(device: torch.device) -> str:
    """What a table is of."""
    import triton

    if device.type == "cuda":
        card, driver = torch.cuda.get_device_name(device), getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
        named = f"{card}, driver {driver}"
    else:
        named = MODELLED
    return f"{named}, triton {triton.__version__}, kernels {kernels_version()}"


def read(device: torch.device) -> list[TunedEntry]:
    """This card's table; none where there is none. A damaged file is left out, with a word."""
    return _entries(_file().get(key(device), []))


def write(device: torch.device, entries: list[TunedEntry]) -> None:
    """Keep these, in place of what the table has of the same kernels and shapes."""
    kept = _file()
    new = {(e.kernel, e.B, e.C, e.D, e.precision): e for e in [*_entries(kept.get(key(device), [])), *entries]}
    kept[key(device)] = [asdict(entry) for entry in new.values()]
    place().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place(), json.dumps(kept, indent=1).encode())


def use(device: torch.device) -> int:
    """Hand this card's table to the kernels; how many entries it has. A CPU has none: there nothing was measured."""
    from fastget.kernels import configs
    from fastget.kernels.configs import from_dict

    found = read(device) if device.type == "cuda" else []
    table = {(e.kernel, e.B, e.C, e.D, e.precision): from_dict(e.kernel, e.config) for e in found}
    configs.use(table=table or None)
    return len(table)


@cache
def use_once(device: torch.device) -> None:
    """use(), at the first call of a process: what is chosen since then stays."""
    use(device)


def in_use(device: torch.device) -> str:
    """In words, for `fastget doctor`."""
    if device.type != "cuda":
        return "the rules of kernels/configs.py: no GPU here"
    found = read(device)
    if not found:
        return "the rules of kernels/configs.py: `fastget tune` has not run on this card, driver, triton and version"
    shapes = sorted({(e.B, e.C, e.D) for e in found})
    return f"{place()}, measured on this card, for {', '.join(map(str, shapes))}; the rules elsewhere"


def _file() -> dict[str, Any]:
    try:
        found = json.loads(place().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return _damaged(error)
    return found if isinstance(found, dict) else _damaged(ValueError("expected an object"))


def _entries(rows: Any) -> list[TunedEntry]:
    from fastget.kernels.configs import from_dict

    try:
        found = [TunedEntry(**row) for row in rows]
        for entry in found:
            from_dict(entry.kernel, entry.config)
    except (TypeError, ValueError) as error:
        _damaged(error)
        return []
    return found


def _damaged(error: Exception) -> dict[str, Any]:
    warnings.warn(
        f"{place()} is damaged ({error}) and is left out: the kernels take their block sizes from the rules; "
        "run `fastget tune` again, or delete the file",
        stacklevel=4,
    )
    return {}

"""What `fastget selftest` has proven on this card: kept in the user's cache, and asked before a faster way is taken
that never ran on such a card before. Another card, driver, torch, triton or fastget has to prove it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import platformdirs
import torch

from fastget.common.files import write_atomically

Claim = Literal["graph"]  # a training step replayed as a CUDA graph gives the bits of the eager one
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def file() -> Path:
    """Where it is kept."""
    return Path(platformdirs.user_cache_dir("fastget")) / "shown.json"


def card(device: torch.device) -> str:
    """What a result holds for: the card's kind, its driver, and the versions of what runs on it."""
    properties = torch.cuda.get_device_properties(device)
    parts = [properties.name, f"{properties.major}.{properties.minor}", _driver()]
    return " | ".join([*parts, *(f"{name} {_version(name)}" for name in ("torch", "triton", "fastget"))])


def is_proven(what: Claim, device: torch.device) -> bool:
    """Whether it was shown for this card; never for a device that is none."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return _read().get(card(device), {}).get(what) is True


def keep(results: Mapping[Claim, bool], device: torch.device) -> None:
    """Note what was shown, or refuted, for this card."""
    kept, key = _read(), card(device)
    kept.setdefault(key, {}).update({str(what): good for what, good in results.items()})
    file().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file(), json.dumps(kept, indent=1).encode())


def _read() -> dict[str, dict[str, bool]]:
    """All cards'. A file that cannot be read shows nothing."""
    try:
        found = json.loads(file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}


def _driver() -> str:
    """The kernel's part of it, told without a process; where it says nothing, what the runtime needs at least."""
    for source in DRIVERS:
        try:
            return source.read_text(encoding="utf-8").splitlines()[0].strip()
        except (OSError, IndexError):
            continue
    return f"driver of {sys.platform}, CUDA {torch.version.cuda or torch.version.hip}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"

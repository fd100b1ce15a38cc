"""The environment of a run: versions, device and commit, which a number needs to be reproduced."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def version_of(package: str) -> str | None:
    """An installed package's version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    capability = torch.backends.cpu.get_cpu_capability()
    return f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {capability}"


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and commit: what a number needs to be reproduced."""
    packages: Sequence[str] = (
        "fastget", "torch", "torchvision", "timm", "triton", "nvidia-dali-cuda130", "numpy", "pillow",
    )  # fmt: skip
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(device),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "versions": {name: version_of(name) for name in packages},
        "commit": _commit(),
        "command": sys.argv[1:],
    }


def _commit() -> str | None:
    """The commit of fastget's own checkout, if it runs from one."""
    here = Path(__file__).resolve().parents[1]
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

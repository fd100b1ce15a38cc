"""`fastget doctor`: what this machine has, and what fastget will therefore use."""

from __future__ import annotations

import argparse
import importlib
import platform

from rich.console import Console
from rich.table import Table

from fastget.common import apex

HELP = "what this machine has, and what fastget will use"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`fastget doctor` takes none."""
    parser.description = (
        "Two tables: what this machine has (Python, torch, GPUs, triton, DALI, apex), and what fastget will therefore "
        "use where a setting says auto. Nothing is changed, and a finding is no error: the exit code is 0."
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0: a finding is not an error."""
    return doctor()


def findings() -> list[tuple[str, str]]:
    """(what, what was found)."""
    import torch

    from fastget.runs.environment import device_name

    rows = [
        ("Python", platform.python_version()),
        ("torch", f"{torch.__version__} (CUDA {torch.version.cuda or 'none'})"),
    ]
    rows.append(("torchvision", _importable("torchvision", "torchvision")))
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            memory = f"{about.total_memory / 2**30:.0f} GiB, compute capability {about.major}.{about.minor}"
            rows.append((f"CUDA device {i}", f"{about.name}, {memory}"))
    else:
        rows.append(("CUDA devices", "none that torch can use"))
    rows.append(("CPU", device_name(torch.device("cpu"))))
    rows.append(("triton", _importable("triton", "triton")))
    rows.append(("DALI", _importable("nvidia.dali", "nvidia-dali-cuda130")))
    found = {
        "nvidia": "NVIDIA's",
        "unrelated": f"an unrelated package of that name from PyPI, not used. {apex.ADVICE}",
        None: f"not installed. {apex.ADVICE}",
    }
    rows.append(("apex", found[apex.find_apex()]))
    return rows


def decisions() -> list[tuple[str, str]]:
    """(choice, what `auto` makes of it here)."""
    from fastget.common.device import choose_device
    from fastget.loading.loader import choose_loader
    from fastget.methods.backend import choose_backend
    from fastget.methods.tuned import in_use

    device = choose_device("auto")
    backend = choose_backend("auto", device).__name__.rpartition(".")[2]
    why = "" if device.type == "cuda" else ": no GPU here"
    maths = "triton kernels" if backend == "kernels" else f"reference (plain PyTorch){why}"
    return [
        ("train.device", f"{device.type}{why}"),
        ("data.loader", _loader(choose_loader("auto", device), device.type)),
        ("a step's maths", maths),
        ("kernels' block sizes", in_use(device)),
    ]


def _loader(chosen: str, device: str) -> str:
    """The loader, and why it is not DALI."""
    if chosen == "dali":
        return chosen
    if device == "cuda":
        return f"{chosen}: no DALI here"
    return f"{chosen}: PIL's own pixels. DALI saves up to 1.7 ms of CPU an image, about 1 % of ResNet-18's step"


def _importable(module: str, package: str) -> str:
    from fastget.runs.environment import version_of

    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  # whatever a broken installation raises is the finding
        return f"cannot be imported: {error}"
    return version_of(package) or "installed"


def doctor(console: Console | None = None) -> int:
    """Print both tables."""
    console = console or Console()
    for title, rows in (("This machine has", findings()), ("So fastget will use", decisions())):
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for row in rows:
            table.add_row(*row)
        console.print(table)
    return 0

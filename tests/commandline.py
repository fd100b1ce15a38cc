"""Commands as a user types them, in this process or in one of their own, and small data for them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastget.commands.main import main

SHORT = ("train.max_steps=6", "train.warmup_steps=2", "train.eval_every=6", "train.log_every=1", "train.batch_size=8",
         "train.tensorboard=false", "optim.lr=0.01")  # fmt: skip
SMALL = ("network.name=small", "network.weights=none", "data.resize=16", "data.crop=12")
FEW = ("train.max_steps=2", "train.warmup_steps=1", "train.batch_size=4", "method.name=source-only")
CHECK = ("data", "check", "folder", "--quick", "--root")


@dataclass(frozen=True)
class Said:
    """What a command ended with and wrote; what left it as an exception is a traceback, as on a command line."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """All of it, however it was wrapped."""
        return " ".join((self.out + " " + self.err).split())

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.out)
        return content


def say(*words: object) -> Said:
    """`fastget words` in this process, with all that it writes to its two streams, by Python or past it."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _redirected([str(word) for word in words], out.fileno(), err.fileno())
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Said(code, *texts)


def _redirected(words: list[str], out: int, err: int) -> int:
    kept = os.dup(1), os.dup(2)
    streams = [os.fdopen(os.dup(file), "w", buffering=1) for file in (out, err)]
    os.dup2(out, 1)
    os.dup2(err, 2)
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            return _code(words)
    finally:
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)
        for stream in streams:
            stream.close()


def _code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as end:  # argparse's way
        return int(end.code or 0)
    except Exception:  # noqa: BLE001  # a traceback is what the tests ask about
        traceback.print_exc(file=sys.stderr)
        return 1


# --- data ------------------------------------------------------------------------------------------


def features(folder: Path, per_class: int = 12) -> Path:
    """Two domains of three classes as stored features, which train in no time."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(per_class)
    centres = 2 * torch.randn(3, 16, generator=generator)
    feats = {
        domain: (centres[labels] + torch.randn(len(labels), 16, generator=generator)).half()
        for domain in ("photo", "sketch")
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    content = {"feats": feats, "labels": dict.fromkeys(feats, labels), "classes": ["ant", "bee", "cat"]}
    torch.save(content, folder.with_suffix(".pt"))
    made = say("features", "import", folder.with_suffix(".pt"), "--out", folder, "--name", "few", "--backbone", "none")
    assert made.code == 0, made.words
    return folder


def on_features(root: Path, *settings: str, out: str | None = "run", options: tuple[str, ...] = ()) -> list[str]:
    """A short `fastget train` on stored features."""
    where = ["--data", "features", "--root", str(root), "--source", "photo", "--target", "sketch"]
    place = [] if out is None else ["--out", out]
    return ["train", *where, *place, *options, "--set", *SHORT, *settings]


def on_folders(root: Path | str, *settings: str, out: str = "run", options: tuple[str, ...] = ()) -> list[str]:
    """A short `fastget train` on a folder of images."""
    where = ["--data", "folder", "--root", str(root), "--source", "photo", "--target", "sketch"]
    return ["train", *where, "--out", out, *options, "--set", *SHORT, *SMALL, *settings]


def steps_of(run: Path) -> list[int]:
    """The steps that metrics.jsonl has a loss of."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


# --- in the midst of a run ---------------------------------------------------------------------------


@contextlib.contextmanager
def watching(seen: Callable[[nn.Module, int], None]) -> Iterator[None]:
    """Tell `seen` of each pass of images through the classifier of a network, and how many they are."""

    def hook(module: nn.Module, given: Any, made: Any) -> None:
        if isinstance(module, nn.Linear) and module.out_features == 3:  # as many as the classes of these data
            seen(module, len(given[0]))

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def while_a_network_is_built(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once, when the first weight of a network is made."""
    done: list[bool] = []

    def hook(module: nn.Module, name: str, value: Any) -> None:
        if not done:
            done.append(True)
            act()

    handle = nn.modules.module.register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def full_disk() -> Iterator[Callable[[int], None]]:
    """The function makes every file that would grow beyond so many bytes fail, until the end of this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

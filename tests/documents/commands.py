"""The documentation's commands, run in small: what stands for what, in one table.

A command runs as it is written, in a folder of its own, but for this:

    DATA                   a tree of the data set that the command names, with its domains' and classes' own names and
                           a few small images of each
    RUN, runs/get ...      folders of a finished run of three steps
    IMAGES, a.txt ...      some images, lists of them, weights: made beforehand (`furnish`)
    [RUN...], IMAGES...    a usage's dots are left out
    --seeds, --methods,    fewer of them (`FEWER`)
    --tasks, --gpus
    settings               `SMALL`: few steps, small images, a small network, given last, so that they win
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import fastget
from fastget.commands.main import main
from fastget.data.datasets import DATA_SETS
from tests.documents.blocks import fastget_words
from tests.pictures import this_fastget, write_domains
from tests.studies.reproduce.support import SIDE, SMALL, write_tree

STEPS = [setting for setting in SMALL if setting.startswith("train.")]
TRAINS = ("train", "compare", "sweep", "reproduce")
FEWER = {"0,1,2": "0,1", "all": "source-only,get", "uda,pda,imbalanced": "uda,pda", "uda,pda,pda-random": "uda,pda"}
SLOW = ("compare", "sweep", "reproduce", "demo", "export", "selftest")  # minutes together, or a new process


class Place:
    """A folder in which a page's commands run; `shelf` keeps what all pages use."""

    def __init__(self, folder: Path, shelf: Path) -> None:
        self.home, self.folder, self.shelf = folder, folder, shelf

    def furnish(self, name: str, files: dict[str, str]) -> None:
        """A new folder to run in, with these files and what the pages take for granted, beside DATA."""
        self.folder = self.home / name
        self.folder.mkdir()
        os.chdir(self.folder)
        for file, text in files.items():
            Path(file).write_text(text, encoding="utf-8")
        run = made_once(self.shelf / "RUN", self._train)
        for name in ("RUN", "runs/get", "runs/source-only", "runs/digits-fonts-handwritten-get",
                     "runs/compare-digits/uda/fonts-handwritten/plain-get/seed-0"):  # fmt: skip
            shutil.copytree(run, self.folder / name)
        shutil.copytree(self.tree("folder") / "sketch", self.folder / "IMAGES")
        for name, domain in (("a.txt", "photo"), ("b.txt", "sketch")):
            images = sorted((self.tree("folder") / domain).rglob("*.png"))
            classes = sorted({file.parent.name for file in images})
            lines = [f"{file.relative_to(self.tree('folder'))} {classes.index(file.parent.name)}\n" for file in images]
            (self.folder / name).write_text("".join(lines))
        few = {domain: torch.rand(62, 8) for domain in ("amazon", "dslr")}
        labels = {domain: torch.arange(62) % 31 for domain in few}
        content = {"feats": few, "labels": labels, "classes": [f"class {n}" for n in range(31)]}
        torch.save(content, self.folder / "office31.pt")

    def _train(self, folder: Path) -> None:
        values = dict(setting.split("=") for setting in SMALL)
        where = {"data.name": "folder", "data.root": str(self.tree("folder")), "data.source": "photo"}
        more = {"train.watch": 20, "data.target": "sketch", "train.out": str(folder)}
        fastget.train({**where, **values, **more}, quiet=True)

    def tree(self, data: str) -> Path:
        """DATA of a data set."""
        return made_once(self.shelf / "trees" / data, lambda folder: write_data(folder, data))

    def run(self, words: list[str]) -> int:
        """A command's exit code; what it prints goes where `>` says."""
        with io.StringIO() as said:
            words, to = cut(words, ">")
            if words[0] == "torchrun":
                given = [sys.executable, "-m", "torch.distributed.run", *words[1 : words.index("fastget") + 1]]
                given += self.small(fastget_words(words) or [])
                return subprocess.run(given, env=this_fastget(), check=False).returncode
            with contextlib.redirect_stdout(said):
                try:
                    code = main(self.small(words[1:]))
                except SystemExit as end:  # --help
                    code = int(end.code or 0)
            if to:
                Path(to[0]).write_text(said.getvalue())
        return code

    def small(self, words: list[str]) -> list[str]:
        """The same command, in small."""
        command = words[0]
        words = [FEWER.get(word, word).removesuffix("...") for word in words if word not in ("...", "[RUN...]")]
        data = after(words, "--data") or (words[2] if command == "data" and len(words) > 2 else None)
        if command == "reproduce":
            data = words[1].rsplit("-", 1)[0].replace("office-31", "office31") if len(words) > 1 else None
        if "DATA" in words:
            words[words.index("DATA")] = str(self.tree(data or "folder"))
        if "--tasks" in words and after(words, "--tasks") == "source-only,get":  # `all` of the tasks
            words[words.index("--tasks") + 1] = "Art-Clipart"
        if command == "reproduce" and "--gpus" in words:
            del words[words.index("--gpus") : words.index("--gpus") + 2]
            words += ["--methods", "source-only,get", "--tasks", "A->C", "--seeds", "0"]
        if command == "demo":
            return [*words, "--seeds", "0"]
        if command == "report":
            return [*words, "--projection", "pca"]
        if command == "data" and words[1] == "pack":
            return words if "--network" in words else [*words, "--resize", str(SIDE)]
        return self._settings(command, words, data)

    def _settings(self, command: str, words: list[str], data: str | None) -> list[str]:
        """With SMALL for those that train; a network of timm's is its smallest, without weights."""
        given = [word for word in words if word.startswith("network.name=timm/")]
        timm = ["network.name=timm/test_resnet.r160_in1k", "network.weights=none", "data.resize=64", "data.crop=64"]
        if command == "features" and "--data" in words:
            return [*words, "--set", *(timm if given else SMALL[:4]), "train.device=cpu", "data.workers=1"]
        if command not in TRAINS or {"--help", "--plan"} & set(words) or words == ["reproduce"]:
            return words
        images = [] if data == "features" else timm if given else SMALL[:4]
        few = ["data.limit=150"] if data in (None, "digits") and command != "reproduce" else []
        pda = ["data.pda_classes=2"] if "pda" in " ".join(words) and command != "reproduce" else []
        return [*words, "--set", *images, *STEPS, *few, *pda]


def cut(words: list[str], mark: str) -> tuple[list[str], list[str]]:
    """What stands before and after a word."""
    at = words.index(mark) if mark in words else len(words)
    return words[:at], words[at + 1 :]


def after(words: list[str], option: str) -> str | None:
    """An option's value."""
    return words[words.index(option) + 1] if option in words else None


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made by `make` where it is not there yet."""
    if not folder.exists():
        make(folder)
    return folder


def write_data(folder: Path, data: str) -> None:
    """A data set in small."""
    if data in DATA_SETS and data != "digits":
        write_tree(folder, data, per_class=4 if DATA_SETS[data].layout == "ssda lists" else 2)
    else:  # domains of one's own; of one of them nobody has sorted the images
        write_domains(folder, ("photo", "sketch", "a", "b"), per_class=4)
        for name in ("ant", "bee", "cat"):
            for file in sorted((folder / "sketch" / name).iterdir()):
                (folder / "unsorted").mkdir(exist_ok=True)
                shutil.copy(file, folder / "unsorted" / f"{name}-{file.name}")


def is_slow(words: list[str]) -> bool:
    """Whether a command is left to `make test-slow`."""
    given = fastget_words(words) or []
    return words[0] == "torchrun" or given[0] in SLOW or any("timm/" in word or word == "--figures" for word in given)

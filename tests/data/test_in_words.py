"""Images and lists as a user meets them: none is lost without a word, none is read that should not be."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commandline import CHECK, FEW, SHORT, SMALL, on_folders, say


def content(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(file).read_text())
    return found


@pytest.fixture
def data(place: Path) -> Path:
    """Images of one's own: three classes of four in each of two domains."""
    return Path(shutil.copytree(place / "data", "data"))


# --- lost images -------------------------------------------------------------------------------------


def test_what_lies_in_a_folder_is_used_or_told_of(data: Path) -> None:
    """Images in a sub-folder, an empty folder, a class that a spreadsheet would compute, files that are no images."""
    for name in ("001.jpg", "002.jpg"):
        (data / "photo" / "ant" / "more").mkdir(exist_ok=True)
        (data / "photo" / "ant" / name).rename(data / "photo" / "ant" / "more" / name)
    for domain in ("photo", "sketch"):
        (data / domain / "dog").mkdir()
        (data / domain / "ant").rename(data / domain / "=1+1")
    strange = ("photo/=1+1/a.heic", "photo/bee/noext")
    for name in strange:
        (data / name).write_bytes(b"x")
    done = say(*on_folders("data", *FEW, "train.batch_size=40"))
    assert done.code == 0, done.words
    summary, split = content("run/summary.json"), Path("run/split.json").read_text()
    assert summary["images"]["source"] == 12, "images are lost, and the exit code is 0"
    assert [name.lstrip("'") for name in summary["per_class_accuracy"]] == ["=1+1", "bee", "cat"]
    for name in strange:
        assert name in done.words, f"{name} is neither used nor told of"
        assert name in split
    assert "train.batch_size=40 is more than the 12 images of photo" in done.words
    with Path("run/predictions.csv").open(newline="") as stream:
        cells = {cell for row in csv.reader(stream) for cell in row}
    assert any("=1+1" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith("=")], "a spreadsheet would compute it"


def test_an_image_that_an_evaluation_cannot_read_is_named(place: Path, data: Path) -> None:
    """A PNG whose header and ends are whole, and whose pixels cannot be read."""
    gone = data / "sketch" / "cat" / "000.png"
    damaged = bytearray(gone.read_bytes())
    at = damaged.index(b"IDAT") + 4
    damaged[at : at + 8] = bytes(8)
    gone.write_bytes(damaged)
    where = ("--data", "folder", "--root", "data", "--source", "photo", "--target", "sketch")
    done = say("eval", "--checkpoint", place / "run", *where, "--json", "--set", "data.bad_threshold=1")
    assert done.code == 0, done.words
    assert str(gone) in done.words, f"{done.json['images']} images are reported, 11 were scored, and none is named"
    assert sum(done.json["per_class_images"].values()) == 11
    done = say(*on_folders("data", *FEW, "data.bad_threshold=1", "train.max_steps=1"))  # and by training's own
    assert done.code == 0, done.words
    assert str(gone) in done.words
    assert [one["path"] for one in content("run/summary.json")["turned_bad"]] == [str(gone)]


# --- names and lists ---------------------------------------------------------------------------------


def test_a_target_s_file_name_that_is_no_text(data: Path) -> None:
    folder = os.fsencode(data / "sketch" / "ant")
    os.rename(folder + b"/000.png", folder + b"/caf\xe9.png")
    for words, code in ((on_folders("data", *FEW), 2), ((*CHECK, "data"), 1)):
        done = say(*words)
        assert "target accuracy" not in done.words, f"it trains to the end, and then: {done.words[-120:]}"
        assert done.code == code
        assert "caf\\xe9.png" in done.words


def test_ssda_does_not_score_its_own_shots(data: Path) -> None:
    source, target = (
        [f"{domain}/{name}/00{i}.jpg {c}" for c, name in enumerate(("ant", "bee", "cat")) for i in (1, 2)]
        for domain in ("photo", "sketch")
    )
    shots = target[::2]
    for name, lines in {"source": source, "target": target, "shots": shots}.items():
        Path(f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    where = ["--data", "lists", "--root", "data", "--source", "source.txt", "--target", "target.txt", "--out", "run"]
    given = ("data.setting=ssda", "data.labelled_target=shots.txt")
    done = say("train", *where, "--set", *SHORT, *SMALL, *FEW, *given)
    assert done.code == 0, done.words
    scored = {row.split(",")[0] for row in Path("run/predictions.csv").read_text().splitlines()[1:]}
    assert not scored & {line.split()[0] for line in shots}, "images were trained on with their labels, and scored"
    assert "shots" in done.words


# --- what is no image to read --------------------------------------------------------------------------


def test_nobody_waits_for_a_pipe(place: Path, data: Path) -> None:
    pipe = data / "photo" / "ant" / "pipe.jpg"
    os.mkfifo(pipe)
    waited: list[str] = []

    def end_the_wait(name: str) -> None:
        with contextlib.suppress(OSError):  # nobody waits
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            waited.append(name)

    for words in (("predict", "--checkpoint", place / "run", "data"), ("data", "show", "folder", "--root", "data")):
        timer = threading.Timer(15, end_the_wait, [str(words[0])])
        timer.start()
        done = say(*words)
        timer.cancel()
        assert "Traceback" not in done.words
    assert not waited, f"{waited} open it like an image, and would wait without end"


# --- the check -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def whenever_an_image_is_opened(act: Callable[[str], None]) -> Iterator[None]:
    """By whatever Python opens files with."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in {"builtins.open": open, "os.open": os.open}.items():

            def opened(file: Any, *args: Any, _real: Any = function, **kwargs: Any) -> Any:
                if str(file).endswith((".png", ".jpg")):
                    act(str(file))
                return _real(file, *args, **kwargs)

            patch.setattr(name, opened)
        yield


def test_no_more_open_files_is_no_fault_of_the_images(data: Path) -> None:
    def refuse(file: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files", file)

    with whenever_an_image_is_opened(refuse):
        done = say(*CHECK, "data")
    assert "ulimit -n" in done.words, f"the images are blamed: {done.words[:90]}"
    assert done.code == 1


def test_a_check_that_is_stopped_says_what_it_remembers(data: Path) -> None:
    asked: list[str] = []

    def ask(file: str) -> None:
        if not asked:
            asked.append(file)
            os.kill(os.getpid(), signal.SIGINT)

    with whenever_an_image_is_opened(ask):
        done = say(*CHECK, "data", "--workers", 1)
    assert done.code == 128 + signal.SIGINT, done.words
    assert "those that are done are remembered" in done.words, f"all that is said: {done.words}"


def test_a_check_reads_everything_again_where_it_is_told_to(data: Path) -> None:
    """A file that was damaged, and has the size and the time that it had."""
    assert say(*CHECK, "data").code == 0
    file = data / "photo" / "ant" / "000.png"
    before, size = file.stat(), len(file.read_bytes())
    file.write_bytes(bytes(size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "--again" in say("data", "check", "--help").words, "no option has it looked at again"
    assert (say(*CHECK, "data").code, say(*CHECK, "data", "--again").code) == (0, 1)

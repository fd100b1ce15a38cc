"""`fastget eval`: the run's own figures, and those of other domains with the same classes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastget.commands.main import main
from fastget.common.progress import NowAndThen
from fastget.data.digits import digits_root


def report(*args: object, run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["eval", "--checkpoint", str(run), "--json", *map(str, args)]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


@pytest.fixture
def folders() -> Path:
    """A few digits of each domain."""
    for domain in ("fonts", "handwritten"):
        for digit in range(10):
            place = Path("few") / domain / str(digit)
            place.mkdir(parents=True)
            for file in sorted((digits_root(None) / domain / str(digit)).iterdir())[: 1 + digit]:
                shutil.copy(file, place)
    return Path("few")


def test_the_runs_own_figures(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((digits_run / "summary.json").read_text())
    found = report(run=digits_run, capsys=capsys)
    assert found["accuracy"] == pytest.approx(summary["accuracy"], abs=1e-12)
    assert found["mean_class_accuracy"] == pytest.approx(summary["mean_class_accuracy"], abs=1e-12)
    assert found["per_class_accuracy"] == pytest.approx(summary["per_class_accuracy"], abs=1e-12)
    assert found["label_free"] == pytest.approx(summary["label_free"], abs=1e-6)
    assert (found["domain"], found["images"], found["step"]) == ("handwritten", 1797, 70)
    assert sum(found["per_class_images"].values()) == 1797
    alone = report(
        "--set", "data.source=handwritten", "data.workers=1", "--batch-size", 100, run=digits_run, capsys=capsys
    )
    assert alone["accuracy"] == pytest.approx(found["accuracy"], abs=1.5 / 1797)  # a tie may fall otherwise in a batch


def test_another_domain(digits_run: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--data", "folder", "--root", folders, "--source", "fonts", "--target", "handwritten"]
    target = report(*args, run=digits_run, capsys=capsys)
    assert (target["domain"], target["images"]) == ("handwritten", 55)
    assert list(target["per_class_images"].values()) == list(range(1, 11))
    right = sum(target["per_class_accuracy"][str(d)] * (d + 1) for d in range(10))
    assert target["accuracy"] == pytest.approx(right / 55)
    source = report(*args, "--domain", "source", run=digits_run, capsys=capsys)
    assert (source["domain"], source["images"]) == ("fonts", 55)


def test_the_table(digits_run: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--data", "folder", "--root", str(folders), "--source", "fonts", "--target", "handwritten"]
    assert main(["eval", "--checkpoint", str(digits_run), *args]) == 0
    shown = capsys.readouterr().out
    assert "handwritten, 55 images" in shown
    for word in ("class", "mean class accuracy", "%"):
        assert word in shown


def test_bad_input(digits_run: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folders / "fonts", folders / "words")
    (folders / "words" / "9").rename(folders / "words" / "nine")
    shutil.copytree(folders / "handwritten" / "3", folders / "unlabelled")
    place = ["--data", "folder", "--root", str(folders)]
    for args, message in (
        ([*place, "--source", "words", "--target", "words"], "lacking 9, unknown nine"),
        ([*place, "--source", "fonts", "--target", "unlabelled"], "unlabelled has no labels"),
        ([*place], "data.source is missing"),
        (["--root", "nowhere", "--data", "folder", "--source", "a", "--target", "b"], "does not exist"),
        (["--set", "data.resize=64"], "data.resize is fixed by the checkpoint"),
        (["--set", "optim.lr=1"], "settings of the data section"),
        (["--set", "data.nmae=1"], "did you mean 'data.name'"),
        (["--set", "data.root"], "--set takes section.field=value, got 'data.root'"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
    ):
        assert main(["eval", "--checkpoint", str(digits_run), *args]) == 2, args
        assert message in capsys.readouterr().err


def test_classes_in_another_order(digits_run: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list that counts the classes from the other end would be scored wrong, and isn't."""
    files = sorted((folders / "fonts").rglob("*.png"))
    lines = [f"{file.relative_to(folders)} {9 - int(file.parent.name)}\n" for file in files]
    Path("turned.txt").write_text("".join(lines))
    args = ["--data", "lists", "--root", str(folders), "--source", "turned.txt", "--target", "turned.txt"]
    assert main(["eval", "--checkpoint", str(digits_run), *args]) == 2
    assert "another order (class 0: expected '0', found '9')" in capsys.readouterr().err


def test_an_image_that_cannot_be_read_any_more_is_named(
    digits_run: Path, folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check at the start passes it, the decoder does not."""
    gone = folders / "handwritten" / "9" / sorted(p.name for p in (folders / "handwritten" / "9").iterdir())[0]
    data = bytearray(gone.read_bytes())
    at = data.index(b"IDAT")
    data[at + 4 : at + 12] = bytes(8)  # its ends are whole
    gone.write_bytes(data)
    args = ["--data", "folder", "--root", str(folders), "--source", "fonts", "--target", "handwritten", "--json"]
    assert main(["eval", "--checkpoint", str(digits_run), *args]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["images"], found["scored"]) == (55, 54)
    assert [bad["path"] for bad in found["turned_bad"]] == [str(gone)]
    assert sum(found["per_class_images"].values()) == 54
    assert f"1 of 55 images could not be read, and are not scored: {gone}" in shown.err
    assert main(["eval", "--checkpoint", str(digits_run), *args[:-1]]) == 0
    assert "handwritten, 54 images" in capsys.readouterr().out


def test_a_run_on_a_relative_root_from_another_folder(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ["train.max_steps=2", "train.warmup_steps=1", "train.batch_size=4", "network.name=small"]
    short += ["network.weights=none", "data.resize=16", "data.crop=12", "train.tensorboard=false"]
    place = ["--data", "folder", "--root", str(folders), "--source", "fonts", "--target", "handwritten"]
    assert main(["train", *place, "--out", "r", "--set", *short]) == 0
    stored = Path("r/config.yaml").read_text()
    assert f"root: {folders}\n" in stored
    assert f"started_in: {tmp_path}\n" in stored
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    capsys.readouterr()
    found = report(run=tmp_path / "r", capsys=capsys)
    assert found["images"] == 55
    assert (
        main(["eval", "--checkpoint", str(tmp_path / "r"), "--root", str(folders)]) == 2
    )  # a place that is given is here
    assert "no domain folder" in capsys.readouterr().err


def test_its_progress_is_told(
    digits_run: Path, folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal by lines, on standard error: standard output is the answer's."""
    monkeypatch.setattr(NowAndThen, "due", lambda self: True)
    args = ["--data", "folder", "--root", str(folders), "--source", "fonts", "--target", "handwritten"]
    assert main(["eval", "--checkpoint", str(digits_run), "--json", "--batch-size", "30", *args]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["images"] == 55
    assert "looking at the images: " in err
    assert [line for line in err.splitlines() if line.startswith("eval")] == [
        "evaluation: 30 of 55", "evaluation: 55 of 55"
    ]  # fmt: skip


def test_nothing_that_can_be_read(digits_run: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage inside, which a look at headers and ends does not find."""
    for file in (folders / "handwritten").rglob("*.png"):
        data = bytearray(file.read_bytes())
        at = data.index(b"IDAT") + 4
        data[at : at + 8] = bytes(8)
        file.write_bytes(data)
    args = ["--data", "folder", "--root", str(folders), "--source", "fonts", "--target", "handwritten"]
    for threshold, code, said in (("0.01", 2, "cannot be read any more"), ("1", 1, "none of the images to evaluate")):
        given = [*args, "--set", f"data.bad_threshold={threshold}"]
        assert main(["eval", "--checkpoint", str(digits_run), *given]) == code
        assert said in " ".join(capsys.readouterr().err.split())

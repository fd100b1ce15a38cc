"""`fastget predict`: the run's own predictions from files, and a row for every file whatever is wrong with it."""

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fastget
from fastget.commands.eval import evaluate_domain
from fastget.commands.main import main
from fastget.commands.predict import find_images
from fastget.common.preprocessing import MEAN, STD
from fastget.common.text import and_more
from fastget.config import DataConfig
from fastget.data.digits import digits_root
from fastget.data.domains import load_domains
from fastget.data.lists import ImageList
from fastget.serving.predictor import Predictor, load_predictor

DIGITS = DataConfig(source="fonts", target="handwritten", resize=32, crop=28, flip=False)


@pytest.fixture(scope="module")
def predictor(digits_run: Path) -> Predictor:
    return load_predictor(digits_run)


@pytest.fixture(scope="module")
def target(digits_run: Path) -> ImageList:
    return load_domains(DIGITS).target


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def predict(*args: object, run: Path) -> int:
    return main(["predict", "--checkpoint", str(run), *map(str, args)])


def test_the_runs_own_predictions(
    digits_run: Path, target: ImageList, predictor: Predictor, capsys: pytest.CaptureFixture[str]
) -> None:
    own = read_csv((digits_run / "predictions.csv").read_text())
    assert len(own) == 1797
    assert len({row["prediction"] for row in own}) >= 8  # a network that always says the same would prove nothing
    Path("target.txt").write_text("".join(f"{row['path']} {row['label']}\n" for row in own))
    assert predict("target.txt", "--root", digits_root(None), "--batch-size", 100, run=digits_run) == 0
    rows = read_csv(capsys.readouterr().out)
    assert [row["path"] for row in rows] == [target.file(i) for i in range(len(target))]
    tied = [float(row["top1_probability"]) - float(row["top2_probability"]) < 1e-4 for row in rows]
    assert sum(tied) < 20  # in batches of another size they may fall otherwise
    assert all(t or row["label"] == o["prediction"] for t, row, o in zip(tied, rows, own, strict=True))
    found = np.array([float(row["confidence"]) for row in rows])
    assert np.abs(found - [float(row["confidence"]) for row in own]).max() < 5e-5 + 1e-5  # the run writes 4 digits
    evaluated, _ = evaluate_domain(predictor, target, DIGITS, 256)
    assert np.abs(found - evaluated.confidence).max() < 1e-5
    assert not any(row["error"] for row in rows)


def test_what_is_in_the_images(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In short, on standard error; nothing to say of one image."""
    folder = digits_root() / "handwritten" / "0"
    assert predict(folder, run=digits_run) == 0
    captured = capsys.readouterr()
    labels = [row["label"] for row in read_csv(captured.out)]
    assert f"what is in these images, by the predictions for {len(labels)} images" in captured.err
    assert re.search(rf"│ 0 +│ +{100 * labels.count('0') / len(labels):.1f} % │ +{labels.count('0')} │", captured.err)
    absent = [str(digit) for digit in range(10) if str(digit) not in labels]
    assert absent
    assert f"predicted for no image, {len(absent)} of 10 classes: {and_more(absent)}" in captured.err
    assert predict(folder / "0000.png", run=digits_run) == 0
    assert "what is in" not in capsys.readouterr().err


def test_top_k(digits_run: Path, target: ImageList, capsys: pytest.CaptureFixture[str]) -> None:
    files = [target.file(i) for i in range(0, 1797, 300)]
    assert predict(*files, "--top-k", 10, run=digits_run) == 0
    for row in read_csv(capsys.readouterr().out):
        names = [row[f"top{k}"] for k in range(1, 11)]
        shares = [float(row[f"top{k}_probability"]) for k in range(1, 11)]
        assert sorted(names) == [str(digit) for digit in range(10)]
        assert shares == sorted(shares, reverse=True)
        assert abs(sum(shares) - 1) < 1e-5
        assert (row["label"], row["confidence"]) == (names[0], row["top1_probability"])
    assert predict(files[0], run=digits_run) == 0
    columns = "path,label,confidence,top1,top1_probability,top2,top2_probability,top3,top3_probability,error"
    assert capsys.readouterr().out.splitlines()[0] == columns


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_preprocessing(predictor: Predictor, mode: str) -> None:
    """Resized to a square, the centre cut out, normalised: computed here step by step, for an image of any shape."""
    levels = np.random.default_rng(0).integers(0, 255, (50, 41, 3), dtype=np.uint8)
    Image.fromarray(levels).convert(mode).save("x.png")
    (row,) = predictor.predict(["x.png"], top_k=10)
    with Image.open("x.png") as image:
        small = image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR).crop((2, 2, 30, 30))
    pixels = (np.asarray(small).astype(np.float64) / 255 - MEAN) / STD
    with torch.no_grad():
        _, logits = predictor.network(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
    expected = dict(zip(predictor.classes, logits.softmax(1)[0].tolist(), strict=True))
    assert dict(row.top) == pytest.approx(expected, abs=1e-5)


def test_bad_files_get_rows(digits_run: Path, target: ImageList, capsys: pytest.CaptureFixture[str]) -> None:
    good = Path(target.file(0)).read_bytes()
    Path("cut.png").write_bytes(good[: len(good) // 2])
    Path("text.jpg").write_text("hello")
    Path("empty.png").touch()
    files = [target.file(0), "cut.png", "missing.png", "text.jpg", "empty.png", target.file(1)]
    assert predict(*files, "--batch-size", 2, "--out", "out.csv", run=digits_run) == 1
    rows = read_csv(Path("out.csv").read_text())
    assert [row["path"] for row in rows] == files
    assert [bool(row["error"]) for row in rows] == [False, True, True, True, True, False]
    assert [bool(row["label"]) for row in rows] == [True, False, False, False, False, True]
    assert rows[1]["confidence"] == rows[1]["top1"] == ""
    assert "no such file" in rows[2]["error"]
    assert "text.jpg" in rows[3]["error"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4 of 6 images could not be classified" in captured.err
    assert predict("missing.png", run=digits_run) == 1  # a batch without a single image


def test_a_decoder_that_raises_something_else(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(image: Image.Image) -> Image.Image:
        raise TypeError("no such tag")

    Image.new("RGB", (4, 4)).save("x.tif")
    monkeypatch.setattr("fastget.data.decode.to_rgb", broken)
    (row,) = predictor.predict(["x.tif"])
    assert "cannot read x.tif: is damaged (no such tag)" in row.error
    assert (row.label, row.confidence) == ("", None)


def test_a_network_of_nan_gives_no_label(digits_run: Path, target: ImageList) -> None:
    broken = load_predictor(digits_run)
    broken.network.classifier.weight.fill_(float("nan"))
    (row,) = broken.predict([target.file(0)])
    assert "not a number" in row.error
    assert row.label == ""


# --- which images --------------------------------------------------------------------------------


def test_folders(target: ImageList) -> None:
    for name in ("b/2.png", "b/1.JPG", "a/3.png", ".hidden/4.png", "b/.5.png", "b/notes.md", "6.jpeg"):
        (Path("f") / name).parent.mkdir(parents=True, exist_ok=True)
        (Path("f") / name).touch()
    Path("f/c").mkdir()
    for name in ("7.jfif", "8.pgm", "9.JP2"):  # as a class folder has them
        Path("f/c", name).touch()
    Path("f/a/again").symlink_to(Path("f").absolute())  # a circle
    others = ["f/c/7.jfif", "f/c/8.pgm", "f/c/9.JP2"]
    assert find_images(["f"]) == ["f/6.jpeg", "f/a/3.png", "f/b/1.JPG", "f/b/2.png", *others]
    assert find_images(["f/b", "f/a/3.png", "gone.png"]) == ["f/b/1.JPG", "f/b/2.png", "f/a/3.png", "gone.png"]


def test_lists() -> None:
    Path("l").mkdir()
    Path("l/labelled.txt").write_text("x/1.png 0\nx/2.png 3\n")
    Path("l/plain.txt").write_text("\ufeffx/1.png\r\n\r\n/abs/2.png\r\n", encoding="utf-8")
    assert find_images(["l/labelled.txt"]) == ["l/x/1.png", "l/x/2.png"]
    assert find_images(["l/plain.txt"], Path("root")) == ["root/x/1.png", "/abs/2.png"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["gone.txt"], "no list file gone.txt"),
        (["empty"], "holds no image"),
        (["x.png", "--top-k", "11"], "between 1 and the 10 classes, got 11"),
        (["x.png", "--top-k", "0"], "got 0"),
        (["x.png", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["x.png", "--workers", "-1"], "--workers must be at least 0"),
        (["x.png", "--out", "nowhere/p.csv"], "cannot write nowhere/p.csv"),
        (["x.png", "--out", "empty"], "cannot write empty"),
        (["x.png", "--device", "abacus"], "--device must be cpu"),
    ],
)
def test_bad_input(digits_run: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert predict(*args, run=digits_run) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert [path.name for path in Path().iterdir()] == ["empty"]


def test_from_python(predictor: Predictor, target: ImageList) -> None:
    files = [Path(target.file(i)) for i in range(0, 40)]
    one, many = (list(predictor.predict(files, size, top_k=10)) for size in (7, 40))
    for a, b in zip(one, many, strict=True):
        assert (a.label, a.confidence) == a.top[0]
        assert dict(a.top) == pytest.approx(dict(b.top), abs=1e-5)
    assert list(predictor.predict([])) == []
    with pytest.raises(ValueError, match="batch size must be at least 1"):
        predictor.predict(files, 0)


# --- the output ----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8 are Linux's")
def test_a_name_that_is_not_utf8(
    digits_run: Path, target: ImageList, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = os.fsdecode(b'f\xff, "x".png')
    Path(name).write_bytes(Path(target.file(0)).read_bytes())
    assert predict(name, "--out", "out.csv", run=digits_run) == 0
    assert Path("out.csv").read_bytes().splitlines()[1].startswith(b'"f\xff, ""x"".png",')


def test_a_reader_that_leaves(digits_run: Path, target: ImageList) -> None:
    """As `fastget predict ... | head -1` does: no traceback."""
    folder = digits_root(None) / "handwritten"
    command = [sys.executable, "-m", "fastget", "predict", "--checkpoint", str(digits_run), str(folder)]
    env = {**os.environ, "PYTHONPATH": str(Path(fastget.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"path,label,confidence")
        process.stdout.close()
        said = process.stderr.read()  # a library may have warned of this machine
        assert b"Traceback" not in said
        assert b"BrokenPipe" not in said
    assert process.returncode == 128 + signal.SIGPIPE


def test_the_limit_of_pixels_pipes_and_what_is_not_used(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("f/deeper").mkdir(parents=True)
    Image.new("RGB", (40, 30)).save("f/deeper/=1.png")
    os.mkfifo("f/pipe.jpg")
    Path("f/a.heic").write_bytes(b"x")
    assert main(["predict", "--checkpoint", str(digits_run), "f"]) == 1
    shown = capsys.readouterr()
    assert "f: 1 not used, .heic is not read" in shown.err
    rows = list(csv.DictReader(shown.out.splitlines()))
    assert "is not a regular file" in rows[0]["error"]
    assert rows[1]["label"]
    assert main(["predict", "--checkpoint", str(digits_run), "--max-pixels", "1199", "f/deeper"]) == 1
    assert "40 x 30 pixels" in capsys.readouterr().out
    os.chdir("f/deeper")
    assert main(["predict", "--checkpoint", str(digits_run), "=1.png"]) == 0
    assert "\n'=1.png," in capsys.readouterr().out

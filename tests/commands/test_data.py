"""`fastget data list | show | check | pack`, as a user types it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastget.commands import data as data_cli
from fastget.data.datasets import DATA_SETS
from fastget.data.domains import read_domains
from fastget.data.packed.read import Cache, Encoding, cache_folder, find_packed
from tests.commandline import full_disk, say
from tests.pictures import write_damage, write_domains


def fastget_data(*words: object) -> int:
    parser = argparse.ArgumentParser()
    data_cli.add_arguments(parser)
    return data_cli.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_domains(tmp_path / "data")


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert fastget_data("list") == 0
    words = capsys.readouterr().out
    for name, known in DATA_SETS.items():
        assert name in words
        assert all(archive in words for archive in known.archives)
    assert fastget_data("list", "--json") == 0
    assert said(capsys)["office-home"]["domains"]["RealWorld"] == 4357


def test_show(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.png"
    assert fastget_data("show", "folder", "--root", root, "--out", sheet) == 0
    words = capsys.readouterr().out
    assert all(word in words for word in ("photo", "sketch", "ant", "bee", "cat", "36", "sheet.png"))
    with Image.open(sheet) as image:
        picture = np.asarray(image)
    halves = picture[:, 130 : 130 + 400], picture[:, 130 + 416 :]
    assert all(half.std() > 20 for half in halves)  # both domains are on it
    assert fastget_data("show", "folder", "--root", root, "--out", sheet, "--json") == 0
    assert said(capsys)["domains"]["photo"]["classes"] == {"ant": 12, "bee": 12, "cat": 12}


def test_check_of_a_good_and_a_damaged_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fastget_data("check", "folder", "--root", root, "--quick") == 0
    assert "72 files checked" in capsys.readouterr().out
    damage = write_damage(root / "photo" / "bee")
    del damage["gone.jpg"]  # a folder does not miss it
    assert fastget_data("check", "folder", "--root", root) == 1
    words = capsys.readouterr().out
    for name in damage:
        assert str(root / "photo" / "bee" / name) in words
    assert fastget_data("check", "folder", "--root", root, "--json") == 1
    report = said(capsys)
    assert {Path(p["path"]).name: p["kind"] for p in report["bad"]} == damage
    assert report["domains"] == {"photo": 36 + len(damage) + 2, "sketch": 36}
    assert report["remembered"] > 0


def test_check_of_lists_and_of_one_domain(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("photo/ant/000.png 0\nphoto/ant/gone.jpg 0\n")
    assert fastget_data("check", "lists", "--root", root, "--source", tmp_path / "a.txt", "--quick", "--json") == 1
    assert [(p["kind"], p["path"]) for p in said(capsys)["bad"]] == [("missing", str(root / "photo/ant/gone.jpg"))]
    assert fastget_data("check", "folder", "--root", root, "--target", "sketch", "--quick", "--json") == 0
    assert said(capsys)["domains"] == {"sketch": 36}


def test_a_misnamed_file_is_named_and_not_bad(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "photo" / "ant" / "000.png").rename(root / "photo" / "ant" / "000.jpg")
    assert fastget_data("check", "folder", "--root", root, "--quick") == 0
    words = capsys.readouterr().out
    assert "000.jpg: is a PNG named .jpg" in words
    assert "0 bad, 1 misnamed" in words


def test_pack_and_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = ("pack", "folder", "--root", root, "--format", "raw", "--resize", 32)
    with pytest.raises(ValueError, match="no complete cache"):
        fastget_data(*pack, "--verify")
    assert fastget_data(*pack) == 0
    out, err = capsys.readouterr()
    assert "72 images packed" in out
    assert "about 0.00 GB" in err
    for images in read_domains("folder", str(root)):
        assert find_packed(images, "auto", 32)[0]
    assert fastget_data(*pack, "--verify", "--json") == 0
    assert said(capsys)["damaged"] == []
    assert fastget_data(*pack, "--json") == 0
    assert said(capsys)["kept"] == 72
    folder = cache_folder(root, "auto", Encoding("raw", 32))
    shard = folder / "shard-00000.tar"
    data = bytearray(shard.read_bytes())
    data[2000] ^= 1
    shard.write_bytes(data)
    assert fastget_data(*pack, "--verify") == 1
    assert "shard-00000.tar: a checksum is wrong" in capsys.readouterr().out
    assert fastget_data(*pack) == 0
    assert "checksum was wrong" in capsys.readouterr().out
    assert fastget_data(*pack, "--verify") == 0


def test_pack_for_a_backbone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = ("pack", "folder", "--root", root, "--format", "raw")
    assert fastget_data(*pack, "--network", "timm/test_vit") == 0
    cache = Cache.open(root / ".fastget-packed" / "raw-168-bicubic")
    assert cache is not None
    assert cache.encoding.resizing == (168, "bicubic")
    assert fastget_data(*pack, "--network", "timm/test_vit", "--resize", 20, "--interpolation", "bilinear") == 0
    assert Cache.open(root / ".fastget-packed" / "raw-20") is not None
    capsys.readouterr()
    with pytest.raises(ValueError, match="did you mean timm/resnet50"):
        fastget_data(*pack, "--network", "timm/resnet5O")


def test_pack_with_bad_files(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "photo" / "ant" / "000.png").write_bytes(b"")
    pack = ("pack", "folder", "--root", root, "--resize", 32, "--cache", tmp_path / "elsewhere")
    assert fastget_data(*pack) == 1
    assert "000.png: is empty" in capsys.readouterr().err
    folder = cache_folder(root, str(tmp_path / "elsewhere"), Encoding("jpeg", 32))
    assert Cache.open(folder) is None
    assert fastget_data(*pack, "--bad-images", "skip") == 0
    assert "71 images packed" in capsys.readouterr().out
    assert Cache.open(folder)


def test_digits_need_no_root(capsys: pytest.CaptureFixture[str]) -> None:
    assert fastget_data("check", "digits", "--quick", "--json") == 0
    assert said(capsys)["domains"] == {"fonts": 2000, "handwritten": 1797}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "office"), "unknown data set"),
        (("check", "pacs"), "by --root"),
        (("check", "lists"), "by --source and --target"),
        (("show", "folder", "--root", "/nowhere"), "does not exist"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fastget_data(*words)


@pytest.mark.parametrize("words", [("pack", "digits", "--quality", "0"), ("pack", "digits", "--resize", "x"), ()])
def test_wrong_options(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as error:
        fastget_data(*words)
    assert error.value.code == 2


def test_what_is_not_used_is_said(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "photo" / "ant" / "a.heic").write_bytes(b"x")
    for command in (("check", "--quick"), ("show", "--out", tmp_path / "s.png"), ("pack", "--resize", 16)):
        assert fastget_data(command[0], "folder", "--root", root, *command[1:]) == 0
        shown = capsys.readouterr()
        assert "photo: 1 not used, .heic is not read" in shown.out + shown.err
    assert fastget_data("check", "folder", "--root", root, "--quick", "--json") == 0
    assert [one["path"] for one in said(capsys)["unused"]] == ["photo/ant/a.heic"]


def test_check_reads_everything_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, remembered in (((), 0), ((), 72), (("--again",), 0)):
        assert fastget_data("check", "folder", "--root", root, "--quick", "--json", *words) == 0
        assert said(capsys)["remembered"] == remembered


def test_check_and_pack_know_the_limit_of_pixels(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fastget_data("check", "folder", "--root", root, "--quick", "--max-pixels", 1599) == 1
    assert "40 x 40 pixels, over data.max_pixels=1599" in capsys.readouterr().out
    assert fastget_data("pack", "folder", "--root", root, "--max-pixels", 1599) == 1
    assert "nothing was packed" in capsys.readouterr().err
    assert fastget_data("check", "folder", "--root", root, "--quick", "--max-pixels", 1600) == 0


def test_show_says_what_it_leaves_out(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show = ("show", "folder", "--root", root, "--out", tmp_path / "s.png")
    fastget_data(*show)
    assert "of photo and sketch; all classes" in capsys.readouterr().out
    write_domains(root, ("third",), per_class=1)
    for i in range(12):
        (root / "photo" / f"class{i}").mkdir()
        Image.new("RGB", (8, 8)).save(root / "photo" / f"class{i}" / "0.png")
    fastget_data(*show)
    words = capsys.readouterr().out
    assert "of 2 of 3 domains, photo and sketch (--source and --target choose others); 10 of 15 classes" in words
    fastget_data(*show, "--json")
    assert "10 of 15 classes" in said(capsys)["contact_sheet_shows"]


def test_show_of_unlike_lists(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("photo/ant/000.png 0\n")
    (tmp_path / "b.txt").write_text("sketch/bee/000.png 0\nsketch/cat/000.png 3\nsketch/cat/001.jpg 2\n")
    lists = ("--source", tmp_path / "a.txt", "--target", tmp_path / "b.txt")
    assert fastget_data("show", "lists", "--root", root, *lists, "--out", tmp_path / "s.png") == 0
    words = capsys.readouterr().out
    assert "ant / 0" in words
    assert "images" in words


def test_names_are_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_domains(tmp_path / "data", per_class=1)
    (root / "photo" / "ant").rename(root / "photo" / "[red]ant")
    (root / "photo" / "bee").rename(root / "photo" / "\x1b[31mbee")
    assert fastget_data("show", "folder", "--root", root, "--out", tmp_path / "s.png") == 0
    words = capsys.readouterr().out
    assert "[red]ant" in words
    assert "\\x1b[31mbee" in words
    assert "\x1b" not in words


def test_a_damaged_packed_index_is_made_anew_with_a_word(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = ("pack", "folder", "--root", root, "--format", "raw", "--resize", 16)
    assert fastget_data(*pack) == 0
    index = cache_folder(root, "auto", Encoding("raw", 16)) / "index.npz"
    index.write_bytes(b"rubbish")
    packed, note = find_packed(read_domains("folder", str(root))[0], "auto", 16)
    assert packed is None
    assert "is damaged, incomplete or of another version" in note
    capsys.readouterr()
    assert fastget_data(*pack) == 0
    assert "72 of them were there already" in capsys.readouterr().out
    assert find_packed(read_domains("folder", str(root))[0], "auto", 16)[0]


def test_what_checks_remember_is_made_anew(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check = ("data", "check", "folder", "--quick", "--root", root)
    assert say(*check).code == 0
    (file,) = (file for file in (tmp_path / "cache").rglob("*") if file.is_file())
    damaged = bytearray(file.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # an archive's headers: a kind that nobody reads
        damaged[damaged.index(mark) + flags] |= 0x20
    for content in (bytes(damaged), b"rubbish"):
        file.write_bytes(content)
        done = say(*check)
        assert (done.code, "72 files checked" in done.words) == (0, True), done.words
        assert str(file) in done.words, "no word about it"


def test_a_disk_that_fills_while_images_are_packed(root: Path) -> None:
    with full_disk() as fill:
        fill(8000)
        done = say("data", "pack", "folder", "--root", root, "--format", "raw", "--resize", "64")
    assert (done.code, "Traceback" in done.words) == (1, False), done.words
    assert "File too large" in done.words

"""Lists as ATDOC's and SSDA_MME's are laid out, and every mistake in them by file and line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastget.data.lists import UNLABELLED, ImageList, class_names, domains_from_lists, read_list
from tests.pictures import this_fastget

ATDOC = """./dataset/OfficeHomeDataset_10072016/RealWorld/Alarm_Clock/00001.jpg 0
./dataset/OfficeHomeDataset_10072016/RealWorld/Backpack/00002.jpg 1
"""
SSDA_MME = """clipart/aircraft_carrier/clipart_001_000017.jpg 0
clipart/The_Eiffel_Tower/clipart_309_000014.jpg 115
clipart/teddy-bear/clipart_304_000009.jpg 113
"""


def write(folder: Path, text: str, name: str = "list.txt") -> Path:
    file = folder / name
    file.write_bytes(text.encode())
    return file


def test_atdoc_layout(tmp_path: Path) -> None:
    paths, labels = read_list(write(tmp_path, ATDOC), tmp_path)
    assert paths[1] == "dataset/OfficeHomeDataset_10072016/RealWorld/Backpack/00002.jpg"
    assert labels.tolist() == [0, 1]


def test_ssda_layout_and_its_class_names(tmp_path: Path) -> None:
    file = write(tmp_path, SSDA_MME)
    source, target = domains_from_lists(tmp_path, file, file)
    assert source.labels.tolist() == [0, 115, 113]
    assert len(source.classes) == 116
    assert source.classes[115] == "The_Eiffel_Tower"
    assert source.classes[1] == "1"  # no image tells its name
    assert target.paths == source.paths


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\r\n\r\n  \r\n"])
def test_line_ends_blank_lines_spaces_and_other_scripts(tmp_path: Path, end: str) -> None:
    lines = ["a b/c  d.jpg 0", "\u732b/\u00e9t\u00e9 \u65b0.png\t1", "  x.jpg   2  "]
    paths, labels = read_list(write(tmp_path, "\ufeff" + end.join(lines) + end), tmp_path)
    assert paths == ["a b/c  d.jpg", "\u732b/\u00e9t\u00e9 \u65b0.png", "x.jpg"]
    assert labels.tolist() == [0, 1, 2]


def test_absolute_and_relative_paths(tmp_path: Path) -> None:
    paths, _ = read_list(write(tmp_path, "/data/a.jpg 0\nb/../c.jpg 1\n"), tmp_path)
    images = ImageList("x", tmp_path, paths, np.array([0, 1]), ("a", "b"))
    assert images.file(0) == "/data/a.jpg"
    assert images.file(1) == str(tmp_path / "c.jpg")
    assert images.files() == [images.file(0), images.file(1)]
    assert read_list(write(tmp_path, "a.jpg 0\na.jpg 0\n"), tmp_path)[0] == ["a.jpg", "a.jpg"]  # twice, one label


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a.jpg 0\nb.jpg one\n", 2, "whole number, got 'one'"),
        ("a.jpg 0\n\nb.jpg 1.5\n", 3, "whole number, got '1.5'"),
        ("a.jpg 0\nb.jpg 1_0\n", 2, "whole number"),
        ("a.jpg 0\nb.jpg -1\n", 2, "0 or more"),
        ("a.jpg 0\nb.jpg\n", 2, "label is missing"),
        ("a.jpg 0\nb.jpg 12\n", 2, "class 12 is out of range"),
        ("a.jpg 0\nb.jpg 999999999999999999999\n", 2, "out of range"),
        ("a.jpg 0\n../b.jpg 1\n", 2, "leaves the root"),
        ("a.jpg 0\nx/../../b.jpg 1\n", 2, "leaves the root"),
        ("a.jpg 0\nb.jpg 1\n\na.jpg 1\n", 4, "label 1 here and 0 on line 1"),
        ("a.jpg 0\nb.jpg 1\n./a.jpg 1\n", 3, "label 1 here and 0 on line 1"),
    ],
)
def test_a_mistake_is_named_by_file_and_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match="line") as error:
        read_list(file, tmp_path, num_classes=12)
    assert f"{file}, line {line}:" in str(error.value)
    assert words in str(error.value)


def test_a_class_that_the_source_lacks(tmp_path: Path) -> None:
    source, target = write(tmp_path, "a.jpg 0\nb.jpg 1\n"), write(tmp_path, "\nc.jpg 1\nd.jpg 2\n", "target.txt")
    with pytest.raises(ValueError, match=r"target\.txt, line 3: class 2 is out of range"):
        domains_from_lists(tmp_path, source, target)


def test_an_unlabelled_target(tmp_path: Path) -> None:
    source, target = write(tmp_path, "a.jpg 0\n"), write(tmp_path, "c d.jpg\ne.jpg\n", "target.txt")
    _, images = domains_from_lists(tmp_path, source, target)
    assert images.paths == ["c d.jpg", "e.jpg"]
    assert images.labels.tolist() == [UNLABELLED, UNLABELLED]
    with pytest.raises(ValueError, match="some lines have a label"):
        read_list(write(tmp_path, "a.jpg 0\nb.jpg\n"), tmp_path, unlabelled=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no image"),
        (b"\n \r\n", "holds no image"),
        (None, "cannot read the list file"),
        (b"\xff\xd8\xff\xe0 0\n", "not UTF-8"),
    ],
)
def test_what_is_no_list(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_list(tmp_path / "list.txt", tmp_path)


def test_lists_that_nobody_leads_have_classes_of_their_own(tmp_path: Path) -> None:
    files = write(tmp_path, "ant/a.jpg 0\n"), write(tmp_path, "ant/b.jpg 0\nbee/c.jpg 1\n", "b.txt")
    plain = write(tmp_path, "d.jpg\n", "plain.txt")
    lists = domains_from_lists(tmp_path, plain, *files, led=False)
    assert [images.classes for images in lists] == [(), ("ant",), ("ant", "bee")]
    with pytest.raises(ValueError, match="label is missing"):
        domains_from_lists(tmp_path, plain, *files)


MEASURE = """
import sys, time, resource
from pathlib import Path
import numpy as np, torch
from fastget.data.lists import domains_from_lists
from fastget.loading.sampling import TrainSampler
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize() / 1e6
with open('/proc/self/clear_refs', 'w') as refs:
    refs.write('5')  # the peak counts from here
before, start = resident(), time.process_time()
source, target = domains_from_lists(Path('/data'), sys.argv[1], sys.argv[1])
TrainSampler(len(source), 36, seed=0, stream='source', margin=32, flip=True)(0)
peak = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')) / 1e3
print(len(source), peak - before, time.process_time() - start)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel counts no peak from now on")
def test_600_000_entries_stay_under_300_mb(tmp_path: Path) -> None:
    """Source and target of DomainNet's size each, read and ready for the first batch."""
    file = tmp_path / "big.txt"
    with file.open("w") as out:
        for i in range(600_000):
            out.write(f"painting/The_Great_Wall_of_China_{i % 345}/painting_{i % 345:03d}_{i:06d}.jpg {i % 345}\n")
    command = [sys.executable, "-c", MEASURE, str(file)]
    said = subprocess.run(command, env=this_fastget(), capture_output=True, text=True, check=True)
    entries, megabytes, seconds = map(float, said.stdout.split())
    print(f"{entries:,.0f} entries: {megabytes:.0f} MB, {seconds:.2f} CPU-s")
    assert entries == 600_000
    assert megabytes < 300


def test_a_folder_named_as_another_class_s_number_makes_no_second_class_of_one_name() -> None:
    """Class 0 lies in the folder `1`, and class 1 in two: it would be called 1 as well."""
    paths, labels = ["1/a.png", "x/b.png", "y/c.png"], np.array([0, 1, 1])
    assert class_names(paths, labels, 2) == ("0", "1")
    assert class_names(["2/a.png", "x/b.png", "y/c.png"], labels, 2) == ("2", "1")

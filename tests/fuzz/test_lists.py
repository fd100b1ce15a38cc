"""Damaged list files: read, or refused in a sentence that names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastget.data.lists import UNLABELLED, domains_from_lists, read_list
from tests.fuzz.mutations import mutations

GOOD = "\ufeffphoto/ant/000.png 0\r\nphoto/bee/0 0 0.png\t1\n\n/abs/olute.jpg 2\nphoto/été/é.png 12\n".encode()


def read(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    for unlabelled in (False, True):
        try:
            paths, labels = read_list(file, "root", unlabelled=unlabelled)
        except ValueError as error:
            assert str(file) in str(error)  # noqa: PT017  # it may also be read
            continue
        assert len(paths) == len(labels) > 0
        assert labels.min() >= (UNLABELLED if unlabelled else 0)
        assert not any(path.startswith("../") for path in paths)
    try:
        (images,) = domains_from_lists(Path("root"), file)
    except ValueError as error:
        assert str(file) in str(error)  # noqa: PT017
        return
    assert len(set(images.classes)) == len(images.classes)
    assert np.array_equal(images.counts(), np.bincount(images.labels, minlength=len(images.classes)))


@pytest.mark.parametrize("count", [3000, 50_000])
def test_lists(count: int, tmp_path: Path) -> None:
    for data in mutations(GOOD, count, seed=count):
        read(tmp_path / "a.txt", data)

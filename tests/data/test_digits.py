"""The embedded data set: real parts, written once, read as any other."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastget.data.digits import PER_CLASS, digits_root
from fastget.data.lists import read_list


def test_both_domains_and_their_lists() -> None:
    root = digits_root()
    assert root == digits_root()
    for domain, count in (("fonts", 10 * PER_CLASS), ("handwritten", 1797)):
        paths, labels = read_list(root / f"{domain}.txt", root)
        assert (len(paths), set(labels.tolist())) == (count, set(range(10)))
        assert all((root / path).is_file() for path in paths)
        assert all(path.split("/")[1] == str(label) for path, label in zip(paths, labels.tolist(), strict=True))


def test_every_rendered_digit_has_ink_inside_the_frame() -> None:
    root = digits_root()
    for path in read_list(root / "fonts.txt", root)[0][::37]:
        pixels = np.asarray(Image.open(root / path))
        assert pixels.shape == (32, 32)
        assert pixels.max() > 128
        assert np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]).max() < 255


def test_made_at_a_root_of_ones_own_and_never_over_something_else(tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match="is not empty and holds no digits"):
        digits_root(other)
    assert (digits_root(tmp_path / "new") / "handwritten.txt").is_file()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["mine", "new"]
    with pytest.raises(ValueError, match="cannot write the digits"):
        digits_root(other / "thesis.txt" / "digits")

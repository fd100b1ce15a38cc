"""A damaged or hostile file of settings: a configuration, or a ValueError of a reasonable length."""

import re
from pathlib import Path

import pytest

from fastget.config import make_config
from fastget.runs.folder import RunFolder
from tests.fuzz.mutations import mutations

LONGEST = 3000  # characters of a message


def read(file: Path) -> bool:
    """Whether it is a configuration."""
    said = ""
    try:
        make_config(file=file)
    except ValueError as error:
        said = str(error)
    assert len(said) < LONGEST
    return not said


@pytest.mark.parametrize("count", [1000, 25_000])
def test_mutations(tmp_path: Path, count: int) -> None:
    """Of each section alone: a whole file takes ten times as long, and is damaged in one place as well."""
    good = make_config({"train.seeds": "0,1", "data.name": "lists", "data.source": "a.txt"}).to_yaml()
    sections = re.split(r"\n(?=\w)", good)
    assert len(sections) > 5
    file = tmp_path / "c.yaml"
    taken = 0
    for number, section in enumerate(sections):
        for content in mutations(section.encode(), -(-count // len(sections)), seed=number):
            file.write_bytes(content)
            taken += read(file)
    assert 0 < taken < count


def test_a_billion_laughs(tmp_path: Path) -> None:
    lines = ["a: &a0 [lol, lol]"]
    lines += [f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (tmp_path / "c.yaml").write_text("\n".join(lines) + "\ntrain: {out: *a11}\n")
    with pytest.raises(ValueError, match=r"line 2: \*a0 repeats a section or a list"):
        make_config(file=tmp_path / "c.yaml")


@pytest.mark.parametrize("nested", ["[" * 20_000, "{a: " * 20_000, "\n".join(" " * i + "a:" for i in range(2_000))])
def test_deep_nesting(tmp_path: Path, nested: str) -> None:
    (tmp_path / "c.yaml").write_text(f"train:\n  seeds: {nested}" if nested[0] != "a" else nested)
    with pytest.raises(ValueError, match="nested more than 10 deep"):
        make_config(file=tmp_path / "c.yaml")


@pytest.mark.parametrize(
    "text",
    ["train: {out: 2020-13-45}", "train: {max_steps: " + "9" * 5000 + "}", "? [a, b]\n: {c: d}",
     "train: !!python/none {}", "train: {out: !!float x}", "train: {out: *nobody}", "- a\n- b", "\x00",
     "train: {seeds: [[[0]]]}"],
)  # fmt: skip
def test_odd_values(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert not read(tmp_path / "c.yaml")


def test_a_name_for_a_value_is_fine(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data: {resize: &side 64, crop: *side}")
    assert make_config(file=tmp_path / "c.yaml").data.crop == 64


def test_a_runs_own_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("train: [")
    with pytest.raises(ValueError, match=r"config\.yaml is not valid YAML"):
        RunFolder(tmp_path, 2).stored_config()


def test_a_module_that_is_relative_to_nothing() -> None:
    with pytest.raises(ValueError, match=r"method\.module: '\.mine' begins with a dot"):
        make_config({"method.module": ".mine"})

"""The model card: metadata that Hugging Face reads, and the run's own figures."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fastget.commands.main import main
from tests.report.support import write_run


def parts(card: str) -> tuple[dict[str, Any], str]:
    """The YAML at its head, and the Markdown."""
    empty, head, text = card.split("---\n", 2)
    assert not empty
    content: dict[str, Any] = yaml.safe_load(head)
    return content, text


def test_over_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "get" / f"seed-{seed}", seed=seed, accuracy=(0.5, 0.6 + 0.1 * seed))
    assert main(["report", str(tmp_path / "get"), "--license", "mit", "--name", "sketches", "--card"]) == 0
    head, text = parts((tmp_path / "get" / "README.md").read_text())
    assert (head["license"], head["datasets"], head["metrics"]) == ("mit", ["folder"], ["accuracy"])
    assert head["pipeline_tag"] == "image-classification"
    assert "domain-adaptation" in head["tags"]
    (model,) = head["model-index"]
    assert model["name"] == "sketches"
    (result,) = model["results"]
    assert result["task"]["type"] == "image-classification"
    assert [metric["value"] for metric in result["metrics"]] == [65, 32.5]
    assert "65.0 ± 7.1 %" in text
    assert "| before adaptation | 25.0 % | 20.0 % |" in text
    assert "dog (50.0 %)" in text
    assert str(tmp_path) not in text  # no place of this machine


def test_of_a_digits_run(digits_run: Path) -> None:
    assert main(["report", str(digits_run), "--card", "card.md"]) == 0
    head, text = parts(Path("card.md").read_text())
    assert head["license"] == "unknown"
    assert head["model-index"][0]["results"][0]["metrics"][0]["value"] > 30
    assert "cropped at the centre to 28" in text
    assert "Classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9." in text


def test_without_labels_no_accuracy_is_claimed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", labelled=False)
    assert main(["report", str(folder), "--card"]) == 0
    head, text = parts((folder / "README.md").read_text())
    assert "model-index" not in head
    assert "accuracy is not known" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["open"], "has not ended, so that there are no figures for a card"),
        (["gone"], "no folder gone"),
        (["."], "holds runs of 2 kinds"),
        (["open", "--card", "card.txt"], "ends in .md, got card.txt"),
        (["done", "--card", "nowhere/card.md"], "cannot write nowhere/card.md"),
        (["done", "--out", "card.html"], "--out is the page's, and --card writes no page"),
    ],
)
def test_bad_input(args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "open", finished=False)
    write_run(tmp_path / "done", method__name="mcc")
    assert main(["report", *args, *([] if "--card" in args else ["--card"])]) == 2
    assert message in " ".join(capsys.readouterr().err.split())

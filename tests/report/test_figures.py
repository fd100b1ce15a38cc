"""What the figures say, against figures worked out by hand."""

import csv
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fastget.report import curves, detail
from fastget.report.detail import images
from fastget.report.embedding import Projection, embedding, project
from fastget.report.read import Run, find_runs, group, read_run
from tests.report.support import CLASSES, write_features, write_labels, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = write_run(tmp_path / "run")
    write_labels(folder)
    write_features(folder, "before", "after")
    return read_run(folder)


def test_convergence_over_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "0", accuracy=(0.5, 0.6))
    write_run(tmp_path / "1", accuracy=(0.5, 0.8), seed=1)
    figure = curves.convergence(group(find_runs([tmp_path])))
    names = [choice["name"] for choice in figure.data["choices"]]
    assert names == ["accuracy", "mean class accuracy", "entropy"]
    (line,) = figure.data["choices"][0]["series"]
    assert line["points"][0] == [5, 25, 25, 25]  # the end of the warm-up
    std = 100 * 0.1 * 2**0.5
    assert line["points"][-1] == pytest.approx([20, 70, 70 - std, 70 + std], rel=1e-4)
    assert figure.data["marks"] == [[5, "adaptation starts"]]


def test_without_labels_the_criteria_are_left(tmp_path: Path) -> None:
    figure = curves.convergence(group([read_run(write_run(tmp_path / "run", labelled=False))]))
    assert [choice["name"] for choice in figure.data["choices"]] == ["entropy"]
    assert "no labels" in figure.words


def test_losses(run: Run) -> None:
    figure = curves.losses(group([run]))
    assert [choice["name"] for choice in figure.data["choices"]] == ["loss", "loss source"]
    assert figure.data["choices"][0]["series"][0]["points"] == [[10, 3], [20, 1.5]]


def test_where_the_time_went(run: Run) -> None:
    """10 steps of 1 s and 10 of 3 s, a quarter of them waiting; the pauses began again at 0 when it was resumed."""
    (row,) = curves.where_the_time_went(group([run])).data["rows"]
    seconds = {part["name"]: part["seconds"] for part in row["parts"]}
    assert seconds == {
        "network and optimizer": 28,
        "the method": 2,
        "waiting for data": 10,
        "evaluations and checkpoints": 3,
    }


def test_classes(run: Run) -> None:
    data = detail.per_class(run).data
    assert [row["name"] for row in data["rows"]] == list(CLASSES)
    assert [row["images"] for row in data["rows"]] == [3, 2, 1]
    assert [row["predicted"] for row in data["rows"]] == [2, 2, 2]
    assert data["rows"][1]["accuracy"] == 50
    assert [row["before"] for row in data["rows"]] == [100, 0, 100]  # of the sample: 1 is taken for 0
    assert [row["share"] for row in data["rows"]] == [25, 50, 25]
    assert data["absent"] == []


def test_classes_that_are_probably_absent(run: Run) -> None:
    with (run.folder / "classes.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["class", "share", "low", "high", "predicted", "probably_absent", "true_share"])
        writer.writerows([[name, 0.3, 0.2, 0.4, 2, str(name == "dog").lower(), 0.5] for name in CLASSES])
    data = detail.per_class(read_run(run.folder)).data
    assert data["absent"] == ["dog"]
    assert (data["rows"][0]["share"], data["rows"][0]["low"], data["rows"][0]["true_share"]) == (30, 20, 50)


def test_confusion(run: Run) -> None:
    figure = detail.confusion(run)
    assert figure.data["cells"] == [[0, 0, 2], [0, 1, 1], [1, 1, 1], [1, 2, 1], [2, 2, 1]]
    assert "cat taken for dog (1)" in figure.words


def test_confidence(run: Run) -> None:
    data = detail.confidence(run).data
    right, wrong = (bar["counts"] for bar in data["bars"])
    assert (sum(right), sum(wrong)) == (4, 2)
    assert wrong[7] + wrong[8] == 1  # 0.40, an edge
    assert right[-1] == 2  # 0.97 and 0.99


def test_prior(run: Run) -> None:
    data = detail.prior(run).data
    assert data["steps"] == [10, 20]
    assert data["true"] == pytest.approx([50, 33.333, 16.667])
    assert data["distance"] == pytest.approx([50, 25], abs=1e-3)
    first, second = data["over_time"]["choices"]
    assert first["series"][0]["points"] == [[10, 50], [20, 25]]
    assert [line["name"] for line in second["series"]] == list(CLASSES)


def test_pseudo_labels(run: Run) -> None:
    figure = detail.pseudo_labels(run)
    accuracy, coverage, sure = figure.data["choices"]
    assert {line["name"]: line["points"] for line in accuracy["series"]} == {
        "network": [[10, 50], [20, 50]],
        "y_M": [[10, 75], [20, 75]],
    }
    assert coverage["series"][1]["points"] == [[10, 25], [20, 25]]
    assert [line["name"] for line in sure["series"]] == ["y_M"]  # of the network's none was sure


@pytest.mark.parametrize("projection", ["pca", "tsne", "umap"])
def test_groups_of_features_stay_together(projection: Projection) -> None:
    rng = np.random.default_rng(0)
    middle = np.repeat(np.eye(4, 16), 20, axis=0)
    plane = project((middle + 0.02 * rng.normal(size=(80, 16))).astype(np.float32), projection)
    assert plane.shape == (80, 2)
    assert (plane.min(), plane.max()) == (0, 1)
    distance = np.linalg.norm(plane[:, None] - plane[None], axis=2) + np.eye(80)
    nearest = distance.argmin(1)
    assert (nearest // 20 == np.arange(80) // 20).mean() > 0.9


def test_before_and_after(run: Run) -> None:
    data = embedding(run, "pca", points=40).data
    assert [panel["name"] for panel in data["panels"]] == ["before adaptation", "after adaptation"]
    for panel in data["panels"]:
        assert len(panel["points"]) == 40
        assert {tuple(point[2:4]) for point in panel["points"]} == {(0, 0), (1, 0), (2, 2)}


def test_features_that_are_no_numbers(run: Run) -> None:
    file = run.folder / "features_after.safetensors"
    tensors = load_file(file)
    tensors["features"][3, 1] = np.inf
    save_file(tensors, file)
    assert embedding(run, "pca").why == "some features are not finite"


def test_the_figure_is_the_papers(run: Run) -> None:
    assert embedding(run).words.startswith("UMAP of the bottleneck's features, 60 target images")


def test_without_umap_learn_it_is_t_sne_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastget.report.embedding.find_spec", lambda name: None)
    assert embedding(run).words.startswith("t-SNE of the bottleneck's features, 60 target images")
    with pytest.raises(ValueError, match=r"needs umap-learn.*pip install 'fastget\[report\]'"):
        embedding(run, "umap")


def test_runs_of_an_older_version_are_told_why(tmp_path: Path) -> None:
    old = read_run(write_run(tmp_path / "run"))
    for figure in (detail.prior(old), detail.pseudo_labels(old), embedding(old)):
        assert not figure.data
        assert "a version that did not store it" in figure.why


def test_a_method_without_a_prior_is_told_so(run: Run) -> None:
    lines = (run.folder / "labels.jsonl").read_text().replace('{"prior": [1.0, 0.0, 0.0]}', "{}")
    (run.folder / "labels.jsonl").write_text(lines.splitlines()[0] + "\n")
    assert detail.prior(read_run(run.folder)).why == "get estimates no shares of the classes"


def test_images_that_are_gone(run: Run) -> None:
    figure = images(run)
    assert not figure.data
    assert "Tell where by --root" in figure.why


def test_an_unfinished_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", finished=False))
    for make in (detail.per_class, detail.confusion, detail.confidence, images):
        assert "has not ended" in make(run).why

"""Results as data: from a study's runs, checked as they are read, added to a folder, shown in pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastget.archive.__main__ import main as archive
from fastget.archive.collect import of_study
from fastget.archive.leaderboard import END, filled, panels
from fastget.archive.record import DoneRun, Record, RecordHead, build, configuration_hash, read, write
from fastget.archive.statistics import Metric
from fastget.commands.main import main
from fastget.data.feature_store import Origin, Store
from fastget.runs.summary import SeedSummary
from tests.studies.support import ACCURACY, stand_in


def a_run(
    folder: Path, seed: int, accuracy: float | None, target: str = "b", method: str = "get", **more: Any
) -> DoneRun:
    """A finished run, with as much on disk as a record needs."""
    summary = SeedSummary(
        method=method, data="toy", setting="uda", source="a", target=target, steps=2, images={}, accuracy=accuracy,
        mean_class_accuracy=accuracy and accuracy / 2, source_only=None, per_class_accuracy={}, seed=seed,
        backbone={"name": "small", "sha256": str(seed)}, **more,
    )  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary.to_dict()))
    made = {"commit": "c0ffee", "device": "CPU", "platform": "Linux"}
    (folder / "environment.json").write_text(json.dumps(made))
    if accuracy is not None:
        lines = [
            {"step": 1, "accuracy": accuracy + 0.1, "entropy": 0.5},
            {"step": 2, "accuracy": accuracy, "entropy": 0.1},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(
        f"data: {{name: toy, source: a, target: {target}}}\ntrain: {{seeds: [{seed}]}}\n"
    )
    return DoneRun(folder, summary)


def a_row(method: str = "get", **more: Any) -> RecordHead:
    metric: Metric = "accuracy"
    given = {"data": "toy", "setting": "uda", "base": "plain", "recipe": "default", "metric": metric, "study": "test"}
    return RecordHead(method=method, **{**given, "title": "GeT", **more})


def a_record(tmp_path: Path) -> Record:
    b = [a_run(tmp_path / f"b{seed}", seed, 0.8 + seed / 100) for seed in (0, 1)]
    c = [a_run(tmp_path / f"c{seed}", seed, 0.5 + seed / 100, target="c") for seed in (0, 1)]
    record = build(a_row(), {"a->b": [b], "a->c": [c], "mean": [b, c]}, "mean", {"a->b": "79.5", "mean": None})
    assert record is not None
    return record


def test_a_record_of_runs(tmp_path: Path) -> None:
    record = a_record(tmp_path)
    assert (record.ours, record.std, record.n, record.reported) == (65.5, 0.707, 2, None)
    assert (record.seeds, record.commit, record.machine) == ([0, 1], ["c0ffee"], ["CPU; Linux"])
    assert record.backbone == {"name": "small"}  # each seed began with weights of its own
    b = record.tasks["a->b"]
    assert (b.reported, b.ours, b.difference, b.per_seed) == (79.5, 80.5, 1.0, {"0": 80.0, "1": 81.0})
    assert b.other_metrics == {"mean_class_accuracy": 40.25}
    assert b.other_selections["best iterate (oracle)"]["ours"] == 90.5
    assert b.other_selections["entropy"]["ours"] == 80.5
    assert write(tmp_path / "results", [record]) == [tmp_path / "results"]
    file = tmp_path / "results" / "toy" / "uda" / "get.json"
    assert read(file, tmp_path / "results") == record


def test_names_of_files() -> None:
    assert a_row(base="cdan", recipe="paper").name == "cdan-get-paper"
    assert a_row(variant="get-without-mixed-labels").name == "get-without-mixed-labels"


def test_no_record_without_labels_or_a_task(tmp_path: Path) -> None:
    blind = a_run(tmp_path / "r", 0, None)
    assert build(a_row(), {"a->b": [[blind]]}, "a->b", {}) is None
    seen = a_run(tmp_path / "s", 0, 0.5)
    assert build(a_row(), {"a->b": [[seen]], "mean": [[seen], []]}, "mean", {}) is None


def test_the_hash_is_of_neither_task_nor_seed(tmp_path: Path) -> None:
    one, two = a_run(tmp_path / "b", 0, 0.5).folder, a_run(tmp_path / "c", 1, 0.5, target="c").folder
    assert configuration_hash([one]) == configuration_hash([two]) == configuration_hash([one, two])
    for line, same in (("get: {tau: 0.3}", False), ("train: {seeds: [0], device: cuda}", True)):
        (one / "config.yaml").write_text(f"data: {{name: toy}}\n{line}\n")
        assert (configuration_hash([one]) == configuration_hash([two])) == same


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree.update(ours=99.0), "not those of its headline"),
        (lambda tree: tree["tasks"]["a->b"].update(ours=99.0), "ours of a->b is 99.0, and by its seeds 80.5"),
        (lambda tree: tree["tasks"]["mean"].update(std=0.1), "std of mean is 0.1, and by its seeds 0.707"),
        (lambda tree: tree["tasks"]["a->b"].update(reported=10.0), "difference of a->b is 1.0"),
        (lambda tree: tree["tasks"]["mean"]["per_seed"].pop("0"), "n = 2 and seeds 1"),
        (lambda tree: tree.update(setting="pda"), "it tells of toy/pda/get.json"),
        (lambda tree: tree.update(selection="best"), "expected one of accuracy"),
        (lambda tree: tree.update(commit=[]), "commit, machine or the configuration's hash is missing"),
        (lambda tree: tree.pop("machine"), "damaged, or no result of fastget"),
    ],
)
def test_a_result_that_was_changed_by_hand_is_told(change: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path / "results", [a_record(tmp_path)])
    file = tmp_path / "results" / "toy" / "uda" / "get.json"
    tree = json.loads(file.read_text())
    change(tree)
    file.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match=r"get\.json") as error:
        read(file, tmp_path / "results")
    assert message in str(error.value)


# --- pages ---------------------------------------------------------------------------------------


def test_a_page_shows_what_the_results_say(tmp_path: Path) -> None:
    ours = build(a_row(), {"a->b": [[a_run(tmp_path / f"{s}", s, 0.8 + s / 50) for s in (0, 1)]]}, "a->b", {})
    below = build(a_row("source-only"), {"a->b": [[a_run(tmp_path / f"s{s}", s, 0.6) for s in (0, 1)]]}, "a->b", {})
    worse = build(a_row("minent"), {"a->b": [[a_run(tmp_path / "m", 0, 0.1)]]}, "a->b", {})
    assert ours is not None
    assert below is not None
    assert worse is not None
    page = f"# Before\n<!-- results: toy/uda; provenance -->\nold\n{END}\nafter\n"
    text = filled(page, [worse, ours, below], "page")
    assert "| method | toy<br>uda, n = 2 |" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        "| `source-only` | 60.0 ± 0.0 |",
        "| `get` | **81.0 ± 1.4** ↑ 21.0 |",
        "| `minent` | 10.0 (n = 1) ↓ 50.0 |",
    ]
    assert "- toy, uda: accuracy, 1 task, backbone small; commit c0ffee, on CPU." in text
    assert text.startswith("# Before\n<!-- results: toy/uda; provenance -->\n|")
    assert "commit" not in filled(page.replace("; provenance", ""), [worse, ours, below], "page")
    assert text.endswith(f"{END}\nafter\n")
    assert filled(text, [worse, ours, below], "page") == text
    some = filled(page.replace("; provenance", "; methods: get"), [worse, ours, below], "page")
    assert [line[:7] for line in some.splitlines() if line.startswith("| `")] == ["| `get`"]
    with pytest.raises(ValueError, match=r"page: no results of 'toy/pda' \(did you mean 'toy/uda'\?\)"):
        filled(page.replace("toy/uda", "toy/pda"), [ours], "page")
    with pytest.raises(ValueError, match=r"after a semicolon stands .* got 'notes'"):
        filled(page.replace("provenance", "notes"), [ours], "page")
    with pytest.raises(ValueError, match="has no <!-- results end"):
        filled(page.replace(END, ""), [ours], "page")


def test_a_picture_shows_them_too(tmp_path: Path) -> None:
    ours = build(a_row(), {"a->b": [[a_run(tmp_path / f"{s}", s, 0.8 + s / 50) for s in (0, 1)]]}, "a->b", {})
    other = build(a_row("mcc", setting="pda"), {"a->b": [[a_run(tmp_path / "m", 0, 0.1)]]}, "a->b", {})
    assert ours is not None
    assert other is not None
    drawn = panels("toy/uda, toy/pda", [other, ours])
    assert list(drawn) == ["toy/uda", "toy/pda"]
    assert [dot.name for dot in drawn["toy/uda"]] == ["get", "mcc"]
    get, mcc = drawn["toy/uda"]
    assert (get.single, get.mark) == ([0.8, 0.82], "best")
    assert get.figure is not None
    assert tuple(get.figure) == pytest.approx((0.81, 0.01414, 2), abs=1e-5)
    assert (mcc.figure, mcc.single, mcc.state) == (None, [], "not run")
    assert drawn["toy/pda"][1].figure == (0.1, None, 1)


def test_a_recipe_is_a_row_of_its_own(tmp_path: Path) -> None:
    axes = {"methods": ["get"], "bases": ["plain"], "settings": ["uda"], "tasks": ["a-b"], "seeds": ["0"]}
    found: list[Record] = []
    for recipe, accuracy in (("default", 0.9), ("paper", 0.7)):
        a_run(tmp_path / recipe / "uda" / "a-b" / "plain-get" / "seed-0", 0, accuracy, recipe=recipe)
        (tmp_path / recipe / "compare.json").write_text(json.dumps({"axes": axes}))
        found += of_study(tmp_path / recipe, metric="accuracy")
    assert [str(one.place) for one in found] == ["toy/uda/get.json", "toy/uda/get-paper.json"]
    assert found[1].row == "get, paper's values"
    others = [
        build(row, {"a->b": [[a_run(tmp_path / row.name, 0, 0.5, method=row.method)]]}, "a->b", {})
        for row in (a_row("source-only"), a_row("bnm"), a_row(base="cdan", title="get on cdan"))
    ]
    records = [*(one for one in others if one is not None), *found]
    text = filled(f"<!-- results: toy/uda -->\n{END}\n", records, "page")
    rows = [line.split(" |")[0] for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows == ["| `source-only`", "| `get`", "| `get`, paper's values", "| `bnm`", "| get on cdan"]
    assert "| `get`, paper's values | 70.0 ↑ 20.0 |" in text
    assert [dot.name for dot in panels("toy/uda", records)["toy/uda"]][1:3] == ["get", "get, paper's values"]
    some = filled(f"<!-- results: toy/uda; methods: get, get-paper -->\n{END}\n", records, "page")
    assert [line[:8] for line in some.splitlines() if line.startswith("| `")] == ["| `get` ", "| `get`,"]


# --- the command ---------------------------------------------------------------------------------


def test_add_and_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(monkeypatch, failing="mcc")
    words = ["compare", "--methods", "source-only,get,mcc", "--seeds", "0,1", "--settings", "uda,pda", "--out", "c"]
    assert main(words) == 1
    assert sorted(file.stem for file in Path("c/results").rglob("*.json")) == [
        "get",
        "get",
        "source-only",
        "source-only",
    ]
    assert archive(["add", "c"]) == 0
    assert "results/digits/uda/get.json: 90.5 (n = 2)" in capsys.readouterr().out
    tree = json.loads(Path("results/digits/pda/get.json").read_text())
    assert tree["tasks"]["fonts->handwritten"]["per_seed"] == {"0": 80.0, "1": 81.0}
    assert tree["ours"] == pytest.approx(100 * (ACCURACY["get"] - 0.1) + 0.5)
    assert tree["study"] == "compare"
    Path("README.md").write_text(f"<!-- results: digits/uda, digits/pda -->\n{END}\n")
    assert archive(["tables", "--check"]) == 1
    assert "README.md is not as results has it: run `python -m fastget.archive tables`" in capsys.readouterr().out
    assert archive(["tables"]) == 0
    assert "| `get` | **90.5 ± 0.7** ↑ 30.0 | **80.5 ± 0.7** ↑ 30.0 |" in Path("README.md").read_text()
    assert archive(["tables", "--check"]) == 0
    assert archive(["plot", "digits/uda,digits/pda", "--out", "two.png"]) == 0
    assert Path("two.png").read_bytes().startswith(b"\x89PNG")
    # the same again changes nothing; others are not overwritten unasked
    assert archive(["add", "c"]) == 0
    assert archive(["add", "c", "--metric", "mean_class_accuracy"]) == 2
    assert "is there and differs: --replace" in " ".join(capsys.readouterr().err.split())
    assert archive(["add", "c", "--metric", "mean_class_accuracy", "--replace"]) == 0
    assert archive(["tables", "--check"]) == 1
    # a figure that was changed by hand
    file = Path("results/digits/uda/get.json")
    file.write_text(file.read_text().replace("45.25", "46.25", 1))
    assert archive(["tables", "--check"]) == 2
    assert "does not add up" in " ".join(capsys.readouterr().err.split())


def test_results_that_are_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert archive(["add", str(tmp_path)]) == 2
    assert archive(["tables"]) == 2
    Path("README.md").write_text(f"<!-- results: digits/uda -->\n{END}\n")
    assert archive(["tables"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    for part in ("holds no results", "no page here shows results", "results is no folder of results"):
        assert part in text


def test_features_go_by_the_name_of_their_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, store = tmp_path / "study", tmp_path / "f"
    store.mkdir()
    Store(store, Origin("office31", "resnet50", "random", "0" * 64, 4, "float32"), ("x",)).write()
    axes = {"methods": ["get"], "bases": ["plain"], "settings": ["pda-random"], "tasks": ["a-b"], "seeds": ["0"]}
    run = a_run(study / "pda-random" / "a-b" / "plain-get" / "seed-0", 0, 0.5)
    (study / "compare.json").write_text(json.dumps({"axes": axes}))
    tree = json.loads((run.folder / "summary.json").read_text())
    (run.folder / "summary.json").write_text(json.dumps({**tree, "data": "features"}))
    (run.folder / "config.yaml").write_text(f"data: {{name: features, root: {store}}}\n")
    assert archive(["add", str(study)]) == 0
    tree = json.loads(Path("results/office31-features/pda-random/get.json").read_text())
    assert tree["metric"] == "accuracy"  # office31's own
    (run.folder / "config.yaml").write_text("data: {name: features, root: gone}\n")
    assert archive(["add", str(study)]) == 2
    assert "say it by --data" in " ".join(capsys.readouterr().err.split())
    assert archive(["add", str(study), "--data", "office31-features", "--replace"]) == 0

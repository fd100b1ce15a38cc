"""A run's folder: one writer, a folder each, and the data that it was started on."""

import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from fastget.common.lock import held
from fastget.config import make_config
from fastget.runs.checkpoint import load_checkpoint, save_checkpoint
from fastget.runs.folder import held_folder, new_folder, other_data
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.features.support import on_features, small_store, torch_file
from tests.support import metrics


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features, which train in no time. Not to be written to."""
    return small_store(tmp_path_factory.mktemp("features") / "small").folder


def test_a_second_process_in_a_runs_folder_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of a run, as another process would: it would write every step a second time."""
    said: list[str] = []
    step = Engine.train_step

    def second(self: Engine, *given: Any) -> None:
        if self.steps_done == 3:
            monkeypatch.setattr(Engine, "train_step", step)
            for out in ("run", "run/seed-0"):
                with pytest.raises(ValueError, match=r"in use by .*process") as refused:
                    train(on_features(root, out, train__resume="auto"), quiet=True)
                said.append(str(refused.value))
        step(self, *given)

    monkeypatch.setattr(Engine, "train_step", second)
    train(on_features(root, "run", train__seeds="0,1"), quiet=True)
    assert len(said) == 2
    assert [line["step"] for line in metrics(Path("run/seed-0")) if "loss" in line] == [3, 6, 9, 12]
    assert not list(Path("run").rglob(".lock*"))


def test_the_lock_of_another_host(root: Path) -> None:
    with held(Path("run")):
        lock = json.loads(Path("run/.lock.json").read_text())
        Path("run/kept").touch()
    Path("run/.lock.json").write_text(json.dumps({**lock, "host": "node7", "boot": "its own"}))
    with pytest.raises(ValueError, match=r"node7.*train\.lock=take"):
        train(on_features(root, "run"), quiet=True)
    train(on_features(root, "run", train__lock="take"), quiet=True)
    assert make_config(file="run/config.yaml").train.lock == "heed"


def test_runs_that_start_together_have_a_folder_each(tmp_path: Path) -> None:
    start, made = threading.Barrier(8), []

    def make() -> None:
        start.wait()
        for _ in range(5):
            made.append(new_folder(tmp_path / "runs" / "name"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(set(made)) == 40


def test_two_runs_without_a_name_never_share(root: Path) -> None:
    config = on_features(root, "none")
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, out=None))
    with held_folder(config) as one, held_folder(config) as other:
        assert one != other
        assert one.is_dir()
    assert not one.exists()  # nothing came into it


def test_a_run_that_cannot_start_leaves_no_folder(root: Path) -> None:
    with pytest.raises(ValueError, match="nosuch"):
        train(on_features(root, "run", data__target="nosuch"), quiet=True)
    assert not Path("run").exists()


# --- the data --------------------------------------------------------------------------------------


def test_a_run_goes_on_with_its_own_data_alone(root: Path, tmp_path: Path) -> None:
    train(on_features(root, "run"), quiet=True)
    for name in ("summary.json", "checkpoints/final.pt", "checkpoints/step_00000012.pt"):
        (Path("run") / name).unlink()
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    more = small_store(tmp_path / "more", per_class=13).folder
    with pytest.raises(ValueError, match=r"other data: source \(photo\) had 48 images there, and has 52 here"):
        train(on_features(more, "run", train__resume="auto"), quiet=True)
    train(on_features(moved, "run", train__resume="auto"), quiet=True)
    with pytest.raises(ValueError, match=r"other (data|settings)"):  # nor is a finished one taken for this one's
        train(on_features(more, "run", train__resume="auto"), quiet=True)
    Path("run/split.json").write_text('{"lists": {"source": 3}}')
    with pytest.raises(ValueError, match=r"split\.json is damaged"):
        train(on_features(moved, "run", train__resume="auto"), quiet=True)


def test_what_is_other_data() -> None:
    one = {"lists": {"target": {"name": "a", "images": 2, "sha256": "x"}}}
    assert other_data(one, one) == other_data({}, one) == []
    relabelled = {"lists": {"target": {"name": "a", "images": 2, "sha256": "y"}}}
    assert other_data(one, relabelled) == ["target (a) has as many images, and other paths or labels"]
    there, here = ({**one, "left_out": [{"path": f"{root}/bad.png"}]} for root in ("old", "new"))
    assert other_data(there, here) == []
    assert other_data(one, here) == ["0 bad images were left out there, 1 here (bad.png)"]


# --- damaged checkpoints -----------------------------------------------------------------------------


def test_new_checkpoints_are_kept_where_later_ones_are_damaged(root: Path) -> None:
    whole = train(on_features(root, "whole"), quiet=True)
    train(on_features(root, "run", train__checkpoint_every=3, train__keep_checkpoints=4), quiet=True)
    for file in Path("run").rglob("*.pt"):
        if file.name != "step_00000003.pt":
            file.write_bytes(file.read_bytes()[:-1000])
    Path("run/summary.json").unlink()
    seen: list[set[str]] = []
    save = save_checkpoint
    settings = {"train__checkpoint_every": 1, "train__keep_checkpoints": 2, "train__resume": "auto"}

    def saved(file: Path, state: dict[str, Any]) -> None:
        save(file, state)
        seen.append({f.name for f in file.parent.glob("step_*.pt")})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastget.runs.checkpoint.save_checkpoint", saved)
        train(on_features(root, "run", **settings), quiet=True)
    assert all(f"step_{step:08d}.pt" in seen[step - 3] for step in range(5, 13))  # none went as soon as it had come
    assert {f.name for f in Path("run/checkpoints").iterdir()} == {
        "step_00000006.pt.damaged", "step_00000009.pt.damaged", "step_00000012.pt.damaged", "final.pt.damaged",
        "step_00000011.pt", "step_00000012.pt", "final.pt",
    }  # fmt: skip
    a, b = (load_checkpoint(Path(name) / "checkpoints" / "final.pt")["model"] for name in ("run", "whole"))
    assert all((a[name] == b[name]).all() for name in a)
    assert metrics(Path("run")) == metrics(whole.folder)


def test_features_are_made_by_one_process(tmp_path: Path) -> None:
    from fastget.features.make import make_features

    with held(tmp_path / "features"), pytest.raises(ValueError, match="in use by"):
        make_features(make_config({"network.name": "small"}), tmp_path / "features")


def test_a_torch_file_that_is_none(tmp_path: Path) -> None:
    from fastget.features.imported import import_features

    for content in (b"", b"text", torch_file(tmp_path / "good.pt").read_bytes()[:2000]):
        (tmp_path / "bad.pt").write_bytes(content)
        with pytest.raises(ValueError, match="not a torch file"):
            import_features(tmp_path / "bad.pt", tmp_path / "out", name="x", backbone="y")

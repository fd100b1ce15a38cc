"""`fastget compare`: jobs, resuming, failures, tables; with stand-ins for the runs, and with real ones."""

from __future__ import annotations

import csv
import fcntl
import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from PIL import Image

from fastget.commands.main import main
from fastget.common.lock import held
from fastget.config import DataConfig
from fastget.studies import jobs
from fastget.studies.study import claim
from fastget.studies.tasks import find_tasks, folder_of
from tests.features.support import small_store
from tests.pictures import this_fastget
from tests.studies.support import mtimes, stand_in

SHORT = ["train.max_steps=6", "train.warmup_steps=2", "train.batch_size=8", "train.eval_every=6", "network.name=small",
         "train.log_every=3", "train.tensorboard=false", "train.keep_checkpoints=1", "train.device=cpu"]  # fmt: skip
BOTH = ["--methods", "source-only,get", "--settings", "uda,pda", "--seeds", "0,1", "--jobs", "2", "--out", "c"]


def rows(out: str = "c") -> list[dict[str, str]]:
    with Path(out, "results.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def said(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


def test_a_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started = stand_in(monkeypatch)
    assert main(["compare", *BOTH]) == 0
    assert len(started) == 8
    assert [row["status"] for row in rows()] == ["done"] * 8
    assert rows()[2] == {
        "method": "get", "base": "plain", "recipe": "default", "setting": "uda", "source": "fonts",
        "target": "handwritten", "seed": "0", "accuracy": "0.9", "mean_class_accuracy": "0.45", "steps": "6",
        "seconds": "3.0", "verdict": "", "status": "done", "reason": "",
    }  # fmt: skip
    table = Path("c/table.md").read_text()
    assert "## uda, accuracy\n\n| n = 2 | fonts → handwritten |" in table
    assert "| get | **90.5 ± 0.7** |" in table
    assert "| get | **80.5 ± 0.7** |" in table  # pda
    assert "## uda, mean class accuracy" in table
    assert "within one std of the best" in table
    with Image.open("c/plot.png") as picture:
        assert picture.size[0] > 800
    text = said(capsys)
    assert "8/8" in text
    assert "get, uda, fonts -> handwritten, seed 0: done, accuracy 90.0 %" in text
    # the folder is this comparison's: nothing is run again, what is gone is, and what is added is run too
    before = mtimes(Path("c"))
    Path("c/pda/fonts-handwritten/plain-get/seed-1/summary.json").unlink()
    assert main(["compare", *BOTH, "--seeds", "0,1,2"]) == 0
    assert len(started) == 8 + 1 + 4
    kept = {file: moment for file, moment in mtimes(Path("c")).items() if before.get(file) == moment}
    assert len(kept) == 7
    assert len(rows()) == 12


def test_near_the_best_and_the_mean_over_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    args = ["--methods", "get,mcc,bnm", "--seeds", "0,1", "--tasks", "all", "--metric", "mean_class_accuracy"]
    assert main(["compare", *args, "--out", "c"]) == 0
    table = Path("c/table.md").read_text()
    first = table[table.index("## uda, mean class accuracy") :].splitlines()[2:7]
    assert first == [
        "| n = 2 | fonts → handwritten | handwritten → fonts | mean |",
        "| --- | ---: | ---: | ---: |",
        "| get | **45.2 ± 0.4** | **45.2 ± 0.4** | **45.2 ± 0.4** |",
        "| mcc | 45.0 ± 0.4 † | 45.0 ± 0.4 † | 45.0 ± 0.4 † |",
        "| bnm | 35.2 ± 0.4 | 35.2 ± 0.4 | 35.2 ± 0.4 |",
    ]
    assert table.index("mean class accuracy") < table.index("## uda, accuracy")
    assert "that of each seed's mean over tasks" in table


def test_tables_name_the_recipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(monkeypatch)
    assert main(["compare", "--methods", "get", "--recipe", "paper", "--seeds", "0", "--out", "c"]) == 0
    assert "| get, paper's values | **90.0** |" in Path("c/table.md").read_text()
    assert "get, paper's values" in said(capsys)


def test_a_failing_method_is_a_row_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, failing="get")
    assert main(["compare", *BOTH]) == 1
    found = {(row["method"], row["status"], row["reason"]) for row in rows()}
    assert found == {("get", "failed", "RuntimeError: no luck"), ("source-only", "done", "")}
    table = Path("c/table.md").read_text()
    assert "| get | failed |" in table
    assert "- get in uda (fonts -> handwritten; seeds 0, 1), failed: RuntimeError: no luck" in table
    assert "failed: get, uda, fonts -> handwritten, seed 0: RuntimeError: no luck" in said(capsys)
    again = stand_in(monkeypatch)
    assert main(["compare", *BOTH]) == 0
    assert len(again) == 4


def test_what_does_not_go_together_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    started = stand_in(monkeypatch)
    args = ["--methods", "get,mme", "--settings", "uda", "--seeds", "0", "--out", "c"]
    assert main(["compare", *args]) == 0
    assert len(started) == 1
    refused = rows()[1]
    assert (refused["method"], refused["status"]) == ("mme", "refused")
    assert "made for data.setting=ssda" in refused["reason"]
    assert "| mme | refused |" in Path("c/table.md").read_text()
    assert main(["compare", "--methods", "mme", "--seeds", "0", "--out", "d"]) == 2
    assert not Path("d").exists()


def test_each_job_gets_its_own_settings() -> None:
    from fastget.studies.compare import Comparison, plan

    given = {"get.tau": "0.3", "optim.lr": "0.1"}
    what = Comparison(
        methods=["get", "mcc"], settings=["imbalanced", "pda-random"], tasks=[("a", "b")], seeds=[0, 5], given=given
    )
    found = plan(what, Path("o"))
    assert [job.settings.get("get.tau") for job in found] == ["0.3", "0.3", None, None] * 2
    assert {job.settings["optim.lr"] for job in found} == {"0.1"}
    thin, drawn = found[0].settings, found[5].settings
    assert (thin["data.setting"], thin["data.imbalanced"], thin.get("data.split_seed")) == ("uda", "true", None)
    assert (drawn["data.setting"], drawn["data.pda_subset"], drawn["data.split_seed"]) == ("pda", "random", "5")
    assert found[5].folder == Path("o/pda-random/a-b/plain-get/seed-5")
    words = jobs.command(found[5], jobs.Slot({}, {"train.threads": "1", "data.workers": "2"}), "f.yaml")
    assert words[1:6] == ["-m", "fastget", "train", "--config", "f.yaml"]
    for pair in ("train.seeds=5", "train.resume=auto", "data.workers=2", "method.name=get", "data.target=b"):
        assert pair in words


def test_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_gpus", lambda: ["2", "5"])
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in jobs.find_slots(None, "auto")] == ["2", "5"]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in jobs.find_slots(3, "auto")] == ["2", "5", "2"]
    assert "train.threads" not in jobs.find_slots(1, "auto")[0].settings
    assert [slot.environment for slot in jobs.find_slots(2, "cpu")] == [{}, {}]
    assert jobs.find_slots(2, "cpu")[0].settings["train.threads"] == "1"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--methods", "gett"], "unknown method 'gett' (did you mean 'get'?)"),
        (["--settings", "udda"], "unknown setting 'udda' (did you mean 'uda'?)"),
        (["--bases", "cdann"], "did you mean 'cdan'"),
        (["--tasks", "fonts-handwriting"], "no such task 'fonts-handwriting' (did you mean 'fonts-handwritten'?)"),
        (["--data", "folder", "--root", "."], "give --source and --target, or --tasks all"),
        (["--data", "office-home", "--tasks", "all"], "data.root is missing"),
        (["--data", "lists", "--tasks", "all"], "has no named domains"),
        (["--data", "visdaa"], "did you mean 'visda2017'"),
        (["--seeds", "0,0"], "different seeds"),
        (["--metric", "acuracy"], "did you mean 'accuracy'"),
        (["--set", "get.tua=1"], "did you mean 'get.tau'"),
        (["--set", "train.seeds=0,1"], "use --seeds"),
        (["--set", "data.setting=pda"], "use --settings"),
        (["--methods", "mcc", "--set", "get.tau=1"], "get.tau is a setting of get, which is not compared"),
        (["--methods", "mcc", "--set", "train.device=cuda:1"], "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_mistakes_are_told(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *args, "--out", "c"]) == 2
    assert message in said(capsys)
    assert not Path("c").exists()


def test_the_folder_of_another_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(monkeypatch)
    args = ["compare", "--methods", "get,bnm", "--seeds", "0", "--out", "c", "--set"]
    assert main([*args, "optim.lr=0.1"]) == 0
    assert main([*args, "optim.lr=0.10", "train.log_every=7"]) == 0  # the same, and what no figure depends on
    capsys.readouterr()
    assert main([*args, "optim.lr=0.2"]) == 2
    assert "c holds another compare: optim.lr (0.1 there, 0.2 here). Choose another --out" in said(capsys)
    assert main(["compare", "--methods", "get", "--seeds", "0", "--out", "c", "--set", "optim.lr=0.1"]) == 2
    assert "methods (bnm there, not here: it may grow, not shrink)" in said(capsys)
    assert main(["sweep", "--set", "get.tau=0.1,0.2", "--out", "c"]) == 2
    assert "holds no sweep of before" in said(capsys)


@pytest.mark.parametrize("by", ["its log", "its folder"])
def test_a_run_that_another_process_is_busy_with_is_left_to_it(
    by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a kill -9: the runs of the killed comparison go on to their end. Or a `fastget train` is on there."""
    started = stand_in(monkeypatch)
    monkeypatch.setattr(jobs, "AGAIN", 0.05)
    log = Path("c/uda/fonts-handwritten/plain-get/seed-0.log")
    log.parent.mkdir(parents=True)
    Path("c/compare.json").write_text(json.dumps({"settings": {}, "config": None, "axes": {
        "methods": [], "bases": [], "settings": [], "tasks": [], "seeds": []}}))  # fmt: skip
    release = []
    with ExitStack() as busy:
        if by == "its log":
            fcntl.flock(busy.enter_context(log.open("ab")), fcntl.LOCK_EX)
        else:
            busy.enter_context(held(log.with_suffix("")))
        real = jobs.Pool._note

        def note(self: jobs.Pool, *args: object) -> None:
            real(self, *args)  # type: ignore[arg-type]  # passed on
            release.append(len(started))
            busy.close()

        monkeypatch.setattr(jobs.Pool, "_note", note)
        assert main(["compare", "--methods", "get,bnm", "--seeds", "0", "--jobs", "2", "--out", "c"]) == 0
    assert "waiting for get, uda, fonts -> handwritten, seed 0: another process is busy with it" in said(capsys)
    assert release[0] == 1  # the other one ended first, and this one began when it was let go
    assert [row["status"] for row in rows()] == ["done", "done"]


def test_a_run_that_is_killed_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; print('step 3', flush=True); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(jobs, "command", lambda *args: [sys.executable, "-c", code])
    assert main(["compare", "--methods", "get", "--seeds", "0", "--out", "c"]) == 1
    assert rows()[0]["reason"] == "ended by SIGKILL, as where memory runs out; its last line: step 3"


def test_tasks_of_stored_features(tmp_path: Path) -> None:
    small_store(tmp_path / "small")
    data = DataConfig(name="features", root=str(tmp_path / "small"))
    assert find_tasks("all", data, None, None) == [("photo", "sketch"), ("sketch", "photo")]
    with pytest.raises(ValueError, match="did you mean 'photo-sketch'"):
        find_tasks("photo-sketsh", data, None, None)


def test_tasks_of_folders(tmp_path: Path) -> None:
    for place in ("real-world", "photo", "sketch"):
        (tmp_path / "d" / place / "cat").mkdir(parents=True)
    data = DataConfig(name="folder", root=str(tmp_path / "d"))
    assert len(find_tasks("all", data, None, None)) == 6
    assert find_tasks("all", data, "photo", None) == [("photo", "real-world"), ("photo", "sketch")]
    assert find_tasks("real-world-photo,photo-sketch", data, None, None) == [
        ("real-world", "photo"),
        ("photo", "sketch"),
    ]
    with pytest.raises(ValueError, match="did you mean 'photo-sketch'"):
        find_tasks("photo-sketches", data, None, None)
    with pytest.raises(ValueError, match="no such domain"):
        find_tasks("all", data, "photos", None)
    with pytest.raises(ValueError, match="leave --source and --target out"):
        find_tasks("photo-sketch", data, "photo", None)
    lists = DataConfig(name="lists", source="a/x.txt", target="b/y.txt")
    assert find_tasks(None, lists, None, None) == [("a/x.txt", "b/y.txt")]
    assert folder_of(("a/x.txt", "b/y.txt")) == "x-y"


BROKEN = '''
from dataclasses import dataclass
from fastget import methods
from fastget.methods.base import Method, Seen, Settings, Term

class Broken(Method):
    @dataclass(frozen=True, kw_only=True)
    class Config(Settings):
        """Fails."""

    def forward(self, seen: Seen) -> Term:
        raise RuntimeError("out of luck")

methods.register("broken-one", Broken)
'''


def test_real_runs_one_of_which_fails() -> None:
    Path("broken.py").write_text(BROKEN)
    args = ["--methods", "broken-one,source-only", "--settings", "pda-random", "--seeds", "3", "--jobs", "2", "--set"]
    assert main(["compare", "--out", "c", *args, *SHORT, "method.module=broken.py"]) == 1
    broken, fine = rows()
    assert (broken["status"], broken["reason"]) == ("failed", "RuntimeError: out of luck")
    assert (fine["status"], fine["steps"]) == ("done", "6")
    split = json.loads(Path("c/pda-random/fonts-handwritten/plain-source-only/seed-3/split.json").read_text())
    assert (split["pda_subset"], split["split_seed"], len(split["pda_classes"])) == ("random", 3, 5)


def test_asked_to_stop_and_gone_on() -> None:
    """SIGTERM in the middle of a run: it is saved, and goes on from there."""
    settings = [*SHORT, "train.checkpoint_every=2", "train.max_steps=40", "train.eval_every=40"]
    command = [sys.executable, "-m", "fastget", "compare", "--methods", "source-only", "--seeds", "0", "--out", "c"]
    command += ["--set", *settings]
    process = subprocess.Popen(command, env=this_fastget(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run = Path("c/uda/fonts-handwritten/plain-source-only/seed-0")
    while process.poll() is None and not list(run.glob("checkpoints/step_*.pt")):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    text = " ".join(process.communicate(timeout=60)[0].split())
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM with 0 of 1 jobs done" in text
    assert "Go on with the same command and --out c" in text
    assert "Traceback" not in text
    assert rows()[0]["status"] == "pending"
    assert "stopped by SIGTERM after step" in (run.parent / "seed-0.log").read_text()
    subprocess.run(command, env=this_fastget(), check=True, capture_output=True)
    assert rows()[0]["status"] == "done"
    assert "going on from step" in (run.parent / "seed-0.log").read_text()


def test_of_two_studies_that_start_together_one_has_the_folder(tmp_path: Path) -> None:
    start, refused = threading.Barrier(4), []

    def one(value: str) -> None:
        start.wait()
        try:
            claim(tmp_path / "out", "compare", {"optim.lr": value}, None, {"methods": ["get"]})
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=one, args=(f"0.{number}",)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    assert all("holds another compare" in text for text in refused)

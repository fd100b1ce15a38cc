"""Runs end to end on the embedded digits: what they write, and that they can be repeated to the bit."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from torch import Tensor

import fastget
from fastget import reference
from fastget.common.device import choose_device
from fastget.common.errors import RunFailed
from fastget.common.preprocessing import STD
from fastget.methods.get.module import GeT, Output
from fastget.methods.get.prior import COUNT_FLOOR, nearest
from fastget.runs.summary import SeedSummary, over_seeds
from fastget.selftest.engine import steps
from fastget.training.engine import Engine
from fastget.training.train import Result, train
from tests.support import TINY, assert_same_end, checkpoint, engine_of, metrics, tiny


@pytest.fixture(scope="module")
def said() -> Console:
    return Console(record=True, width=100, force_terminal=False)


@pytest.fixture(scope="module")
def run(said: Console, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Not to be written to."""
    return train(tiny(tmp_path_factory.mktemp("train") / "run", train__checkpoint_every=4), console=said)


@pytest.fixture(scope="module")
def unadapted(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Likewise, of source-only."""
    return train(tiny(tmp_path_factory.mktemp("unadapted") / "run", method__name="source-only"), quiet=True)


def test_a_runs_folder(run: Result) -> None:
    folder = run.folder
    assert {f.name for f in folder.iterdir()} == {
        "config.yaml", "environment.json", "split.json", "metrics.jsonl", "timing.jsonl", "labels.jsonl",
        "summary.json", "predictions.csv", "features_before.safetensors", "features_after.safetensors", "checkpoints",
    }  # fmt: skip
    trust = checkpoint(folder)["model"]["method.get.trust"]
    assert trust < 0.5  # after four steps of warm-up: so no classes.csv, no classes.png
    assert {f.name for f in (folder / "checkpoints").iterdir()} == {"step_00000008.pt", "step_00000012.pt", "final.pt"}

    again = fastget.make_config(file=folder / "config.yaml")
    assert again.train.max_steps == 12
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__.split("+")[0]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logs = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "accuracy" in line]
    assert [line["step"] for line in logs] == [3, 6, 9, 12]
    assert [line["step"] for line in evaluations] == [6, 12]
    assert all(line["images_per_second"] > 0 for line in logs)
    assert "loss_g" not in logs[0]  # the warm-up
    assert {"loss_source", "loss_target", "loss_g", "loss_f", "structure_g", "lr"} <= set(logs[-1])

    summary = json.loads((folder / "summary.json").read_text())
    assert summary == run.summary.to_dict()
    assert summary["accuracy"] == evaluations[-1]["accuracy"]
    assert len(summary["per_class_accuracy"]) == 10
    mean = sum(summary["per_class_accuracy"].values()) / 10
    assert summary["mean_class_accuracy"] == pytest.approx(mean)
    assert summary["source_only"]["step"] == 4
    assert len((folder / "predictions.csv").read_text().splitlines()) == 1 + 1797


def test_a_runs_own_config_repeats_it_to_the_bit(run: Result) -> None:
    again = train(fastget.make_config(file=run.folder / "config.yaml"), quiet=True)
    assert again.folder != run.folder
    assert_same_end(again.folder, run.folder)
    assert metrics(train(tiny("c", train__seeds="1"), quiet=True).folder) != metrics(run.folder)


def test_what_is_printed(said: Console, run: Result) -> None:
    text = said.export_text()
    for expected in ("target accuracy", "end of the warm-up, before it adapts", "get", "mean class accuracy"):
        assert expected in text
    assert f"saved in {run.folder}" in text


def test_dali_and_torchvision_train_alike() -> None:
    """The same batches of both domains, and the same losses as long as no argmax may fall otherwise for a pixel."""
    pytest.importorskip("nvidia.dali")
    one, other = (engine_of(data__loader=name) for name in ("dali", "torchvision"))
    for a, b in zip(one.steps(), other.steps(), strict=True):
        for x, y in zip(a.batches, b.batches, strict=True):
            assert torch.equal(x.labels, y.labels)
            assert (x.images - y.images).abs().max() <= 1.001 / 255 / min(STD)  # a level
    assert steps(one, one.plan.warmup_steps) == pytest.approx(steps(other, one.plan.warmup_steps), rel=1e-3)


class Beside:
    """GeT's forward and update, each beside the reference in float64 from the same features and memory.

    Step by step, since two runs in float32 drift apart: as fast as the CPU has it, and then an argmax falls otherwise.
    """

    def __init__(self) -> None:
        self.forward, self.update, self.steps = GeT.forward, GeT.update, 0

    def check_forward(self, get: GeT, features: Tensor, weight: Tensor, labels: Tensor) -> Output:
        out = self.forward(get, features, weight, labels)
        f, mu, w, mu_f = (t.detach().double() for t in (features, get.mu, weight, get.mu_f))
        prior = get.rule(get.pi.double(), get.trust.double())
        P = reference.posterior(f, mu, prior.log_pi, get.tau)
        chosen = P.gather(1, out.y_M[:, None])[:, 0]
        assert (chosen >= P.amax(1) - 1e-5).all()  # the likeliest, or one as likely
        f.requires_grad_()
        self.mu_f = mu_f.requires_grad_()
        self.e = reference.expectation(f, mu, w, self.mu_f, prior.log_pi, get.tau, estimate=nearest, labels=labels)
        exact = reference.objective(self.e._replace(y_M=out.y_M), prior, get.gamma_Q, get.gamma_Q)
        for name in exact._fields:
            expected = pytest.approx(getattr(exact, name).item(), rel=1e-5, abs=1e-6)  # near 0 it is the logs that err
            assert getattr(out, name).item() == expected, (self.steps, name)
        exact.loss.backward()
        features.register_hook(lambda grad: self.close(grad, f.grad))
        return out

    def check_update(self, get: GeT, *args: Any, **kwargs: Any) -> None:
        self.close(get.mu_f.grad, self.mu_f.grad)
        mu, pi, health = get.mu.double(), get.pi.double(), get.health.clone()
        reference.update_memory_(mu, pi, health, self.e, get.gamma_mu, get.gamma_pi, floor=COUNT_FLOOR)
        self.update(get, *args, **kwargs)
        self.close(get.mu, mu)
        self.close(get.pi, pi)
        for found, exact in zip(get.prior, get.rule(pi, get.trust.double()), strict=True):
            self.close(found, exact)
        assert torch.equal(get.health, health)
        self.steps += 1

    @staticmethod
    def close(found: Tensor | None, exact: Tensor | None) -> None:
        assert found is not None
        assert exact is not None
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5 * float(exact.abs().max()))


@pytest.mark.parametrize("partial", ["no", "yes"])
def test_the_kernels_train_like_the_reference(partial: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Triton's interpreter, on a few of the digits."""
    pytest.importorskip("triton")
    beside = Beside()
    monkeypatch.setattr(GeT, "forward", lambda get, f, w, labels: beside.check_forward(get, f, w, labels))
    monkeypatch.setattr(GeT, "update", lambda *args, **kwargs: beside.check_update(*args, **kwargs))
    settings = {"train__max_steps": 12, "train__eval_every": 12, "train__batch_size": 8, "data__limit": 300}
    train(tiny("kernels", get__backend="triton", get__partial=partial, **settings), quiet=True)
    assert beside.steps == 8


def test_source_only_never_sees_the_target(unadapted: Result) -> None:
    assert all("loss_target" not in line for line in metrics(unadapted.folder))
    assert unadapted.summary["source_only"] is None
    assert not any(name.startswith("method.") for name in checkpoint(unadapted.folder)["model"])


def test_several_seeds(tmp_path: Path) -> None:
    result = train(tiny("many", train__seeds="0,5", train__max_steps=6), quiet=True)
    parts = [json.loads((tmp_path / "many" / f"seed-{s}" / "summary.json").read_text()) for s in (0, 5)]
    accuracies = [part["accuracy"] for part in parts]
    assert result.summary["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert result.summary["accuracy_std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert json.loads((tmp_path / "many" / "summary.json").read_text()) == result.summary.to_dict()
    one = yaml.safe_load((tmp_path / "many" / "seed-5" / "config.yaml").read_text())
    assert one["train"]["seeds"] == [5]
    with pytest.raises(ValueError, match=r"holds the runs of seeds \[0, 5\]"):
        train(tiny("many", train__resume="auto", train__max_steps=6), quiet=True)


def test_over_seeds_without_labels(unadapted: Result) -> None:
    part = unadapted.summary
    assert isinstance(part, SeedSummary)
    blank = dataclasses.replace(part, accuracy=None, mean_class_accuracy=None, per_class_accuracy={"0": None})
    over = over_seeds([blank, blank])
    assert (over.accuracy, over.accuracy_std, over.per_class_accuracy) == (None, None, {"0": None})


def test_resume_goes_on_to_the_same_end(run: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    update = GeT.update

    def stop_in_the_middle(self: GeT, *args: Any, **kwargs: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:  # step 8, after the checkpoint of step 4 and the log line of step 6
            raise KeyboardInterrupt
        update(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(GeT, "update", stop_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            train(tiny("part", train__checkpoint_every=4), quiet=True)
    for _ in range(2):  # the second time it is done already
        part = train(tiny("part", train__checkpoint_every=4, train__resume="auto"), quiet=True)
        assert part.summary == run.summary
    assert_same_end(part.folder, run.folder)


def test_a_run_is_not_overwritten(run: Result) -> None:
    with pytest.raises(ValueError, match="already holds a run"):
        train(tiny(run.folder), quiet=True)


def test_default_folders_are_numbered(tmp_path: Path) -> None:
    settings = {"train.max_steps": 2, "train.batch_size": 8, "method.name": "source-only"}
    names = [train(fastget.make_config(settings), quiet=True).folder.name for _ in range(2)]
    assert names == ["digits-fonts-handwritten-source-only", "digits-fonts-handwritten-source-only-2"]
    assert train(fastget.make_config({**settings, "train.resume": "auto"}), quiet=True).folder.name == names[1]


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write to the run's folder .*file"):
        train(tiny("file/run"), quiet=True)


def test_nan_stops_the_run_with_step_and_advice() -> None:
    with pytest.raises(RunFailed, match=r"step .*learning rate|loss became .* lower optim\.lr"):
        train(tiny("nan", optim__lr=1e18), quiet=True)


def test_warmup_must_leave_steps() -> None:
    with pytest.raises(ValueError, match="leaves no step for the method"):
        train(tiny("w", train__warmup_steps=12), quiet=True)


def test_linear_ramp_starts_at_nothing() -> None:
    short = {"train__warmup_steps": 0, "train__max_steps": 3}
    ramp, flat = (metrics(train(tiny(kind, method__ramp=kind, **short), quiet=True).folder)
                  for kind in ("linear", "constant"))  # fmt: skip
    assert ramp[0]["loss"] < flat[0]["loss"]
    assert ramp[0]["loss"] < ramp[0]["loss_source"] + ramp[0]["loss_target"]
    assert flat[0]["loss"] == pytest.approx(flat[0]["loss_source"] + flat[0]["loss_target"], rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"get.prior": "plain", "get.prior_start": "uniform"}, {"get.partial": "yes", "get.prototype_labels": "y_M"}],
)
def test_extensions_train(options: dict[str, Any]) -> None:
    config = fastget.make_config({**TINY, **options, "train.out": "e", "train.max_steps": 6})
    assert 0 <= train(config, quiet=True).summary["accuracy"] <= 1


def test_synthetic_images_train_and_settings_may_be_a_mapping() -> None:
    given = {**TINY, "train.out": "m", "train.max_steps": 6, "data.loader": "synthetic"}
    assert train(given, quiet=True).summary["steps"] == 6


def test_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="must be cpu, cuda"):
        choose_device("gpu9")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no CUDA device"):
            choose_device("cuda")


def test_a_finished_run_of_other_settings_is_not_taken_for_this_one(run: Result) -> None:
    shutil.copytree(run.folder, "done")
    assert train(tiny("done", train__resume="auto", train__log_every=1), quiet=True).summary["steps"] == 12
    for settings in ({"get__tau": 0.5}, {"method__name": "source-only"}, {"train__max_steps": 13}):
        with pytest.raises(ValueError, match="has other settings"):
            train(tiny("done", train__resume="auto", **settings), quiet=True)


def test_a_checkpoint_never_holds_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    train_step = Engine.train_step

    def poison(self: Engine, *given: Any) -> None:
        train_step(self, *given)
        if self.steps_done == 6:
            with torch.no_grad():
                self.network.classifier.weight[0, 0] = torch.nan

    settings = {"train__checkpoint_every": 5, "train__log_every": 50, "train__eval_every": 50}
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "train_step", poison)
        with pytest.raises(RunFailed, match=r"last good checkpoint is .*step_00000005"):
            train(tiny("nan", **settings), quiet=True)
    assert train(tiny("nan", train__resume="auto", **settings), quiet=True).summary["steps"] == 12


def test_a_full_disk_ends_the_run_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastget.runs.sinks import jsonl

    def full(file: Path, values: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jsonl, "append", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*--resume auto"):
        train(tiny("full"), quiet=True)


def test_names_with_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny("a[/x]", train__max_steps=2, method__name="source-only"))
    assert "saved in a[/x]" in capsys.readouterr().out

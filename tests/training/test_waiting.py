"""Long passes over the target: they are told of, take no more memory than a step, and heed a signal."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from torch import nn

from tests.commandline import features, on_features, on_folders, say, watching
from tests.pictures import write_domains

SOURCE_ONLY = "method.name=source-only"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of 1,200 images a domain: some batches of an evaluation. Not to be written to."""
    return features(tmp_path_factory.mktemp("features") / "many", per_class=400)


def test_a_log_tells_of_an_evaluation_that_takes_long(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that leaps ahead with each batch, as if it took longer than all before."""
    real, ahead = time.monotonic, [0.0]

    def seen(module: nn.Module, images: int) -> None:
        if not module.training:
            ahead[0] = 2 * ahead[0] + 1000

    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    with watching(seen):
        done = say(*on_features(many, SOURCE_ONLY))
    assert done.code == 0, done.words
    told = re.findall(r"evaluation: [\d,]+ of 1,200 images", done.words)
    assert told, "the log has no line about the evaluation's progress"
    assert "ETA" in done.words


def test_an_evaluation_takes_no_batch_far_beyond_training_s(tmp_path: Path) -> None:
    """Of large images: its batch was 256 beside a training batch of 12, and took 5 GiB."""
    rows: list[int] = []

    def seen(module: nn.Module, images: int) -> None:
        if not module.training:
            rows.append(images)

    root = write_domains(tmp_path / "data")
    large = ("data.resize=256", "data.crop=224", "train.batch_size=2", "train.max_steps=1", "train.warmup_steps=1")
    with watching(seen):
        done = say(*on_folders(root, *large, SOURCE_ONLY, "network.bottleneck_dim=4"))
    assert done.code == 0, done.words
    assert sum(rows) >= 36, rows
    assert max(rows) <= 24, f"an evaluation of {max(rows)} images at a time beside a training batch of 2"


@pytest.mark.parametrize("method", ["source-only", "get"])
def test_a_signal_is_heeded_between_batches(many: Path, method: str) -> None:
    """In an evaluation, and in the pass that starts GeT's memory, which is the first that does not train."""
    asked: list[int] = []

    def seen(module: nn.Module, images: int) -> None:
        if not module.training:
            asked.append(images)
            if len(asked) == 1:
                os.kill(os.getpid(), signal.SIGINT)

    with watching(seen):
        done = say(*on_features(many, f"method.name={method}"))
    assert sum(asked) < 1000, f"{sum(asked)} images were looked at after Ctrl-C"
    assert done.code == 128 + signal.SIGINT, done.words
    assert "SIGINT: stopping after this" in done.words  # before it has stopped


def test_a_signal_is_answered_at_once(many: Path) -> None:
    """While the step that it meets is still computed."""
    heard: list[str] = []

    def seen(module: nn.Module, images: int) -> None:
        if module.training and not heard:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)  # Python runs its handler before the next line
            os.lseek(2, 0, os.SEEK_SET)
            heard.append(os.read(2, 10_000).decode())

    with watching(seen):
        done = say(*on_features(many))
    assert done.code == 128 + signal.SIGTERM, done.words
    assert "SIGTERM: stopping after this step" in " ".join(heard[0].split()), "no word while the step goes on"

"""What the benchmarks of whole steps compare does the work that they say: by count, never by time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import bench_eval, bench_predict, bench_scaling, bench_train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    bench_train.write_images(folder, bench_train.CLASSES)
    return folder


def test_a_step_of_each(root: Path) -> None:
    """Two images of each domain: learned from, three passes each; the peer looks at the target's once more."""
    peer, fastget = (bench_train.WAYS[name](root, "resnet18", 2, 1) for name in (bench_train.PEER, bench_train.OURS))
    fastget()  # the method's start
    theirs, ours = peer(), fastget()
    assert (theirs.passes, ours.passes) == (14, 12)
    assert theirs.reads == 1  # labels are smoothed on the host
    assert ours.reads == 0


def test_the_peer_s_images_are_fastget_s_own(root: Path) -> None:
    engine = bench_train.engine_of(root, "resnet18", 2)
    batches = engine.steps()
    given = next(batches)
    batches.close()
    assert given.source is not None
    images, labels = bench_train.by_pil(engine.loaders.source.stream, 0)
    assert torch.allclose(images, given.source.images, atol=1e-5)
    assert torch.equal(labels, given.source.labels)


def test_both_evaluations_agree(root: Path) -> None:
    made = bench_eval.blocks(root, "resnet18")
    theirs, ours = (made[name]() for name in (bench_train.PEER, bench_train.OURS))
    assert theirs == pytest.approx(ours, abs=1 / bench_train.CLASSES + 1e-6)  # a near tie may fall otherwise


def test_both_predictions_agree(tmp_path: Path) -> None:
    made = bench_predict.blocks(tmp_path, "resnet18", 4)
    theirs, ours = (made[name]() for name in (bench_predict.PEER, bench_predict.OURS))
    assert len(ours) == 4
    assert sum(a == b for a, b in zip(theirs, ours, strict=True)) >= 3


@pytest.mark.parametrize("name", ["get", "atdoc-na"])
def test_a_step_of_any_size(name: str) -> None:
    bench_scaling.one_step(name, B=4, C=3, D=8, N=16)()


def test_collectives_are_counted_on_two_ranks() -> None:
    one, two = bench_scaling.by_ranks(steps=2)
    assert one.figures["collectives a step"] == 0
    assert two.figures["collectives a step"] > 0
    assert two.figures["kB a step"] > 0

"""UDA, PDA, SSDA and imbalance: pure functions whose record rebuilds a split to the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastget.config import DataConfig
from fastget.data import protocols
from fastget.data.lists import UNLABELLED, ImageList


def domain(counts: list[int], name: str = "target") -> ImageList:
    """So many images of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    paths = [f"{name}/{label}/{i:04d}.jpg" for i, label in enumerate(labels)]
    return ImageList(name, Path("/data"), paths, labels, tuple(f"class{c}" for c in range(len(counts))))


def apply(source: ImageList, target: ImageList, **fields: Any) -> protocols.Domains:
    return protocols.apply(source, target, DataConfig(**fields))


def paths(images: ImageList) -> set[str]:
    return set(images.paths)


def test_uda_leaves_the_lists_alone() -> None:
    source, target = domain([5, 5], "source"), domain([3, 4])
    split = apply(source, target)
    assert (split.source, split.target, split.labelled_target) == (source, target, None)
    assert split.protocol["lists"]["target"]["images"] == 7


def test_pda_keeps_the_first_classes() -> None:
    target = domain([4] * 65)
    kept = protocols.pda(target, protocols.partial_classes(target.classes, 25))
    assert set(kept.labels.tolist()) == set(range(25))
    assert len(kept) == 100
    assert kept.classes == target.classes  # the network still has all of them
    protocol = apply(target, target, setting="pda", split_seed=9).protocol
    assert protocol["pda_classes"] == list(target.classes[:32])
    assert set(protocol) == {"setting", "pda_classes", "lists"}  # no trace of a choice that was not made
    with pytest.raises(ValueError, match=r"data\.pda_classes must be 1 to 65"):
        apply(target, target, setting="pda", pda_classes=66)


def test_pda_of_random_classes_is_a_draw_of_the_seed() -> None:
    source, target = domain([4] * 12, "source"), domain([4] * 12)
    split = apply(source, target, setting="pda", pda_classes=5, pda_subset="random", split_seed=3)
    kept = split.protocol["pda_classes"]
    assert {target.classes[c] for c in split.target.labels.tolist()} == set(kept)
    assert len(split.target) == 20
    assert (split.protocol["pda_subset"], split.protocol["split_seed"]) == ("random", 3)
    assert kept == [f"class{c}" for c in (2, 4, 5, 9, 10)]  # versions are compared: a seed's draw never changes
    draws = {tuple(protocols.partial_classes(target.classes, 5, seed)) for seed in range(20)}
    assert len(draws) > 15
    assert {c for draw in draws for c in draw} == set(range(12))


def test_a_draw_of_classes_depends_on_their_names_alone() -> None:
    names = [f"class{c}" for c in range(12)]
    drawn = {names[c] for c in protocols.partial_classes(names, 5, 3)}
    backwards = names[::-1]
    assert {backwards[c] for c in protocols.partial_classes(backwards, 5, 3)} == drawn
    assert {names[c] for c in protocols.partial_classes(names, 3, 3)} < drawn


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(4, 30), min_size=1, max_size=8), shots=st.sampled_from([1, 3]), seed=st.integers(0, 99)
)
def test_ssda_draws_so_many_of_each_class(counts: list[int], shots: int, seed: int) -> None:
    target = domain(counts)
    labelled, unlabelled = protocols.ssda(target, shots, seed)
    assert labelled.counts().tolist() == [shots] * len(counts)
    assert paths(labelled) | paths(unlabelled) == paths(target)
    assert not paths(labelled) & paths(unlabelled)
    again, _ = protocols.ssda(target, shots, seed)
    assert again.paths == labelled.paths


def test_a_split_depends_on_the_seed_and_not_on_the_order() -> None:
    target = domain([30, 40])
    labelled, _ = protocols.ssda(target, 3, 0)
    assert paths(protocols.ssda(target, 3, 1)[0]) != paths(labelled)
    shuffled = target.take(np.random.default_rng(0).permutation(len(target)))
    assert paths(protocols.ssda(shuffled, 3, 0)[0]) == paths(labelled)
    with pytest.raises(ValueError, match=r"class1 \(3\)"):  # more images than shots
        protocols.ssda(domain([9, 3]), 3, 0)
    # A file that is gone changes nothing but itself.
    gone = target.keep(np.array([path != labelled.paths[0] for path in target.paths]))
    assert paths(labelled) - paths(protocols.ssda(gone, 3, 0)[0]) == {labelled.paths[0]}


def test_splits_never_change() -> None:
    """Results of one version of fastget are compared with those of another: the same seed, the same files."""
    labelled, _ = protocols.ssda(domain([9, 9, 9]), 2, seed=0)
    drawn = ["0/0001", "0/0002", "1/0013", "1/0014", "2/0021", "2/0024"]
    assert labelled.paths == [f"target/{name}.jpg" for name in drawn]
    labelled, _ = protocols.ssda(domain([9, 9, 9]), 1, seed=7)
    assert labelled.paths == [f"target/{name}.jpg" for name in ("0/0004", "1/0014", "2/0020")]
    kept = protocols.imbalance(domain([9, 4]), 0.3, seed=5)
    assert kept.paths[:3] == [f"target/0/{name}.jpg" for name in ("0000", "0003", "0007")]
    assert len(kept) == 3 + 4


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(1, 50), min_size=2, max_size=9), seed=st.integers(0, 99))
def test_imbalance_thins_the_first_half_of_the_classes(counts: list[int], seed: int) -> None:
    target = domain(counts)
    kept = protocols.imbalance(target, 0.3, seed)
    for c, count in enumerate(kept.counts().tolist()):
        if c < len(counts) // 2:
            assert count == max(1, int(counts[c] * 0.3 + 0.5))
        else:
            assert count == counts[c]
    assert paths(kept) <= paths(target)


def test_imbalance_goes_on_top_of_pda_and_ssda() -> None:
    source = domain([10] * 8, "source")
    pda = apply(source, domain([10] * 8), setting="pda", pda_classes=4, imbalanced=True, split_seed=1)
    assert pda.target.counts().tolist() == [3, 3, 10, 10, 0, 0, 0, 0]
    ssda = apply(source, domain([13] * 8), setting="ssda", shots=3, imbalanced=True)
    assert ssda.target.counts().tolist() == [3] * 4 + [10] * 4
    assert ssda.labelled_target
    assert not paths(ssda.labelled_target) & paths(ssda.target)


def test_the_record_tells_a_split_from_another() -> None:
    source, target = domain([9, 9], "source"), domain([9, 9])
    drawn = [apply(source, target, setting="ssda", shots=1, split_seed=seed) for seed in (0, 0, 1)]
    first, again, other = (split.protocol["lists"]["target"]["sha256"] for split in drawn)
    assert first == again != other


def test_published_lists_are_taken_as_they_are() -> None:
    source, target = domain([9, 9], "source"), domain([9, 9])
    given_lists = target.keep(np.arange(18) % 9 == 0), target.keep(np.arange(18) % 9 != 0)
    split = protocols.apply(source, target, DataConfig(setting="ssda", shots=1), published=given_lists)
    assert (split.labelled_target, split.target) == given_lists
    assert split.protocol["split"] == "published lists"


@pytest.mark.parametrize("setting", ["pda", "ssda"])
def test_a_target_without_labels_cannot_be_split(setting: str) -> None:
    target = domain([4, 4])
    blind = ImageList("blind", target.root, target.paths, np.full(8, UNLABELLED), target.classes)
    with pytest.raises(ValueError, match="has no labels"):
        apply(target, blind, setting=setting, pda_classes=1, shots=1)
    with pytest.raises(ValueError, match="has no labels"):
        apply(target, blind, imbalanced=True)


def test_a_limit_takes_of_every_class_and_of_a_target_by_chance() -> None:
    source, target = domain([50, 3, 9], "source"), domain([500, 500])
    split = apply(source, target, limit=12)
    assert split.source.counts().tolist() in ([5, 3, 4], [4, 3, 5])
    assert len(split.target) == 12
    assert split.protocol["whole"] == {"source": 62, "target": 1000}
    blind = ImageList(target.name, target.root, target.paths, np.full(1000, UNLABELLED), target.classes)
    assert apply(source, blind, limit=12).target.paths == split.target.paths  # its labels choose nothing
    assert paths(apply(source, target, limit=12, split_seed=1).target) != paths(split.target)
    assert apply(source, target, limit=62).source is source
    with pytest.raises(ValueError, match=r"data\.limit=2 leaves source no image of some of its 3 classes"):
        apply(source, target, limit=2)

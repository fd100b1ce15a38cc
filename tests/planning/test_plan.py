"""The model of a run: its counts by hand, and how they move."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest

from fastget.config import NetworkConfig
from fastget.networks.flops import count_network
from fastget.planning.cards import CARDS, card_of, found_by
from fastget.planning.counts import method_without_content, passes_on, sizes_of
from fastget.planning.model import CONTEXT, PlanMachine, exchange, forward_seconds, hidden_rest, kept_by, memory_of
from fastget.planning.reading import cache_bytes
from fastget.planning.show import assumptions
from fastget.training.passes import StepKind, kind_of
from tests.planning.support import GPUS, config_of, plan
from tests.support import PAIRS, fitting

# --- what there is to do -------------------------------------------------------------------------


def test_visda_by_hand() -> None:
    config = config_of(network__name="resnet50")
    sizes = sizes_of(config, None, None)
    assert (sizes.source, sizes.target, sizes.classes) == (152_397, 55_388, 12)
    work = passes_on(config, sizes)
    assert work.plan.max_steps == 152_397 // 36 == 4_233
    warm = round(0.3 * 4_233)
    assert work.warm_steps == warm
    assert work.training == 3 * 36 * (warm + 2 * (4_233 - warm))
    assert work.shown == 36 * warm + 72 * (4_233 - warm)
    assert work.start == 152_397 + 55_388  # the target's start, and the source's means
    assert work.evaluation == 10 * 4_096 + 55_388  # every 423 steps, which leaves an eleventh for the rest


@pytest.mark.parametrize(("images", "each"), [(1_000, 1_000), (100_000, 55_388), (0, 55_388)])
def test_evaluations_are_of_as_many_images_as_asked_for(images: int, each: int) -> None:
    config = config_of(train__eval_images=images)
    assert passes_on(config, sizes_of(config, None, None)).evaluation == 10 * each + 55_388
    said = " ".join(assumptions(plan(gpus=[1], train__eval_images=images), ""))
    assert f"before the last is of {each:,} target images" in said


def test_settings_thin_the_target() -> None:
    assert sizes_of(config_of(data__setting="pda"), None, None).target == 55_388 // 2
    ssda = sizes_of(config_of(data__setting="ssda"), None, None)
    assert (ssda.target, ssda.labelled_target) == (55_388 - 36, 36)
    assert sizes_of(config_of(data__imbalanced=True), None, None).target == round(55_388 * 0.65)
    assert sizes_of(config_of(data__limit=1000), None, None).source == 1000


@pytest.mark.parametrize(
    ("method", "base", "passes", "calls"),
    [
        ("source-only", "plain", 3 * 6, 1),
        ("get", "plain", 3 * 12, 2),
        ("get", "cdan", 3 * 12, 2),
        ("get", "mixmatch", 3 * 18 + 12, 1),  # two views are looked at, and mixed with the source
        ("mme", "plain", 3 * (6 + 2) + 3 * 4, 3),  # ssda: a step for the labelled images, one for the others
    ],
)
def test_a_step_is_counted_without_making_it(method: str, base: str, passes: int, calls: int) -> None:
    kind = kind_in(**fitting(method, base))
    assert (kind.passes, sum(call.learned for call in kind.calls), kind.parts) == (
        passes, calls, 2 if method == "mme" else 1
    )  # fmt: skip


def kind_in(started: bool = True, **settings: Any) -> StepKind:
    """A step of batches of 6, of 3 classes."""
    config = config_of(train__batch_size=6, **settings)
    return kind_of(config, method_without_content(config, 3, 12), config.data.setting == "ssda", started)


def test_a_second_look_and_a_frozen_backbone_are_seen() -> None:
    assert kind_in(method__name="atdoc-nc", **{"atdoc-nc.second_look": True}).passes == 3 * 12 + 6
    assert kind_in(optim__backbone_lr_scale=0.0).passes == 12
    assert kind_in(started=False).passes == 3 * 6


@pytest.mark.parametrize(("method", "base"), [pair for pair in PAIRS if pair[1] == "plain"])
def test_every_method_can_be_planned(method: str, base: str) -> None:
    made = plan(gpus=[1, 256], train__batch_size=6, **fitting(method, base))
    assert all(row.images_per_second > 0 for row in made.rows)


# --- how it moves --------------------------------------------------------------------------------


@pytest.mark.parametrize("card", ["t4", "a100-80", "rtx4090", "h100", "mi300"])
def test_more_gpus_are_never_slower(card: str) -> None:
    rows = plan(card).rows
    assert [row.gpus for row in rows] == GPUS
    for few, many in pairwise(rows):
        assert few.images_per_second < many.images_per_second <= 2.01 * few.images_per_second
        assert few.hours > many.hours
        assert many.batch == 2 * few.batch


def test_hours_grow_with_epochs_and_images() -> None:
    once, twice = (plan(gpus=[1], train__epochs=epochs).rows[0] for epochs in (1, 2))
    assert twice.training_hours == pytest.approx(2 * once.training_hours, rel=0.001)
    more = plan(gpus=[1], images=(10 * 152_397, 55_388)).rows[0]
    assert more.training_hours == pytest.approx(10 * once.training_hours, rel=0.001)
    assert more.images_per_second == pytest.approx(once.images_per_second, rel=0.001)


def test_a_hundred_million_images() -> None:
    made = plan("h200", images=(10**8, 10**8), classes=1000, method__name="atdoc-na", train__epochs=10)
    assert made.passes.plan.max_steps == 10 * (10**8 // 36)
    first, last = made.rows[0], made.rows[-1]
    assert first.memory["method"] == 10**8 * (256 + 1000) * 4
    assert not first.fits
    assert last.memory["method"] == -(-(10**8) // 256) * (256 + 1000) * 4
    assert last.fits
    assert 0 < last.hours < first.hours < 1e6


def test_a_fixed_batch_is_shared() -> None:
    rows = plan(fixed=True).rows
    assert [(row.gpus, row.batch, row.steps) for row in rows] == [(n, 36, 4_233) for n in (1, 2, 4)]  # 8 do not fit
    with pytest.raises(ValueError, match="cannot be shared evenly by 8"):
        plan(gpus=[8], fixed=True)


# --- what bounds it ------------------------------------------------------------------------------


def test_large_png_files_bound_it_and_a_cache_frees_it() -> None:
    files, packed = (plan("h100", gpus=[1], files="png", pixels=500_000, cache=cache).rows[0]
                     for cache in ("off", "raw"))  # fmt: skip
    assert files.bound == "decode"
    assert packed.bound != "decode"
    assert packed.images_per_second > 5 * files.images_per_second


def test_a_fast_card_waits_for_the_host_when_images_are_few() -> None:
    assert plan("b200", gpus=[1], cache="raw", train__batch_size=4).rows[0].bound == "host"
    assert plan("t4", gpus=[1], cache="raw").rows[0].bound == "network"


def test_slow_wires_bound_many_nodes() -> None:
    slow = dataclasses.replace(card_of("h100"), wire=1e9 / 8, link=1e9)
    asked = plan("h100", gpus=[1], network__name="vgg16").asked
    from fastget.planning.predict import predict

    machine = dataclasses.replace(asked.machine, card=slow)
    rows = predict(dataclasses.replace(asked, machine=machine, gpus=[1, 256])).rows
    assert (rows[0].bound, rows[1].bound) == ("network", "collectives")


def test_evaluations_after_every_step_bound_it() -> None:
    row = plan(gpus=[1], cache="raw", train__eval_every=1).rows[0]
    assert row.bound == "evaluation"
    assert sum(row.parts.values()) == pytest.approx(1)


def test_an_exchange_by_hand() -> None:
    card = card_of("a100-80")
    assert exchange(1e9, 1, card) == 0
    assert exchange(1e9, 8, card) == pytest.approx(2 * 7 / 8 * 1e9 / 230e9 + 3 * 20e-6)
    between = 2 * 1 / 2 * 1e9 / 8 / 25e9
    assert exchange(1e9, 16, card) == pytest.approx(2 * 7 / 8 * 1e9 / 230e9 + between + 4 * 20e-6)
    assert hidden_rest(1.0, 250 * 2**20, 10.0) == pytest.approx(0.1)  # its last bucket
    assert hidden_rest(10.0, 250 * 2**20, 5.0) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("card", "half", "published", "backward"),
    [
        ("a100-80", True, 2_470, True),  # NVIDIA's DeepLearningExamples, training
        ("v100", True, 1_200, True),
        ("t4", True, 1_190, False),  # the same, inference at 128
    ],
)
def test_the_model_fits_what_it_was_fitted_to(card: str, half: bool, published: float, backward: bool) -> None:
    counted = count_network(NetworkConfig(), 1000, 224)
    assert counted is not None
    seconds = forward_seconds(counted, 256, PlanMachine(card_of(card), half, 8)) * (3 if backward else 1)
    assert 256 / seconds == pytest.approx(published, rel=0.1)


# --- memory and disk -----------------------------------------------------------------------------


def test_memory_by_hand() -> None:
    config = config_of(network__name="small", network__weights="none", data__resize=8, data__crop=8,
                       train__batch_size=6)  # fmt: skip
    counted = count_network(config.network, 3, 8)
    assert counted is not None
    kind = kind_of(config, method_without_content(config, 3, 100), ssda=False)
    kept = kept_by(config, 3, 100, 1)
    found = memory_of(config, counted, kept, kind, 1.0, 1, 12, half=False, device="cuda")
    weights = counted.parameters + kept.parameters
    assert kept.parameters == 3 * 256  # GeT learns its second head
    assert found["weights"] == 4 * weights
    assert found["gradients and momentum"] == 8 * weights
    assert found["activations"] == 12 * (4 * counted.saved + counted.saved_bytes) + 2 * 4 * 12 * counted.largest
    assert found["images"] == 3 * 4 * 3 * 8 * 8 * 12
    assert found["libraries"] == CONTEXT["cuda"]
    half = memory_of(config, counted, kept, kind, 1.0, 2, 12, half=True, device="cuda")
    assert half["weights"] == 4 * weights + 2 * counted.parameters
    assert half["gradients and momentum"] == 12 * weights
    assert half["activations"] < found["activations"]


def test_disk_of_the_cache_by_hand() -> None:
    block = 512
    raw = -(-3 * 256**2 // block) * block + block
    jpeg = -(-22_000 // block) * block + block
    assert cache_bytes(207_785, 256) == {"jpeg": 207_785 * jpeg, "raw": 207_785 * raw}


# --- cards ---------------------------------------------------------------------------------------


def test_cards() -> None:
    wanted = {"t4", "v100", "a100-40", "a100-80", "l4", "a10", "rtx3090", "rtx4090", "rtx5090", "h100", "h200", "b200",
              "mi250", "mi300"}  # fmt: skip
    assert wanted <= CARDS.keys()
    assert card_of("NVIDIA A100").name == "a100-80"
    assert card_of("4090").name == "rtx4090"
    with pytest.raises(ValueError, match=r"unknown card 'h10' \(did you mean 'h100'"):
        card_of("h10")


@pytest.mark.parametrize(
    ("driver", "card"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A10G", "a10"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("AMD Instinct MI300X", "mi300"),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_a_card_is_known_by_its_drivers_name(driver: str, card: str | None) -> None:
    found = found_by(driver)
    assert (found and found.name) == card

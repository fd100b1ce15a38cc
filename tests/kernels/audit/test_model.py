from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastget.kernels.audit import model
from fastget.kernels.audit.traffic import products
from fastget.kernels.audit.work import Work

H100 = model.CARDS["H100"]
WORK = Work(name="x", programs=132, loads=0, stores=0, once=0)


def test_a_launch_takes_the_longest_of_what_bounds_it() -> None:
    assert model.times(WORK, H100).seconds == pytest.approx(model.LAUNCH + model.TRIP)
    for change, bound in (
        ({"once": 10**9}, "hbm"),
        ({"loads": 10**9}, "l2"),
        ({"loads": 10**8, "programs": 1}, "port"),
        ({"multiply_adds": 10**11, "kind": "bf16", "rows": 64}, "matrix"),
        ({"special": 10**9}, "special"),
        ({"trips": 100}, "latency"),
    ):
        found = model.times(replace(WORK, **change), H100)
        assert found.bound == bound
        assert found.seconds == getattr(found, bound) > model.LAUNCH + model.TRIP


def test_few_programs_more_trips_and_narrow_products_cost() -> None:
    def matrix(**change: int) -> float:
        return model.times(replace(WORK, multiply_adds=10**9, kind="bf16", **{"rows": 64, **change}), H100).matrix  # type: ignore[arg-type]

    assert matrix() == pytest.approx(2e9 / 800e12)
    assert matrix(programs=66) == pytest.approx(2 * matrix()), "half of the multiprocessors"
    assert matrix(programs=133) > 1.9 * matrix(), "one program more than multiprocessors"
    assert matrix(rows=32) == pytest.approx(matrix() / model.NARROW)
    slow, fast = (model.times(replace(WORK, trips=32, kind="bf16", stages=s), H100).latency for s in (2, 4))
    assert slow - fast == pytest.approx(31 * model.TRIP * (1 - 1 / 3))


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize(
    ("size", "most"), [((36, 65, 256), 17e-6), ((256, 345, 256), 20e-6), ((256, 345, 2048), 32e-6)], ids=str
)
def test_a_step_keeps_its_goal_by_the_model(size: tuple[int, int, int], most: float, recipe: str) -> None:
    """A count, not a timing: what the programs ask for, over rates that are written down; the prior's share too."""
    assert model.total(model.step_times(*size, torch.bfloat16, H100, recipe)) <= most


def test_the_rule_of_the_prior_costs_no_wait_but_the_exponentials_of_a_power() -> None:
    ours, paper = (model.step_times(256, 345, 256, torch.bfloat16, H100, recipe) for recipe in ("default", "paper"))
    assert ours[-1].latency == paper[-1].latency
    assert ours[-1].work.special > paper[-1].work.special
    objective = ours[2].work.special / paper[2].work.special
    assert 2 < objective < 2.2


def test_the_largest_step_is_bound_by_the_cache() -> None:
    found = model.step_times(4096, 1000, 2048, torch.bfloat16, H100)
    bounds = {t.work.name: t.bound for t in found}
    assert bounds["logits"] == bounds["backward"] == bounds["statistics"] == "l2"
    assert model.total(found) <= 3.7 * products(4096, 1000, 2048) / H100.rates["bf16"]

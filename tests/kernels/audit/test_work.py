from __future__ import annotations

from math import ceil
from typing import Any

import pytest
import torch

from fastget.kernels import configs
from fastget.kernels.audit.step import StepInputs, launches_of, step
from fastget.kernels.audit.work import COUNTS, work_of
from tests.kernels.audit.counting import Counted, counting

SHAPES = [(37, 5, 70), (70, 40, 19), (65, 31, 515)]
RECIPES: dict[str, tuple[dict[str, Any], bool]] = {  # settings, and whether l of (13) is over 0
    "default": ({}, False),
    "partial": ({"partial": "yes"}, True),
    "paper": ({"recipe": "paper"}, False),
}


def counted(B: int, C: int, D: int, dtype: torch.dtype, **values: Any) -> list[Counted]:
    """A step in the interpreter: every class has a sample, and so has every block of rows of every class tile, by the
    labels and by y_M."""
    torch.manual_seed(0)
    mu, labels = torch.randn(C, D), torch.arange(B) * 7 % C

    def make(*size: int, dtype: torch.dtype) -> torch.Tensor:
        return (mu[labels] if size[0] == B else mu).to(dtype, copy=True)

    x = StepInputs.make(B, C, D, dtype, make=make, **values)
    x.get.mu.copy_(mu)
    x.get.mu_f.data.copy_(mu)
    if x.labels is not None:
        x.labels.copy_(labels)
    assert x.get.prior
    with counting() as found:
        assert torch.equal(step(x).y_M, labels)
    return found


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("room", [True, False], ids=["large", "small"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_formulas_equal_the_interpreters_count(
    shape: tuple[int, int, int], dtype: torch.dtype, room: bool, recipe: str
) -> None:
    if dtype == torch.float32 and (shape == SHAPES[2] or not room):
        pytest.skip("as bfloat16's, with tiles of the other shapes")
    values, narrow = RECIPES[recipe]
    with configs.choosing(room=room):
        found = counted(*shape, dtype, **values)
        expected = [work_of(launch, narrow) for launch in launches_of(*shape, dtype, **values)]
    assert [c.launch.name for c in found] == list(COUNTS), "six launches, in this order"
    for count, work in zip(found, expected, strict=True):
        name = f"{work.name} at {shape}"
        assert (count.loads, count.stores) == (work.loads, work.stores), name
        assert (count.multiply_adds, count.special) == (work.multiply_adds, work.special), name
        assert work.programs == torch.tensor(count.launch.grid).prod(), work.name


def test_a_chain_is_the_longest_programs_trips() -> None:
    B, C, D = 70, 40, 130
    found = {c.launch.name: c for c in counted(B, C, D, torch.bfloat16)}
    works = {launch.name: work_of(launch) for launch in launches_of(B, C, D, torch.bfloat16)}
    heads = {"logits_kernel": 3, "statistics_kernel": 1, "backward_kernel": 1}  # products a trip
    for name, products in heads.items():
        assert max(found[name].dots.values()) == works[name].trips * products, name
    tile = configs.logits(B, C, D, "bf16")
    assert works["logits_kernel"].trips == ceil(D / tile.BLOCK_D)


def test_what_the_prior_adds_is_counted() -> None:
    """Its vector is loaded by every program of the logits, and waited for; its rule takes logarithms of all classes."""
    ours, paper = (
        {x.name: work_of(x, False) for x in launches_of(36, 65, 256, recipe=r)} for r in ("default", "paper")
    )
    assert ours["logits_kernel"].waits == paper["logits_kernel"].waits == 1
    assert ours["memory_kernel"].special == 4 * 128 + 2
    assert paper["memory_kernel"].special == 128
    assert ours["memory_kernel"].waits == paper["memory_kernel"].waits == 0
    (plain, sharp) = (work_of(launches_of(36, 65, 256)[2], narrow) for narrow in (False, True))
    assert sharp.special > 1.5 * plain.special


def test_a_larger_problem_asks_for_more() -> None:
    small, large = (sum(work_of(x).asked for x in launches_of(256, 345, D, torch.bfloat16)) for D in (256, 2048))
    assert small < large < 318e6, "all programs of a step asked for 318 MB before slopes were written once"

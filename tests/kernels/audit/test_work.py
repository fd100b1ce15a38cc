from __future__ import annotations

from math import ceil

import pytest
import torch

from fastget import kernels
from fastget.kernels import configs
from fastget.kernels.audit.step import StepInputs, step
from fastget.kernels.audit.work import COUNTS, Work, launches_of, work_of
from tests.kernels.audit.counting import Counted, counting


def _counted(B: int, C: int, D: int, dtype: torch.dtype) -> list[Counted]:
    """A step in the interpreter: every class has a sample, and so has every block of rows of every class tile."""
    g = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        if not dtype.is_floating_point:
            return torch.arange(shape[0]) * 7 % C if shape[0] == B else torch.tensor([0, -1])
        x = torch.rand(*shape, generator=g) + 0.1
        return (x / x.sum() if len(shape) == 1 else x).to(dtype)

    with counting() as found:
        step(kernels, StepInputs.make(make, B, C, D, dtype))
    return found


SIX = [f"{name}_kernel" for name in ("logits", "statistics", "objective", "totals", "backward", "memory")]
SHAPES = [(37, 5, 70), (70, 40, 19), (65, 31, 515)]


@pytest.mark.parametrize("room", [True, False], ids=["large", "small"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_formulas_equal_the_interpreters_count(shape: tuple[int, int, int], dtype: torch.dtype, room: bool) -> None:
    if shape == SHAPES[2] and dtype == torch.float32:
        pytest.skip("as bfloat16's, with other tiles: those of the first two shapes")
    with configs.forced_room(room):
        found = _counted(*shape, dtype)
        expected = [work_of(launch) for launch in launches_of(*shape, dtype)]
    assert [c.launch.name for c in found] == SIX, "six launches, in this order"
    _compare(found, expected, shape)


@pytest.mark.parametrize("shape", [(75, 72, 144), (9, 8, 16)], ids=str)
def test_the_formulas_equal_the_count_where_prototypes_are_copied(shape: tuple[int, int, int]) -> None:
    with configs.forced_copies(True):
        found = _counted(*shape, torch.bfloat16)
        expected = [work_of(launch) for launch in launches_of(*shape, torch.bfloat16)]
    assert [c.launch.name for c in found] == ["copies_kernel", "copied_logits_kernel", *SIX[1:]], "a launch more"
    assert {*COUNTS} == {*SIX, "copies_kernel", "copied_logits_kernel"}
    _compare(found, expected, shape)
    logits = found[1]
    assert max(logits.dots.values()) == 3 * expected[1].trips


def _compare(found: list[Counted], expected: list[Work], shape: tuple[int, int, int]) -> None:
    for count, work in zip(found, expected, strict=True):
        name = f"{work.name} at {shape}"
        assert (count.loads, count.stores) == (work.loads, work.stores), name
        assert (count.multiply_adds, count.special) == (work.multiply_adds, work.special), name
        assert work.programs == torch.tensor(count.launch.grid).prod(), name


def test_a_chain_is_the_longest_programs_trips() -> None:
    B, C, D = 70, 40, 130
    found = {c.launch.name: c for c in _counted(B, C, D, torch.bfloat16)}
    works = {launch.name: work_of(launch) for launch in launches_of(B, C, D, torch.bfloat16)}
    heads = {"logits_kernel": 3, "statistics_kernel": 1, "backward_kernel": 1}  # products a trip
    for name, products in heads.items():
        assert max(found[name].dots.values()) == works[name].trips * products, name
    tile = configs.logits(B, C, D, "bf16")
    assert works["logits_kernel"].trips == ceil(D / tile.BLOCK_D)


def test_a_larger_problem_asks_for_more() -> None:
    small, large = (sum(work_of(x).asked for x in launches_of(256, 345, D, torch.bfloat16)) for D in (256, 2048))
    assert small < large < 318e6, "all programs of a step asked for 318 MB before slopes were written once"

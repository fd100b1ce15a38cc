"""The checker itself: it passes right kernels and catches broken ones that the plain interpreter lets through."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.kernels.checker import AddressError, assert_order_free, check_addresses, program_order

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="the checker needs TRITON_INTERPRET=1")


@triton.jit
def _double(x, y, n, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
    else:  # broken: the last block runs past the end
        tl.store(y + at, 2 * tl.load(x + at))


@triton.jit
def _row_sum(x, y, rows, cols, stride, BLOCK: tl.constexpr, SAME: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x + row * stride + at, mask=at < cols, other=0.0), 0)
    tl.store(y + (0 if SAME else row), total)  # broken with SAME: every program writes y[0]


@triton.jit
def _add_to(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    kept = tl.load(y + at, mask=at < n)  # broken where y was only allocated
    tl.store(y + at, kept + tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def _read_neighbour(y, n):
    i = tl.program_id(0)
    before = tl.load(y + (i + n - 1) % n)  # broken: that element is another program's
    tl.store(y + i, before + 1)


@triton.jit
def _two_lanes(y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at // 2, at)  # broken: lanes 2k and 2k + 1 write y[k]


@triton.jit
def _last_sums(x, partial, ticket, total, n, SEM: tl.constexpr):
    i = tl.program_id(0)
    tl.store(partial + i, 2 * tl.load(x + i))
    if tl.atomic_add(ticket, 1, sem=SEM) == n - 1:
        acc = 0.0
        for j in range(n):
            acc += tl.load(partial + j)
        tl.store(total, acc)


@triton.jit
def _atomic_sum(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + at), 0))


def _kinds(run: Any) -> set[str]:
    with check_addresses(collect=True) as seen:
        run()
    return {f.kind for f in seen.failures}


def _run_double(n: int = 37, masked: bool = True) -> Tensor:
    room = torch.zeros(2, 64)  # both tensors stand in one storage with room behind them: no crash, and a wrong read
    x, y = room[0, :n], room[1, :n]
    x.copy_(torch.arange(n))
    _double[(triton.cdiv(n, 16),)](x, y, n, BLOCK=16, MASKED=masked)
    return y


def test_right_kernel_passes_and_is_traced() -> None:
    with check_addresses() as seen:
        y = _run_double()
    assert torch.equal(y, 2.0 * torch.arange(37))
    (launch,) = seen.launches
    assert (launch.kernel, launch.reads, launch.writes) == ("_double", {"x": 37}, {"y": 37})


def test_removed_mask_is_caught() -> None:
    assert torch.equal(_run_double(masked=False), 2.0 * torch.arange(37))  # the plain interpreter sees nothing
    message = r"\[outside\] _double, program \(2, 0, 0\), argument 'x'.*element 37"
    with pytest.raises(AddressError, match=message), check_addresses():
        _run_double(masked=False)


def test_an_address_in_another_argument_is_outside() -> None:
    """x's pointer runs into y, which is an argument too: the access is still x's."""
    both = torch.zeros(32)
    with check_addresses(collect=True) as seen:
        _double[(1,)](both[:8], both[16:], 16, BLOCK=16, MASKED=True)
    assert {(f.kind, f.argument) for f in seen.failures} == {("outside", "x")}


def test_gap_of_a_strided_view_is_outside() -> None:
    x = torch.ones(3, 16)[:, :5]
    assert _kinds(lambda: _row_sum[(3,)](x, torch.zeros(3), 3, 5, 16, BLOCK=8, SAME=False)) == set()
    assert _kinds(lambda: _row_sum[(3,)](x, torch.zeros(3), 3, 6, 16, BLOCK=8, SAME=False)) == {"outside"}


def test_two_programs_writing_one_address_are_caught() -> None:
    x = torch.ones(3, 5)
    message = r"\[race\] _row_sum, program \(1, 0, 0\), argument 'y'.*program \(0, 0, 0\)"
    with pytest.raises(AddressError, match=message), check_addresses():
        _row_sum[(3,)](x, torch.zeros(3), 3, 5, 5, BLOCK=8, SAME=True)


def test_reading_an_unwritten_output_is_caught() -> None:
    x = torch.ones(5)

    def run(make: Any) -> None:
        _add_to[(1,)](x, make(), 5, BLOCK=8)

    assert _kinds(lambda: run(lambda: torch.empty(5))) == {"unwritten"}
    assert _kinds(lambda: run(lambda: torch.empty_like(x))) == {"unwritten"}
    assert _kinds(lambda: run(lambda: x.new_empty(10)[5:])) == {"unwritten"}
    assert _kinds(lambda: run(lambda: torch.zeros(5))) == set()
    assert _kinds(lambda: run(lambda: torch.empty(5).fill_(1))) == set()
    before = torch.empty(5)  # from outside: an input
    assert _kinds(lambda: run(lambda: before)) == set()


def test_an_earlier_launch_counts_as_writing() -> None:
    x = torch.arange(16.0)

    def run(n: int) -> None:
        y, z = torch.empty(16), torch.empty(16)
        _double[(1,)](x, y, n, BLOCK=16, MASKED=True)
        _double[(1,)](y, z, 16, BLOCK=16, MASKED=True)

    assert _kinds(lambda: run(16)) == set()
    assert _kinds(lambda: run(15)) == {"unwritten"}


def test_reading_what_another_program_writes_is_a_race() -> None:
    assert _kinds(lambda: _read_neighbour[(4,)](torch.zeros(4), 4)) == {"race"}
    assert _kinds(lambda: _read_neighbour[(1,)](torch.zeros(1), 1)) == set()


def test_lanes_that_disagree_are_caught() -> None:
    assert _kinds(lambda: _two_lanes[(1,)](torch.zeros(4, dtype=torch.int32), BLOCK=8)) == {"lanes"}


@pytest.mark.parametrize(("sem", "kinds"), [("acq_rel", set()), ("relaxed", {"race"})])
def test_atomics_order_programs_only_by_acquire_and_release(sem: str, kinds: set[str]) -> None:
    def run() -> None:
        ticket, partial, total = torch.zeros(1, dtype=torch.int32), torch.empty(4), torch.empty(1)
        _last_sums[(4,)](torch.arange(4.0), partial, ticket, total, 4, SEM=sem)
        assert total.item() == 12

    assert _kinds(run) == kinds


def test_atomics_are_judged_too() -> None:
    x = torch.ones(32)
    assert _kinds(lambda: _atomic_sum[(2,)](x, torch.zeros(1), BLOCK=16)) == set()
    assert _kinds(lambda: _atomic_sum[(2,)](x, torch.empty(1), BLOCK=16)) == {"unwritten"}
    assert _kinds(lambda: _atomic_sum[(2,)](x, torch.zeros(2)[2:], BLOCK=16)) == {"outside"}


def test_every_program_runs_once_in_every_order() -> None:
    x = torch.randn(7, 5)
    for order in ("forward", "reversed", "shuffled"):
        y = torch.full((7,), torch.nan)
        with program_order(order, seed=3), check_addresses():
            _row_sum[(7,)](x, y, 7, 5, 5, BLOCK=8, SAME=False)
        torch.testing.assert_close(y, x.sum(1))
    with pytest.raises(ValueError, match="got 'sideways'"), program_order("sideways"):
        raise AssertionError("not reached")


def test_a_result_that_depends_on_the_order_is_caught() -> None:
    x = torch.randn(7, 5)

    def run(same: bool) -> tuple[Tensor]:
        y = torch.zeros(7)
        _row_sum[(7,)](x, y, 7, 5, 5, BLOCK=8, SAME=same)
        return (y,)

    assert_order_free(lambda: run(False))
    with pytest.raises(AssertionError, match="depends on the order of programs: reversed"):
        assert_order_free(lambda: run(True))


def test_float_atomics_depend_on_the_order() -> None:
    """What the promise of determinism excludes: the sum's last bits follow the order of the programs."""
    x = torch.tensor([1.0, 1e8, -1e8, 3.0])

    def run() -> tuple[Tensor]:
        y = torch.zeros(1)
        _atomic_sum[(4,)](x, y, BLOCK=1)
        return (y,)

    with pytest.raises(AssertionError, match="depends on the order"):
        assert_order_free(run)

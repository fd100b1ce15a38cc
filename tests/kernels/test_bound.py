"""Bound launches: exactly what Triton's own launcher would have been called with, or the ordinary way."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fastget import GeT
from fastget.kernels import configs
from fastget.kernels.audit.driver import without_gpu
from fastget.kernels.launch import record
from fastget.kernels.step import Lease, Steps
from tests.kernels.support import nan_filled

ROOT = Path(__file__).parents[2]
B, C, D = 5, 3, 16

# Triton's runtime with a driver that runs nothing: needs a process in which the kernels are compiled, not interpreted.
AS_TRITON = """
import torch
from fastget.kernels.audit.driver import without_gpu
from fastget.kernels import launch
from fastget.kernels.step import Steps
from benchmarks.bench_host import Case

def told(arrived):
    tensors = torch.Tensor
    x = [(v.data_ptr(), v.dtype, v.shape, v.stride()) if isinstance(v, tensors) else v for v in arrived.args]
    return (*arrived[:4], x)

ordinary = []
plain = launch.launch
def counted(*args, **kwargs):
    ordinary.append(args[0])
    return plain(*args, **kwargs)

from fastget.kernels import bound
bound.launch = counted

seen = []
with without_gpu(seen.append):
    case = Case("triton", Steps(direct=True), (5, 3, 16))
    case.step()
    first = [a.function for a in seen]
    assert len(first) == 6 and not ordinary, (len(first), ordinary)
    seen.clear()
    ((workspace,),) = case.get._steps._spare.values()
    case.step()
    assert not ordinary, "a repeated launch went the ordinary way"
    assert [a.function for a in seen] == first
    # the same launches by Triton's own way, on the same tensors
    arrived = list(seen)
    later = (*workspace._gradient.values(), *workspace._update.values())
    made = [b for group in (workspace._expectation, workspace._objective, *later) for b in group]
    launches = []
    for one, bound_launch in zip(arrived, made, strict=True):
        seen.clear()
        n = len(bound_launch.args)
        plain(bound_launch.kernel, bound_launch.grid, *one.args[:n], **bound_launch.options, **bound_launch.constexprs)
        assert told(seen[0]) == told(one), (told(seen[0]), told(one))
        launches.append(bound_launch.kernel.fn.__name__)
    print(*launches)
    del arrived, one  # a loss among them, whose graph holds the workspace

    def ways(change):
        seen.clear(); ordinary.clear(); change(); case.step()
        return [k.fn.__name__ for k in ordinary], len(seen)

    def off_by_four():
        room = torch.randn(5 * 16 + 1)
        case.features = room[1:].view(5, 16).requires_grad_()
    names, count = ways(off_by_four)
    assert names == ["logits_kernel", "statistics_kernel", "backward_kernel"] and count == 6, names
    def transposed():
        case.features = torch.randn(16, 5).T.requires_grad_()
    before = len(case.get._steps._spare)
    names, count = ways(transposed)
    assert count == 6 and len(case.get._steps._spare) == before + 1  # another layout is another plan
    def hooked():
        from triton import knobs
        knobs.runtime.launch_enter_hook.add(lambda metadata: None)
    case.features = torch.randn(5, 16, requires_grad=True)
    names, count = ways(hooked)
    assert len(names) == count == 6, names
"""


def test_the_arguments_are_those_of_triton_s_own_launcher() -> None:
    """Grid, stream, compiled kernel, metadata, and every argument in its place, constexprs among them; and a pointer
    off 16 bytes, another layout or a hook of Triton's goes the ordinary way."""
    alone = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", AS_TRITON], cwd=ROOT, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["logits_kernel", "statistics_kernel", "objective_kernel", "totals_kernel",
                                   "backward_kernel", "memory_kernel"]  # fmt: skip


def test_the_interpreter_has_no_launcher_to_bind() -> None:
    with pytest.raises(ValueError, match="TRITON_INTERPRET"), without_gpu():
        pass


class Given:
    """Two GeTs with the same memory: on workspaces, and on the kernels' functions."""

    def __init__(self, **values: Any) -> None:
        g = torch.Generator().manual_seed(1)
        self.one = GeT(C, D, backend="triton", prior_start="estimate", **values)
        self.one.initialise(torch.randn(20, D, generator=g), torch.arange(20) % C, torch.randn(C, D, generator=g))
        self.two = copy.deepcopy(self.one)
        self.generator = g

    def batch(self, rows: int = B) -> tuple[Tensor, Tensor, Tensor]:
        f = torch.randn(rows, D, generator=self.generator)
        return f, torch.randn(C, D, generator=self.generator), torch.randint(C, (rows,), generator=self.generator)


def run(get: GeT, batch: tuple[Tensor, Tensor, Tensor], loss: str = "loss", again: int = 1) -> list[Tensor]:
    """A step: losses, metrics, y_M, gradients."""
    features, weight, labels = (x.clone() for x in batch)
    leaves = features.requires_grad_(), weight.requires_grad_(), get.mu_f
    out = get(features, weight, labels=labels)
    for _ in range(again):
        grads = torch.autograd.grad(getattr(out, loss), leaves, retain_graph=True, allow_unused=True)
    get.update(features.detach(), out)
    return [*out[:6], *(g for g in grads if g is not None)]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def without_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Steps, "serves", staticmethod(lambda *tensors: False))


@pytest.mark.parametrize(
    "values", [{}, {"prior_estimate": "likelihood", "prior_cap": False, "prior_gate": False},
               {"prototype_labels": "y_M", "mix": False}], ids=str,
)  # fmt: skip
def test_steps_on_a_workspace_have_the_bits_of_the_functions(values: dict[str, Any]) -> None:
    """Several steps, other batches, both heads' losses by themselves; memory and all that is handed out."""
    given = Given(**values)
    batches = [given.batch(), given.batch(), given.batch(7), given.batch(), given.batch()]
    losses = ["loss", "loss", "loss", "loss_g", "loss_f"]
    kept = [run(given.one, x, name, again=2) for x, name in zip(batches, losses, strict=True)]
    copies = [[t.clone() for t in found] for found in kept]
    with pytest.MonkeyPatch.context() as patch:
        without_steps(patch)
        expected = [run(given.two, x, name) for x, name in zip(batches, losses, strict=True)]
    for found, before, wanted in zip(kept, copies, expected, strict=True):
        same(found, wanted)
        same(found, before)  # what a caller keeps is not written to by later steps
    same([given.one.mu, given.one.pi, given.one.health], [given.two.mu, given.two.pi, given.two.health])
    assert given.one._steps._spare
    assert given.two._steps._spare == {}


def test_one_workspace_serves_all_steps_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same buffers in every step; nothing of the caller's is held from one to the next."""
    given = Given()
    run(given.one, given.batch())
    ((workspace,),) = given.one._steps._spare.values()
    places = [workspace.S_g.data_ptr(), workspace.statistics.data_ptr(), workspace.kept[0].data_ptr()]
    made: list[Any] = []
    empty = torch.empty

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        made.append(args)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", counted)
    run(given.one, given.batch())
    assert len(made) == 1 + 5 + 1 + 3  # y_M, losses and metrics, a token of the lease, gradients
    ((again,),) = given.one._steps._spare.values()
    assert again is workspace
    assert places == [again.S_g.data_ptr(), again.statistics.data_ptr(), again.kept[0].data_ptr()]
    held = [x for b in again._expectation for i, _ in b.fills if (x := b.args[i]) is not None]
    assert held == []


def test_a_step_that_begins_before_another_ends_takes_a_workspace_of_its_own() -> None:
    given = Given()
    begin, first, second = given.batch(), given.batch(), given.batch()
    for get in (given.one, given.two):
        run(get, begin)
    third = copy.deepcopy(given.two)
    leaves = [x.clone().requires_grad_() for x in (first[0], second[0])]
    one, two = (given.one(f, x[1], labels=x[2]) for f, x in zip(leaves, (first, second), strict=True))
    assert one.expectation.lease.workspace is not two.expectation.lease.workspace
    later, earlier = (torch.autograd.grad(out.loss, f)[0] for out, f in ((two, leaves[1]), (one, leaves[0])))
    assert torch.equal(earlier, run(given.two, first)[6])
    assert torch.equal(later, run(third, second)[6])


def test_what_is_read_from_an_expectation_is_a_copy() -> None:
    given = Given()
    x = given.batch()
    out = given.one(x[0], x[1], labels=x[2])
    S_g, scales = out.expectation.S_g, out.expectation.scales
    kept = S_g.clone(), scales.norm.clone()
    del out
    run(given.one, given.batch())
    same([S_g, scales.norm], list(kept))
    with pytest.raises(AttributeError, match="nothing_of_it"):
        given.one(x[0], x[1], labels=x[2]).expectation.nothing_of_it  # noqa: B018


def test_a_workspace_that_waits_is_dropped_past_two() -> None:
    given = Given()
    x = given.batch()
    outs = [given.one(x[0], x[1], labels=x[2]) for _ in range(4)]
    assert len({id(out.expectation.lease.workspace) for out in outs}) == 4
    outs.clear()
    ((*spare,),) = given.one._steps._spare.values()
    assert len(spare) == 2
    assert isinstance(Lease(spare, False).workspace, object)


def test_a_loss_that_is_kept_holds_no_workspace_after_backward() -> None:
    given = Given()
    kept = []
    for _ in range(3):
        features, weight, labels = given.batch()
        out = given.one(features.requires_grad_(), weight, labels=labels)
        out.loss.backward()
        given.one.update(features.detach(), out)
        kept.append(out.loss)
        del out
    ((*spare,),) = given.one._steps._spare.values()
    assert len(spare) == 1


def test_saved_tensors_that_hooks_replace_are_followed_or_missed_aloud() -> None:
    given = Given()
    features, weight, labels = given.batch()
    features.requires_grad_()
    plain = torch.autograd.grad(given.one(features, weight, labels=labels).loss, features)[0]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        out = given.one(features, weight, labels=labels)
        loss = given.one(features, weight, labels=labels).loss
    assert torch.equal(torch.autograd.grad(out.loss, features)[0], plain)
    with pytest.raises(RuntimeError, match="workspace of this GeT step is gone"):
        loss.backward()


def test_every_element_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace full of NaN gives what a fresh one gives."""
    given = Given()
    with nan_filled():
        run(given.one, given.batch())
        ((workspace,),) = given.one._steps._spare.values()
        for x in (workspace.S_g, workspace.S_f, workspace.statistics, *workspace.kept, *workspace.scales):
            if x is not None:
                x.fill_(float("nan"))
        x = given.batch()
        given.two.mu.copy_(given.one.mu)
        given.two.pi.copy_(given.one.pi)
        same(run(given.one, x), run(given.two, x))


def test_a_change_between_forward_and_backward_is_noticed() -> None:
    given = Given()
    features, weight, labels = given.batch()
    out = given.one(features.requires_grad_(), weight.requires_grad_(), labels=labels)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.loss.backward()


def test_other_block_sizes_are_other_launches() -> None:
    """What a configuration depends on is part of the key: torch's precision, and the table of `fastget tune`."""
    given = Given()
    x = given.batch()
    grids = []
    entry = configs.logits(B, C, D, "ieee")
    for BLOCK_C in (entry.BLOCK_C, 2 * entry.BLOCK_C):
        table = {("logits", B, C, D, "ieee"): replace(entry, BLOCK_C=BLOCK_C)}
        with configs.with_table(table), record() as launches:
            run(given.one, x)
            run(given.one, x)
        grids.append([launch.constexprs["BLOCK_C"] for launch in launches if launch.name == "logits_kernel"])
    assert grids == [[entry.BLOCK_C] * 2, [2 * entry.BLOCK_C] * 2]


def test_new_shapes_are_checked_and_only_the_newest_kept() -> None:
    given = Given()
    run(given.one, given.batch())
    with pytest.raises(ValueError, match=r"labels must be 5 integer classes"):
        given.one(*given.batch()[:2], labels=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="feature_dim"):
        given.one(torch.randn(B, D + 1), torch.randn(C, D), labels=torch.zeros(B, dtype=torch.int64))
    with pytest.raises(ValueError, match="non-finite features"):  # looked at in every call on a CPU
        given.one(torch.full((B, D), torch.nan), torch.randn(C, D), labels=torch.zeros(B, dtype=torch.int64))
    for rows in range(1, 12):
        run(given.one, given.batch(rows))
    assert len(given.one._steps._spare) == 8

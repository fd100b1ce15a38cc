"""The look-up of ATDOC-NA at scale: chunks, equal scores, the float16 store, ranks that share the memory."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastget.methods import neighbours
from fastget.methods.atdoc_na import AtdocNA
from fastget.methods.base import Seen, Task
from fastget.methods.neighbours import nearest, neighbour_labels
from fastget.methods.pl import sharpen_by_column
from fastget.methods.shared_memory import bytes_kept

C, D, N, B, K = 4, 6, 29, 6, 3
DOMAINNET = Task(345, 256, 600_000)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(random(*shape, seed=seed), dim=1)


def seen_at(step: int, rows: slice = slice(None)) -> Seen:
    """A batch in which images come twice, on one rank or on two, and an image is near many alike (whole numbers, of
    which the products are exact in any order)."""
    generator = torch.Generator().manual_seed(step)
    index = torch.randint(N, (B,), generator=generator)
    index[B - 1] = index[0]
    f = torch.eye(D, dtype=torch.float64)[torch.randint(2, (B,), generator=generator)]
    return Seen(f[rows], random(B, C, seed=step)[rows], index[rows], torch.nn.Linear(D, C), 0.0)


def run(method: AtdocNA, rows: slice, steps: range) -> list[Tensor]:
    """The labels and weights of some steps."""
    results = []
    for step in steps:
        seen = seen_at(step, rows)
        labels, weights = method.neighbours(seen)
        assert torch.equal(method.labels(seen), labels)
        assert labels.dtype == torch.int64
        results.append(torch.stack([labels.double(), weights]))
        method.after_step(seen, method(seen), None, lambda: seen)  # noqa: B023
    return results


class Sizes(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, made.numel() * made.element_size())
        return result


# --- chunks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_large_tensor_is_made(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, bound = 20_000, 2**16
    memory_f, memory_q = unit(rows, D).to(dtype), torch.rand(rows, C).to(dtype)
    f, index = unit(B, D, seed=1).float(), torch.arange(B)
    whole = neighbour_labels(f, index, memory_f, memory_q, K)
    monkeypatch.setattr(neighbours, "LOOK", bound)
    with Sizes() as sizes:
        labels, weights = neighbour_labels(f, index, memory_f, memory_q, K)
    assert bound / 4 < sizes.bytes <= bound  # N * B scores would take 7 times as much, N * D widened features too
    assert torch.equal(labels, whole[0])
    torch.testing.assert_close(weights, whole[1])


@pytest.mark.parametrize("rows", [1, 4, 5, 29])
def test_of_equals_the_lowest_row_counts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever chunks the memory is read."""
    memory_f = torch.eye(2, dtype=torch.float64).repeat(15, 1)[:29]
    monkeypatch.setattr(neighbours, "LOOK", rows * 8 * (2 + 2))
    best, where = nearest(torch.eye(2, dtype=torch.float64), torch.tensor([4, 99]), memory_f, 20)
    odd, even = list(range(1, 29, 2)), list(range(0, 29, 2))
    assert where.tolist() == [[i for i in even if i != 4] + odd[:6], odd + even[:6]]
    assert best.tolist() == [[1] * 14 + [0] * 6, [1] * 14 + [0] * 6]


# --- float16 ------------------------------------------------------------------------------------


def test_the_float16_store_follows_float32() -> None:
    memory_f, p = unit(2000, 32).float(), (3 * random(2000, 10, seed=1)).softmax(1).float()
    memory_q = torch.cat([sharpen_by_column(part) for part in p.split(40)])
    f, index = unit(200, 32, seed=2).float(), torch.arange(200)
    labels, weights = neighbour_labels(f, index, memory_f, memory_q, 5)
    low, low_weights = neighbour_labels(f, index, memory_f.half(), memory_q.half(), 5)
    assert low_weights.dtype == torch.float32
    near = nearest(f, index, memory_f, 6)[0]
    clear = near[:, 4] - near[:, 5] > 1e-3  # float16 may exchange the fifth neighbour for the sixth
    assert int(clear.sum()) > 150
    torch.testing.assert_close(low_weights[clear], weights[clear], rtol=0, atol=1e-3)
    assert int((low != labels)[clear].sum()) <= 1


def test_a_method_with_a_float16_store() -> None:
    methods = [AtdocNA(AtdocNA.Config(neighbours=3, store=s), Task(C, D, N)) for s in ("float32", "float16")]
    for step in range(6):
        seen = Seen(random(B, D, seed=step).float(), random(B, C, seed=step + 9).float(),
                    torch.arange(B) * 3 + step % 3, torch.nn.Linear(D, C), 0.0)  # fmt: skip
        terms = [method(seen) for method in methods]
        assert terms[1].loss.dtype == torch.float32
        assert float(terms[1].loss) == pytest.approx(float(terms[0].loss), abs=2e-3)
        for method, term in zip(methods, terms, strict=True):
            method.after_step(seen, term, torch.tensor(0.0), lambda: seen)  # noqa: B023
            method.check()
    plain, half = methods
    assert half.memory_f.dtype == half.memory_q.dtype == torch.float16
    assert torch.equal(half.memory_f, plain.memory_f.half())
    half.memory_q.fill_(60_000)  # a sum beyond float16 is no error
    half.check()


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("store", "ranks", "words"), [
    ("float32", 1, "in float32: 1.34 GiB; atdoc-na.store=float16 halves it."),
    ("float16", 1, "in float16: 687.8 MiB."),
    ("float16", 7, "in float16: 98.3 MiB on each of 7 ranks."),
])  # fmt: skip
def test_what_it_says_it_keeps(store: Any, ranks: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastget.methods.shared_memory.world_size", lambda: ranks)
    config = AtdocNA.Config(store=store)
    with torch.device("meta"):
        method = AtdocNA(config, DOMAINNET)
    made = sum(buffer.numel() * buffer.element_size() for buffer in method.buffers())
    assert made == bytes_kept(config, DOMAINNET, ranks)
    line = AtdocNA.keeps(config, DOMAINNET, ranks)
    assert line.startswith(f"ATDOC-NA keeps 600,000 x (256 + 345) numbers {words}")
    assert "64 MiB" in line


# --- ranks --------------------------------------------------------------------------------------


def on_a_rank(rank: int, world: int, folder: Path) -> None:
    """Three steps, a checkpoint, and one more after it was loaded; what came of it goes to a file."""
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    rows = slice(rank * B // world, (rank + 1) * B // world)
    method = AtdocNA(AtdocNA.Config(neighbours=K), Task(C, D, N)).double()
    results = run(method, rows, range(3))
    share, state = len(method.memory_f), method.state_dict()
    method.check()
    figures = method.figures()
    again = AtdocNA(AtdocNA.Config(neighbours=K), Task(C, D, N)).double()
    again.load_state_dict(torch.load(folder / "one.pt"))
    assert torch.equal(again.memory_f, method.memory_f)
    with pytest.raises(RuntimeError, match="size mismatch"):
        again.load_state_dict({name: value[:share] for name, value in state.items()})
    results += run(again, rows, range(3, 12))
    again.memory_q[0] += torch.nan if rank == world - 1 else 0
    with pytest.raises(ValueError, match="non-finite"):  # on every rank
        again.check()
    torch.save({"results": results, "share": share, "state": state, "figures": figures}, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_share_the_memory_follow_one(world: int, tmp_path: Path) -> None:
    one = AtdocNA(AtdocNA.Config(neighbours=K), Task(C, D, N)).double()
    wanted = run(one, slice(None), range(3))
    state, figures = {name: value.clone() for name, value in one.state_dict().items()}, one.figures()
    torch.save(state, tmp_path / "one.pt")
    wanted += run(one, slice(None), range(3, 12))
    assert (wanted[0][0] == -1).all()  # nothing was filled
    spawn(on_a_rank, (world, tmp_path), nprocs=world)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    for step, result in enumerate(wanted):
        together = torch.cat([rank["results"][step] for rank in ranks], 1)
        assert torch.equal(together[0], result[0]), step
        torch.testing.assert_close(together[1], result[1], rtol=0, atol=1e-12)
    for rank in ranks:
        assert rank["share"] == math.ceil(N / world)
        for name in state if rank is ranks[0] else ():  # which writes the checkpoint
            torch.testing.assert_close(rank["state"][name], state[name], rtol=0, atol=1e-12)
        for tag, value in figures.items():
            torch.testing.assert_close(rank["figures"][tag], value)

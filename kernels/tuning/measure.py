"""Time every candidate of a step's kernels at the user's shapes, and keep the best: `fastget tune`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from fastget.kernels import configs
from fastget.kernels.audit.catalogue import variant_of
from fastget.kernels.audit.compile import ARCHITECTURES, inspect_variant
from fastget.kernels.audit.model import CARDS, times
from fastget.kernels.audit.step import StepInputs, launches_of, step
from fastget.kernels.audit.work import work_of
from fastget.kernels.configs import Config
from fastget.kernels.launch import Launch, launch, record
from fastget.kernels.tuning.candidates import KERNELS, candidates
from fastget.methods.backend import choose_backend
from fastget.methods.tuned import TunedEntry

Shape = tuple[int, int, int]
Timer = Callable[[Sequence[Launch]], list[float]]  # seconds of each
Fits = Callable[[Launch, torch.dtype], bool]
CARD = "H100"  # the model's, where there is no GPU
REPEATS, ROUNDS = 20, 15  # launches in a graph, and times that each graph is run
MARGIN = 0.98  # of the rule's time: what is not faster by this much is noise, and leaves the rule


def tune(
    shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device, say: Callable[[str], None] = print
) -> list[TunedEntry]:
    """The best configuration of each kernel and shape: measured on a GPU, by the model on a CPU."""
    measured = device.type == "cuda"
    choose_backend("auto", device)  # the table that is kept is put to use here, not amid the candidates
    timer, fits = (graph_times, compiles) if measured else (modelled_times, lambda made, dtype: True)
    found = []
    for shape in shapes:
        for kernel in KERNELS:
            entry = best_of(kernel, shape, dtype, device, timer, fits)
            found.append(entry)
            gain = "as the rules have it" if entry.rule == entry.microseconds else f"the rules' {entry.rule:.1f}"
            say(f"{kernel} at {shape}: {entry.microseconds:.1f} us, {gain}")
    return found


def best_of(
    kernel: str, shape: Shape, dtype: torch.dtype, device: torch.device, timer: Timer, fits: Fits
) -> TunedEntry:  # fmt: skip
    """Of the candidates that fit, the fastest; the rule's choice, which stands first, unless one is clearly faster."""
    precision = configs.precision(torch.empty(0, dtype=dtype))
    tried: list[tuple[Config, Launch]] = []
    for config in candidates(kernel, *shape, precision):
        made = _launch(kernel, shape, dtype, device, precision, config)
        if not tried or fits(made, dtype):
            tried.append((config, made))
    seconds = timer([made for _, made in tried])
    best = min(range(len(tried)), key=lambda i: seconds[i])
    if seconds[best] > MARGIN * seconds[0]:
        best = 0
    B, C, D = shape
    return TunedEntry(kernel=kernel, B=B, C=C, D=D, precision=precision, config=asdict(tried[best][0]),
                 microseconds=1e6 * seconds[best], rule=1e6 * seconds[0])  # fmt: skip


def _launch(
    kernel: str, shape: Shape, dtype: torch.dtype, device: torch.device, precision: str, config: Config
) -> Launch:
    """That kernel's launch of a step with `config`: recorded, and on a GPU run, so that it can be run again."""
    with configs.choosing(table={(kernel, *shape, precision): config}):
        launches: list[Launch] = []
        if device.type != "cuda":
            launches += launches_of(*shape, dtype)
        else:
            with record() as launches, device:
                step(StepInputs.make(*shape, dtype, make=torch.randn))
    return next(x for x in launches if x.name == f"{kernel}_kernel")


def modelled_times(launches: Sequence[Launch]) -> list[float]:
    """The model's, of an H100."""
    return [times(work_of(x), CARDS[CARD]).seconds for x in launches]


def compiles(made: Launch, dtype: torch.dtype) -> bool:
    """Whether it compiles for this card without spills and within its shared memory."""
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    if arch not in ARCHITECTURES or torch.version.hip is not None:
        return False
    found = inspect_variant(variant_of(made, dtype), arch)
    return not (found.error or found.spills or found.stack) and found.shared <= found.shared_limit


def graph_times(launches: Sequence[Launch]) -> list[float]:
    """Measured: each launch REPEATS times in a CUDA graph, the graphs by turns, the median of the rounds."""
    graphs = []
    for made in launches:
        run_again(made)  # compiled, and loaded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPEATS):
                run_again(made)
        graphs.append(graph)
    taken: list[list[float]] = [[] for _ in graphs]
    for _ in range(ROUNDS):
        for graph, seconds in zip(graphs, taken, strict=True):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3 / REPEATS)
    return [statistics.median(seconds) for seconds in taken]


def run_again(made: Launch) -> None:
    """The same launch on the same tensors."""
    options = {"num_warps": made.num_warps, "num_stages": made.num_stages, **made.constexprs}
    launch(made.kernel, made.grid, *made.args, writes=made.writes, **options)

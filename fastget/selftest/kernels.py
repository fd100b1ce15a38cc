"""The kernels' part of `fastget selftest`: right, the same every time, capturable, compilable, few, and fast.

What runs is a step of `fastget.GeT`, with its defaults and with the paper's values. Shapes: B images in a target batch,
C classes, D feature width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fastget import reference
from fastget.common.choices import Backend
from fastget.methods.backend import choose_backend
from fastget.methods.get.prior import PriorRule
from fastget.selftest.table import CannotRun, Check, Machine, Row, cannot, passed_if

if TYPE_CHECKING:
    from fastget.kernels.audit.step import StepInputs

PART = "kernels"
RECIPES = ("default", "paper")
TRUST = 0.95  # of pi: neither none nor all
SHARP_TAU = 0.01  # 1 / tau magnifies what a cosine of float32 is off by, in PyTorch as in the kernels
MOST_LAUNCHES = 6
REPEATS = 20

SMALL = ((1, 2, 7), (7, 3, 33), (36, 65, 64), (5, 130, 17))  # (B, C, D), odd where it hurts
LARGE = (*SMALL, (36, 65, 256), (256, 345, 2048), (37, 5000, 257), (4096, 1000, 2048))
GRAPH_SHAPE = (256, 345, 2048)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# float32 against float64: P, Q, pi and what a step takes of it as they are, the loss by max(1, loss), gradients and mu
# by their largest entry, the power of (6') by itself.
LIMITS = {"P": 1e-6, "Q": 1e-6, "loss": 1e-6, "gradient": 5e-6, "memory": 1e-6, "prior": 5e-6}
HALF_SLACK = {torch.float16: 1e-4, torch.bfloat16: 1e-3}  # beside the error of PyTorch at that type
ROUNDING = 2**-24 / SHARP_TAU  # one of a cosine over tau: which of two computations rounds luckier is chance
SLACK = {
    "P": ROUNDING,
    "Q": ROUNDING,
    "loss": 1e-6,
    "gradient": 2e-6,
    "memory": 1e-6,
    "prior": 5e-6,
}  # and of its float32

# Bytes per second where torch's clock and bus width are unknown or do not give it.
BANDWIDTH = {
    "A100-SXM4-80GB": 2.039e12,
    "A100": 1.555e12,
    "H100 PCIe": 2.039e12,
    "H100": 3.350e12,
    "H200": 4.800e12,
    "B200": 8.000e12,
    "L40": 0.864e12,
    "MI300X": 5.300e12,
    "MI250": 1.638e12,
}


def need_triton() -> None:
    """Before anything of fastget.kernels is imported; without a GPU they run in the interpreter, mended."""
    if find_spec("triton") is None:
        raise CannotRun("triton is not installed: `pip install triton` where it is built for this system")
    from fastget.selftest.interpreter import mend

    mend()


def half_narrow(C: int) -> Tensor:
    """(C,) a prior whose l of (13) is about a half, so that each of its equations has a say."""
    rank, trust = torch.linspace(0, 1, C, dtype=torch.float64), torch.tensor(TRUST, dtype=torch.float64)
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        pi = torch.softmax(-middle * rank, 0)
        low, high = (middle, high) if PriorRule()(pi, trust).exponent > 0.25 else (low, middle)
    return pi


def make_inputs(
    B: int, C: int, D: int, device: torch.device | str, dtype: torch.dtype = torch.float32, recipe: str = "default",
    **values: Any,
) -> StepInputs:  # fmt: skip
    """GeT as in the middle of a run, with the kernels for its backend; features lie around their classes' prototypes,
    so that y_M does not hang on the last bit."""
    need_triton()
    from fastget.kernels.audit.step import StepInputs

    generator = torch.Generator().manual_seed(B * 1009 + C * 31 + D)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    centres, labels = normal(C, D), torch.randint(C, (B,), generator=generator)
    with torch.device(device):
        x = StepInputs.make(B, C, D, dtype, recipe, **values)
    moving = {"features": centres[labels] + normal(B, D), "weight": centres + 0.2 * normal(C, D)}
    memory = {"mu": centres + 0.1 * normal(C, D), "mu_f": centres + 0.3 * normal(C, D), "pi": half_narrow(C)}
    with torch.no_grad():
        for name, value in moving.items():
            getattr(x, name).copy_(value)
        for name, value in memory.items():
            getattr(x.get, name).copy_(value)
        x.get.trust.fill_(TRUST)
        if x.labels is not None:
            x.labels.copy_(labels)
    return x


def copy_of(x: StepInputs, backend: Backend = "triton", dtype: torch.dtype = torch.float32) -> StepInputs:
    """Fresh leaves and memory for a backend, everything in `dtype` but half-precision features, which only float64
    widens."""
    get = copy.deepcopy(x.get).to(dtype)
    get.config = replace(get.config, backend=backend)
    kept = x.features.dtype if dtype == torch.float32 else dtype
    features, weight = (t.detach().to(kind, copy=True) for t, kind in ((x.features, kept), (x.weight, dtype)))
    return x._replace(get=get, features=features.requires_grad_(), weight=weight.requires_grad_())


def outcome(x: StepInputs) -> dict[str, Tensor]:
    """One step, and the quantities that are compared, in float64."""
    from fastget.kernels.audit.step import step

    ops, prior = choose_backend(x.get.config.backend, x.features.device), x.get.prior
    with torch.no_grad():
        P = ops.posterior(x.features, x.weight, prior.log_pi, x.get.tau)
        Q = ops.rebalance(P, None, prior.exponent, prior.power)
    out = step(x)
    found = {"P": P, "Q": Q, "loss": out.loss, "y_M": out.y_M, "mu": x.get.mu, "pi": x.get.pi}
    found |= {"share": x.get.prior.log_pi.exp(), "exponent": x.get.prior.exponent, "power": x.get.prior.power}
    leaves = {"d_features": x.features, "d_weight": x.weight, "d_mu_f": x.get.mu_f}
    found |= {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {name: t.detach().double() for name, t in found.items()}


def plain_outcome(x: StepInputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same in ordinary PyTorch at a half type throughout: the error that a half-precision user has anyway."""
    get, prior = x.get, copy_of(x, "reference").get.prior
    f, mu, mu_g, mu_f = (t.detach().to(dtype).requires_grad_() for t in (x.features, get.mu, x.weight, get.mu_f))
    log_pi = prior.log_pi.to(dtype)
    S, S_g, S_f = (log_pi + normalize(f, dim=1) @ normalize(m, dim=1).T / get.tau for m in (mu, mu_g, mu_f))
    y_M = reference.first_argmax(S)
    loss = torch.zeros((), dtype=dtype, device=f.device)
    for head in (S_g, S_f):
        Q = reference.rebalance(head.softmax(1), None, prior.exponent, prior.power).detach()
        labels = reference.mixed_labels(Q, y_M, get.gamma_Q).to(dtype)
        loss = loss - (labels * head.log_softmax(1)).sum(1).mean()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    P = S_g.softmax(1)
    Q = reference.rebalance(P, None, prior.exponent, prior.power)
    found = {"P": P, "Q": Q, "loss": loss, "d_features": f.grad, "d_weight": mu_g.grad}
    return {name: t.detach().double() for name, t in found.items() if t is not None}


def errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of each kind of quantity, scaled as LIMITS says. NaN and inf count as inf."""

    def error(name: str, scale: float = 1.0) -> float:
        worst = (found[name] - truth[name]).abs().max() / max(scale, 1e-30)
        return float(worst) if bool(torch.isfinite(worst)) else float("inf")

    gradients = [name for name in ("d_features", "d_weight", "d_mu_f") if name in found]
    result = {"P": error("P"), "Q": error("Q"), "loss": error("loss", max(1.0, float(truth["loss"].abs())))}
    result["gradient"] = max(error(name, float(truth[name].abs().max())) for name in gradients)
    if "mu" in found:
        result["memory"] = max(error("mu", float(truth["mu"].abs().max())), error("pi"))
        result["prior"] = max(error("share"), error("exponent"), error("power", float(truth["power"])))
    return result


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 products in float32, whatever the program around asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# --- the checks ---------------------------------------------------------------------------------


def figures_of(got: dict[str, float], limits: dict[str, float]) -> str:
    """The errors on one line, those over their limit marked."""
    return ", ".join(f"{kind} {got[kind]:.1e}{'' if got[kind] <= limits[kind] else ' (!)'}" for kind in LIMITS)


def accuracy(machine: Machine) -> Iterator[Row]:
    """Every shape and type, by both recipes, against the reference in float64."""
    for B, C, D in LARGE if machine.gpu else SMALL:
        for dtype in DTYPES:
            for recipe in RECIPES:
                with full_precision():
                    x = make_inputs(B, C, D, machine.device, dtype, recipe)
                    truth, found = outcome(copy_of(x, "reference", torch.float64)), outcome(copy_of(x))
                    limits = dict(LIMITS)
                    if dtype in HALF_SLACK:
                        allowed = errors(plain_outcome(x, dtype), truth)
                        limits = {kind: allowed.get(kind, 0.0) + HALF_SLACK[dtype] for kind in LIMITS}
                got = errors(found, truth)
                wrong = int((found["y_M"] != truth["y_M"]).sum())
                good = all(got[kind] <= limits[kind] for kind in LIMITS) and (dtype != torch.float32 or not wrong)
                name = f"accuracy {B}x{C}x{D} {str(dtype).removeprefix('torch.')}, {recipe}"
                figures = figures_of(got, limits) + (f", {wrong} labels differ" if wrong else "")
                yield passed_if(PART, name, good, figures)


def sharpness(machine: Machine) -> Iterator[Row]:
    """float32 at a small tau errs no more than PyTorch's does. Features are drawn at random, so that the posteriors are
    not all near 0 or 1."""
    for B, C, D in ((36, 65, 64), (256, 345, 2048)) if machine.gpu else ((36, 65, 64),):
        with full_precision():
            x = make_inputs(B, C, D, machine.device, tau=SHARP_TAU)
            x = x._replace(features=x.features.detach().flip(1))
            truth = outcome(copy_of(x, "reference", torch.float64))
            got, allowed = errors(outcome(copy_of(x)), truth), errors(outcome(copy_of(x, "reference")), truth)
        limits = {kind: allowed[kind] + SLACK[kind] for kind in LIMITS}
        good = all(got[kind] <= limits[kind] for kind in LIMITS)
        yield passed_if(PART, f"tau {SHARP_TAU:g} {B}x{C}x{D} float32", good, figures_of(got, limits))


def determinism(machine: Machine) -> Iterator[Row]:
    """The same bits, run after run."""
    shape = (4096, 1000, 2048) if machine.gpu else (36, 65, 64)
    x = make_inputs(*shape, device=machine.device)
    first = outcome(copy_of(x))
    changed = set()
    runs = REPEATS if machine.gpu else 3
    for _ in range(runs - 1):
        again = outcome(copy_of(x))
        changed |= {name for name in first if not torch.equal(first[name], again[name])}
    figures = f"{runs} runs, " + (f"differing: {', '.join(sorted(changed))}" if changed else "bit-identical")
    yield passed_if(PART, f"determinism {'x'.join(map(str, shape))}", not changed, figures)


def torch_compile(machine: Machine) -> Iterator[Row]:
    """The step under torch.compile(fullgraph=True) gives what it gives eagerly."""
    x = make_inputs(36, 65, 64, machine.device)
    assert x.get.prior  # a step before has made it

    def loss_of(features: Tensor, weight: Tensor) -> Tensor:
        loss: Tensor = x.get(features, weight, x.labels).loss
        return loss

    torch._dynamo.reset()
    backend = "inductor" if machine.gpu else "aot_eager"
    results = []
    for run in (loss_of, torch.compile(loss_of, fullgraph=True, backend=backend)):
        leaves = [t.detach().clone().requires_grad_() for t in (x.features, x.weight)]
        loss = run(*leaves)
        results.append([loss, *torch.autograd.grad(loss, [*leaves, x.get.mu_f])])
    same = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    yield passed_if(PART, "torch.compile", same, f"fullgraph, {backend}: {'same bits' if same else 'results differ'}")


def cuda_graph(machine: Machine) -> Iterator[Row]:
    """The whole step captured, replayed, and compared with the eager one."""
    if not machine.gpu:
        yield cannot(PART, "CUDA graph")
        return
    x = make_inputs(*GRAPH_SHAPE, device=machine.device)
    expected = forward_backward(copy_of(x))
    captured = copy_of(x)
    assert captured.get.prior  # as a step before leaves it
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.cuda.stream(stream):
        forward_backward(copy_of(x))  # warm-up: it compiles, which a capture must not
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward_backward(captured)
    graph.replay()
    torch.cuda.synchronize()
    different = [name for name in found if not torch.equal(found[name], expected[name])]
    yield passed_if(
        PART, "CUDA graph", not different, f"differing: {different}" if different else "replay bit-identical"
    )


def launches(machine: Machine) -> Iterator[Row]:
    """The number of launches of a step: by the launcher's hook, and on a GPU by the profiler."""
    need_triton()
    from fastget.kernels.audit.step import step
    from fastget.kernels.launch import record

    for recipe in RECIPES:
        x = make_inputs(36, 65, 64, machine.device, recipe=recipe)
        step(x)
        with record() as recorded:
            step(x)
        names = ", ".join(launch.name for launch in recorded)
        good = 0 < len(recorded) <= MOST_LAUNCHES
        yield passed_if(PART, f"launches, by the hook, {recipe}", good, f"{len(recorded)}: {names}")
    if not machine.gpu:
        yield cannot(PART, "launches, by the profiler")
        return
    from torch.profiler import ProfilerActivity, profile

    x = make_inputs(36, 65, 64, machine.device)
    assert x.get.prior
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        step(x)
        torch.cuda.synchronize()
    on_device = [e.name for e in seen.events() if str(e.device_type).endswith("CUDA")]
    ones = [n for n in on_device if "fill" in n.lower() or "memset" in n.lower()]  # the 1 that backward() starts from
    count = len(on_device) - min(len(ones), 1)
    good = count <= MOST_LAUNCHES
    yield passed_if(PART, "launches, by the profiler", good, f"{count}" + ("" if good else f": {', '.join(on_device)}"))


def bandwidth(machine: Machine) -> Iterator[Row]:
    """The step's time in a CUDA graph, its share of the card's bandwidth, and eager PyTorch beside it."""
    name = "bandwidth"
    if not machine.gpu:
        yield cannot(PART, name)
        return
    need_triton()
    from fastget.kernels.audit import traffic

    limit = bandwidth_limit(machine.device)
    for B, C, D in traffic.SIZES:
        x = make_inputs(B, C, D, machine.device, torch.bfloat16)
        moved = traffic.fused_step(B, C, D, torch.bfloat16).bytes
        both: tuple[Backend, Backend] = ("triton", "reference")
        fused, eager = (graph_seconds(partial(forward_backward, copy_of(x, backend))) for backend in both)
        share = f"{moved / fused / limit:.0%} of {limit / 1e9:,.0f} GB/s" if limit else "bandwidth of this card unknown"
        figures = f"{fused * 1e6:,.0f} us, {share}; eager {eager * 1e6:,.0f} us"
        yield passed_if(PART, f"{name} {B}x{C}x{D}", fused < eager, figures)


def forward_backward(x: StepInputs) -> dict[str, Tensor]:
    """A step whose gradients are returned, not added up: fit to be captured, and to be repeated."""
    out = x.get(x.features, x.weight, x.labels)
    d_features, d_weight, d_mu_f = torch.autograd.grad(out.loss, (x.features, x.weight, x.get.mu_f))
    x.get.update(x.features.detach(), out)
    found = {"loss": out.loss.detach(), "d_features": d_features, "d_weight": d_weight, "d_mu_f": d_mu_f}
    return {**found, "mu": x.get.mu, "pi": x.get.pi, "log_pi": x.get.log_pi}


def graph_seconds(run: Callable[[], object]) -> float:
    """The median time of one call inside a CUDA graph."""
    from triton.testing import do_bench_cudagraph

    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return float(do_bench_cudagraph(run, return_mode="median")) * 1e-3


def bandwidth_limit(device: torch.device) -> float:
    """Bytes per second: a known card's data sheet, else two transfers per clock over the bus. 0: unknown."""
    properties = torch.cuda.get_device_properties(device)
    for name, known in BANDWIDTH.items():
        if name in properties.name:
            return known
    clock, width = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return 2.0 * clock * 1e3 * width / 8


CHECKS: list[Check] = [accuracy, sharpness, determinism, torch_compile, cuda_graph, launches, bandwidth]

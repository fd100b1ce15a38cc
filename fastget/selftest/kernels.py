"""The kernels' part of `fastget selftest`: right, the same every time, capturable, compilable, few, and fast.

Shapes: B images in a target batch, C classes, D feature width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fastget import reference
from fastget.selftest.table import CannotRun, Check, Machine, Row, cannot, passed_if

PART = "kernels"
TAU, GAMMA_Q = 0.15, 0.5
SHARP_TAU = 0.01  # 1 / tau magnifies what a cosine of float32 is off by, in PyTorch as in the kernels
MOST_LAUNCHES = 6
REPEATS = 20

SMALL = ((1, 2, 7), (7, 3, 33), (36, 65, 64), (5, 130, 17))  # (B, C, D), odd where it hurts
LARGE = (*SMALL, (36, 65, 256), (256, 345, 2048), (37, 5000, 257), (4096, 1000, 2048))
GRAPH_SHAPE = (256, 345, 2048)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# float32 against float64: P, Q and pi as they are, the loss by max(1, loss), gradients and mu by their largest entry.
LIMITS = {"P": 1e-6, "Q": 1e-6, "loss": 1e-6, "gradient": 5e-6, "memory": 1e-6}
HALF_SLACK = {torch.float16: 1e-4, torch.bfloat16: 1e-3}  # beside the error of PyTorch at that type
SLACK = {"P": 2e-7, "Q": 2e-7, "loss": 1e-6, "gradient": 2e-6, "memory": 1e-6}  # beside that of its float32

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


def kernels_and_traffic() -> tuple[ModuleType, Any]:
    """Imported late: triton may be missing."""
    if find_spec("triton") is None:
        raise CannotRun("triton is not installed: `pip install triton` where it is built for this system")
    from fastget import kernels
    from fastget.kernels.audit import traffic

    return kernels, traffic


def make_inputs(B: int, C: int, D: int, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Any:
    """Features around their classes' prototypes, so that y_M does not hang on the last bit."""
    _, traffic = kernels_and_traffic()
    generator = torch.Generator().manual_seed(B * 1009 + C * 31 + D)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    centres, labels = normal(C, D), torch.randint(C, (B,), generator=generator)
    pi = torch.rand(C, generator=generator, dtype=torch.float64) + 0.5
    x = traffic.StepInputs(
        features=centres[labels] + normal(B, D),
        mu=centres + 0.1 * normal(C, D),
        mu_g=centres + 0.2 * normal(C, D),
        mu_f=centres + 0.3 * normal(C, D),
        pi=pi / pi.sum(),
        labels=labels,
        health=torch.tensor([0, -1]),
    )
    x = replace(x, features=x.features.to(dtype))
    return cast(x, torch.float32, device)


def cast(x: Any, dtype: torch.dtype, device: torch.device | str | None = None) -> Any:
    """Fresh leaves, everything in `dtype` but half-precision features, which only float64 widens."""

    def convert(name: str, t: Tensor) -> Tensor:
        keep = not t.is_floating_point() or (t.dtype in HALF_SLACK and dtype == torch.float32)
        t = t.detach().to(device=device or t.device, dtype=t.dtype if keep else dtype, copy=True)
        return t.requires_grad_() if name in ("features", "mu_g", "mu_f") else t

    return type(x)(**{f.name: convert(f.name, getattr(x, f.name)) for f in fields(x)})


def outcome(ops: ModuleType, x: Any, tau: float = TAU) -> dict[str, Tensor]:
    """One step, and the quantities that are compared, in float64."""
    _, traffic = kernels_and_traffic()
    with torch.no_grad():
        P = ops.posterior(x.features, x.mu_g, x.pi.log(), tau)
        Q = ops.rebalance(P)
    loss, e = traffic.step(ops, x, tau=tau, gamma_Q=GAMMA_Q)
    found = {"P": P, "Q": Q, "loss": loss, "y_M": e.y_M, "mu": x.mu, "pi": x.pi}
    found |= {f"d_{name}": getattr(x, name).grad for name in ("features", "mu_g", "mu_f")}
    return {name: t.detach().double() for name, t in found.items()}


def plain_outcome(x: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same in ordinary PyTorch at a half type throughout: the error that a half-precision user has anyway."""
    f, mu, mu_g, mu_f = (t.detach().to(dtype).requires_grad_() for t in (x.features, x.mu, x.mu_g, x.mu_f))
    log_pi = x.pi.log().to(dtype)
    S, S_g, S_f = (log_pi + normalize(f, dim=1) @ normalize(m, dim=1).T / TAU for m in (mu, mu_g, mu_f))
    y_M = reference.first_argmax(S)
    loss = torch.zeros((), dtype=dtype, device=f.device)
    for head in (S_g, S_f):
        labels = reference.mixed_labels(reference.rebalance(head.softmax(1)).detach(), y_M, GAMMA_Q).to(dtype)
        loss = loss - (labels * head.log_softmax(1)).sum(1).mean()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    P = S_g.softmax(1)
    found = {"P": P, "Q": reference.rebalance(P), "loss": loss, "d_features": f.grad, "d_mu_g": mu_g.grad}
    return {name: t.detach().double() for name, t in found.items() if t is not None}


def errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of each kind of quantity, scaled as LIMITS says. NaN and inf count as inf."""

    def error(name: str, scale: float = 1.0) -> float:
        worst = (found[name] - truth[name]).abs().max() / max(scale, 1e-30)
        return float(worst) if bool(torch.isfinite(worst)) else float("inf")

    gradients = [name for name in ("d_features", "d_mu_g", "d_mu_f") if name in found]
    result = {"P": error("P"), "Q": error("Q"), "loss": error("loss", max(1.0, float(truth["loss"].abs())))}
    result["gradient"] = max(error(name, float(truth[name].abs().max())) for name in gradients)
    if "mu" in found:
        result["memory"] = max(error("mu", float(truth["mu"].abs().max())), error("pi"))
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
    """Every shape and type against the reference in float64."""
    kernels, _ = kernels_and_traffic()
    for B, C, D in LARGE if machine.gpu else SMALL:
        for dtype in DTYPES:
            with full_precision():
                x = make_inputs(B, C, D, machine.device, dtype)
                truth = outcome(reference, cast(x, torch.float64))
                found = outcome(kernels, cast(x, torch.float32))
                limits = dict(LIMITS)
                if dtype in HALF_SLACK:
                    allowed = errors(plain_outcome(x, dtype), truth)
                    limits = {kind: allowed.get(kind, 0.0) + HALF_SLACK[dtype] for kind in LIMITS}
            got = errors(found, truth)
            wrong = int((found["y_M"] != truth["y_M"]).sum())
            good = wrong == 0 and all(got[kind] <= limits[kind] for kind in LIMITS)
            figures = figures_of(got, limits)
            name = f"accuracy {B}x{C}x{D} {str(dtype).removeprefix('torch.')}"
            yield passed_if(PART, name, good, figures + (f", {wrong} labels differ" if wrong else ""))


def sharpness(machine: Machine) -> Iterator[Row]:
    """float32 at a small tau errs no more than PyTorch's does. Features are drawn at random, so that the posteriors are
    not all near 0 or 1."""
    kernels, _ = kernels_and_traffic()
    for B, C, D in ((36, 65, 64), (256, 345, 2048)) if machine.gpu else ((36, 65, 64),):
        with full_precision():
            x = make_inputs(B, C, D, machine.device)
            x = replace(x, features=x.features.detach().flip(1))
            truth = outcome(reference, cast(x, torch.float64), SHARP_TAU)
            got = errors(outcome(kernels, cast(x, torch.float32), SHARP_TAU), truth)
            allowed = errors(outcome(reference, cast(x, torch.float32), SHARP_TAU), truth)
        limits = {kind: allowed[kind] + SLACK[kind] for kind in LIMITS}
        good = all(got[kind] <= limits[kind] for kind in LIMITS)
        yield passed_if(PART, f"tau {SHARP_TAU:g} {B}x{C}x{D} float32", good, figures_of(got, limits))


def determinism(machine: Machine) -> Iterator[Row]:
    """The same bits, run after run."""
    kernels, _ = kernels_and_traffic()
    shape = (4096, 1000, 2048) if machine.gpu else (36, 65, 64)
    x = make_inputs(*shape, device=machine.device)
    first = outcome(kernels, cast(x, torch.float32))
    changed = set()
    runs = REPEATS if machine.gpu else 3
    for _ in range(runs - 1):
        again = outcome(kernels, cast(x, torch.float32))
        changed |= {name for name in first if not torch.equal(first[name], again[name])}
    figures = f"{runs} runs, " + (f"differing: {', '.join(sorted(changed))}" if changed else "bit-identical")
    yield passed_if(PART, f"determinism {'x'.join(map(str, shape))}", not changed, figures)


def torch_compile(machine: Machine) -> Iterator[Row]:
    """The step under torch.compile(fullgraph=True) gives what it gives eagerly."""
    kernels, _ = kernels_and_traffic()
    x = make_inputs(36, 65, 64, machine.device)

    def loss_of(features: Tensor, mu_g: Tensor, mu_f: Tensor) -> Tensor:
        e = kernels.expectation(features, x.mu, mu_g, mu_f, x.pi, TAU, labels=x.labels)
        loss: Tensor = kernels.objective(e, GAMMA_Q, GAMMA_Q).loss
        return loss

    torch._dynamo.reset()
    backend = "inductor" if machine.gpu else "aot_eager"
    results = []
    for run in (loss_of, torch.compile(loss_of, fullgraph=True, backend=backend)):
        leaves = [t.detach().clone().requires_grad_() for t in (x.features, x.mu_g, x.mu_f)]
        loss = run(*leaves)
        results.append([loss, *torch.autograd.grad(loss, leaves)])
    same = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    yield passed_if(PART, "torch.compile", same, f"fullgraph, {backend}: {'same bits' if same else 'results differ'}")


def cuda_graph(machine: Machine) -> Iterator[Row]:
    """The whole step captured, replayed, and compared with the eager one."""
    if not machine.gpu:
        yield cannot(PART, "CUDA graph")
        return
    kernels, _ = kernels_and_traffic()
    x = make_inputs(*GRAPH_SHAPE, device=machine.device)
    expected = forward_backward(kernels, cast(x, torch.float32))
    captured = cast(x, torch.float32)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.cuda.stream(stream):
        forward_backward(kernels, cast(x, torch.float32))  # warm-up: it compiles, which a capture must not
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward_backward(kernels, captured)
    graph.replay()
    torch.cuda.synchronize()
    different = [name for name in found if not torch.equal(found[name], expected[name])]
    yield passed_if(
        PART, "CUDA graph", not different, f"differing: {different}" if different else "replay bit-identical"
    )


def launches(machine: Machine) -> Iterator[Row]:
    """The number of launches of a step: by the launcher's hook, and on a GPU by the profiler."""
    kernels, traffic = kernels_and_traffic()
    from fastget.kernels.launch import record

    x = make_inputs(36, 65, 64, machine.device)
    traffic.step(kernels, cast(x, torch.float32))
    y = cast(x, torch.float32)
    with record() as recorded:
        traffic.step(kernels, y)
    names = ", ".join(launch.name for launch in recorded)
    yield passed_if(PART, "launches, by the hook", 0 < len(recorded) <= MOST_LAUNCHES, f"{len(recorded)}: {names}")
    if not machine.gpu:
        yield cannot(PART, "launches, by the profiler")
        return
    from torch.profiler import ProfilerActivity, profile

    y = cast(x, torch.float32)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        traffic.step(kernels, y)
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
    kernels, traffic = kernels_and_traffic()
    limit = bandwidth_limit(machine.device)
    for B, C, D in traffic.SIZES:
        x = make_inputs(B, C, D, machine.device, torch.bfloat16)
        moved = traffic.fused_step(B, C, D, torch.bfloat16).bytes
        fused, eager = (graph_seconds(partial(forward_backward, ops, x)) for ops in (kernels, reference))
        share = f"{moved / fused / limit:.0%} of {limit / 1e9:,.0f} GB/s" if limit else "bandwidth of this card unknown"
        figures = f"{fused * 1e6:,.0f} us, {share}; eager {eager * 1e6:,.0f} us"
        yield passed_if(PART, f"{name} {B}x{C}x{D}", fused < eager, figures)


def forward_backward(ops: ModuleType, x: Any) -> dict[str, Tensor]:
    """A step whose gradients are returned, not added up: fit to be captured, and to be repeated."""
    e = ops.expectation(x.features, x.mu, x.mu_g, x.mu_f, x.pi, TAU, labels=x.labels)
    loss = ops.objective(e, GAMMA_Q, GAMMA_Q).loss
    d_features, d_mu_g, d_mu_f = torch.autograd.grad(loss, (x.features, x.mu_g, x.mu_f))
    ops.update_memory_(x.mu, x.pi, x.health, e, 0.01, 0.01)
    found = {"loss": loss.detach(), "d_features": d_features, "d_mu_g": d_mu_g, "d_mu_f": d_mu_f}
    return {**found, "mu": x.mu, "pi": x.pi}


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

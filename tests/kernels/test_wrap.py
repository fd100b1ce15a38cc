"""The public surface: names, errors, torch.compile, opcheck, and running without the interpreter."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fastget.kernels as kernels
from fastget import reference
from fastget.kernels.equations.cross_entropy import _cross_entropy_op
from fastget.kernels.equations.labels import _cap_op, _exponent_op, _mix_op, _shrink_op, _structure_op
from fastget.kernels.equations.nearest import _histogram_op, _votes_op
from fastget.kernels.equations.posterior import _posterior_op
from fastget.kernels.equations.prototypes import _class_sums_op
from fastget.kernels.equations.rebalance import _rebalance_op
from fastget.kernels.expectation import _expectation
from fastget.kernels.memory import _update_memory
from fastget.kernels.objective import _objective
from tests.kernels.support import batch, error, gradients, step_inputs

ROOT = Path(__file__).parents[2]


def test_the_reference_has_the_same_names_and_signatures() -> None:
    assert kernels.__all__ == reference.__all__
    for name in set(reference.__all__) - {"Expectation"}:
        assert inspect.signature(getattr(kernels, name)) == inspect.signature(getattr(reference, name)), name
    assert kernels.Objective._fields == reference.Objective._fields
    assert kernels.Expectation._fields == (*reference.Expectation._fields, "scales")


def test_kernels_import_only_torch_triton_and_themselves() -> None:
    code = (
        "import sys, importlib.util, types\n"
        "package = types.ModuleType('fastget'); package.__path__ = ['fastget']; sys.modules['fastget'] = package\n"
        "import fastget.kernels\n"
        "print(sorted(m for m in sys.modules if m.startswith('fastget.') and not m.startswith('fastget.kernels')))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_cpu_tensors_without_the_interpreter_are_refused() -> None:
    code = (
        "import torch\nfrom fastget import kernels\n"
        "try:\n    kernels.posterior(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(4), 0.1)\n"
        "except ValueError as error:\n    print(error)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert "TRITON_INTERPRET=1" in out.stdout
    assert "backend='reference'" in out.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.ones(4)}, "2 axes"),
        ({"features": torch.ones(4, 6, dtype=torch.float64)}, "float64"),
        ({"features": torch.ones(0, 6)}, "at least one row"),
        ({"mu": torch.ones(5, 7)}, r"\(classes, 6\)"),
        ({"mu_g": torch.ones(4, 6)}, r"mu_g must have shape \(5, 6\), got \(4, 6\)"),
        ({"pi": torch.ones(6)}, r"pi must have shape \(5,\)"),
        ({"mu_f": torch.ones(5, 6, device="meta")}, "meta"),
    ],
    ids=str,
)
def test_errors_say_what_was_expected(change: dict[str, Tensor], message: str) -> None:
    x = batch(4, 5, 6)
    args: dict[str, Any] = {"features": x.features, "mu": x.mu, "mu_g": x.mu_g, "mu_f": x.mu_f, "pi": x.pi} | change
    with pytest.raises(ValueError, match=message):
        kernels.expectation(**args, tau=0.1)


def test_other_errors() -> None:
    x = batch(4, 5, 6)
    with pytest.raises(ValueError, match="tau"):
        kernels.expectation(*step_inputs(x), 0.0)
    with pytest.raises(ValueError, match="prior_estimate"):
        kernels.expectation(*step_inputs(x), 0.1, prior_estimate="mean")
    with pytest.raises(ValueError, match=r"\(4,\)"):
        kernels.expectation(*step_inputs(x), 0.1, labels=x.labels[:3])
    with pytest.raises(ValueError, match="int64"):
        kernels.expectation(*step_inputs(x), 0.1, labels=x.labels.float())


def whole_step(features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, pi: Tensor, labels: Tensor) -> Tensor:
    e = kernels.expectation(features, mu, mu_g, mu_f, pi, 0.15, labels=labels)
    return kernels.objective(e, 0.5, 0.4).loss


NEEDS_CXX = pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=NEEDS_CXX)])
def test_compiles_into_one_graph(backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a cached graph knows an operator by its name only
    x = batch(6, 5, 7)
    _, expected = gradients(kernels, x, 0.15, (0.5, 0.4), weights=(1.0, 0.0, 0.0))
    leaves = x.leaves("features", "mu_g", "mu_f")
    compiled = torch.compile(whole_step, fullgraph=True, backend=backend)
    loss = compiled(*step_inputs(leaves), x.labels)
    loss.backward()
    for leaf, wanted in zip((leaves.features, leaves.mu_g, leaves.mu_f), expected, strict=True):
        assert leaf.grad is not None
        assert error(leaf.grad, wanted) < 1e-7


def test_the_memory_compiles_into_one_graph() -> None:
    x = batch(6, 5, 7)
    e = kernels.expectation(*step_inputs(x), 0.15, labels=x.labels)
    pairs = []
    compiled_update = torch.compile(kernels.update_memory_, fullgraph=True, backend="aot_eager")
    for function in (kernels.update_memory_, compiled_update):
        mu, pi, health = x.mu.clone(), x.pi.clone(), torch.tensor([0, -1])
        function(mu, pi, health, e, 0.1, 0.1)
        pairs.append((mu, pi, health))
    for plain, compiled in zip(*pairs, strict=True):
        assert torch.equal(plain, compiled)
    assert not torch.equal(pairs[0][0], x.mu)


def test_equations_compile_into_one_graph() -> None:
    x = batch(6, 5, 7)

    def run(features: Tensor, mu_g: Tensor) -> Tensor:
        P = kernels.posterior(features, mu_g, x.pi.log(), 0.2)
        labels = kernels.mixed_labels(kernels.rebalance(P), x.labels, 0.3).detach()
        return kernels.soft_cross_entropy(features, mu_g, x.pi.log(), 0.2, labels) + P[:, 0].sum()

    plain, traced = x.leaves("features", "mu_g"), x.leaves("features", "mu_g")
    run(plain.features, plain.mu_g).backward()
    torch.compile(run, fullgraph=True, backend="aot_eager")(traced.features, traced.mu_g).backward()
    assert plain.features.grad is not None
    assert traced.features.grad is not None
    assert torch.equal(plain.features.grad, traced.features.grad)


def operators() -> list[tuple[str, Any, tuple[Any, ...]]]:
    x = batch(4, 5, 6)
    f, g, h = (t.clone().requires_grad_() for t in (x.features, x.mu_g, x.mu_f))
    e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    prior, P = x.pi.log(), torch.rand(4, 5).requires_grad_()
    head = (e.S_g, e.S_f, e.colsum_g.clone(), e.colsum_f.clone(), e.y_M, e.exponent, *e.scales, 0.2, 0.5, 0.5)
    assert e.sums is not None
    assert e.counts is not None
    sums = tuple(t.clone() for t in (e.sums, e.counts, e.prior_sum, e.rows, e.bad_rows))
    return [
        ("expectation", _expectation, (*step_inputs(x), 0.2, "likelihood", False, False, x.labels)),
        ("objective", _objective, (f, g, h, *head)),
        ("update_memory", _update_memory, (x.mu, x.pi, torch.tensor([0, -1]), *sums, None, 0.1, 0.1, 1e-8)),
        ("class_sums", _class_sums_op, (x.features, x.labels, 5)),
        ("posterior", _posterior_op, (f, g, prior, 0.2)),
        ("soft_cross_entropy", _cross_entropy_op, (f, g, prior, torch.rand(4, 5), 0.2)),
        ("nearest_histogram", _histogram_op, (x.features, x.mu)),
        ("agreeing_votes", _votes_op, (x.features, x.mu, x.mu_g)),
        ("rebalance", _rebalance_op, (P, None)),
        ("mixed_labels", _mix_op, (P, x.labels, 0.3)),
        ("structure_loss", _structure_op, (P.detach(), P.detach())),
        ("shrink_prior", _shrink_op, (x.pi,)),
        ("cap_prior", _cap_op, (x.pi, True)),
        ("rebalance_exponent", _exponent_op, (x.pi,)),
    ]


@pytest.mark.parametrize("index", range(11))
def test_opcheck(index: int) -> None:
    name, operator, args = operators()[index]
    results = torch.library.opcheck(operator.op, args)
    assert set(results.values()) == {"SUCCESS"}, name

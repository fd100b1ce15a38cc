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
from fastget.kernels.equations.posterior import _posterior_op
from fastget.kernels.equations.rebalance import _rebalance_op
from fastget.kernels.equations.scatter import _scatter_op
from fastget.kernels.equations.votes import _votes_op
from fastget.kernels.expectation import _expectation
from fastget.kernels.memory import _renew_prior, _update_memory, numbers_of
from fastget.kernels.objective import _objective
from fastget.methods.get import prior as ours
from fastget.methods.get.prior import PriorRule
from tests.kernels.support import batch, empty_prior, error, gradients, prior_of, step_inputs

ROOT = Path(__file__).parents[2]


def test_the_references_have_the_same_names_and_signatures() -> None:
    names = "agreeing_votes expectation objective posterior rebalance renew_prior_ scatter_update update_memory_"
    assert kernels.__all__ == names.split()
    for name in kernels.__all__:
        of = ours if name == "agreeing_votes" else reference
        found, wanted = (inspect.signature(getattr(module, name)) for module in (kernels, of))
        assert found.parameters.keys() == wanted.parameters.keys(), name
        assert found == wanted, name


def test_kernels_import_only_torch_triton_the_reference_and_themselves() -> None:
    code = (
        "import sys, importlib.util, types\n"
        "package = types.ModuleType('fastget'); package.__path__ = ['fastget']; sys.modules['fastget'] = package\n"
        "import fastget.kernels\n"
        "print(sorted(m for m in sys.modules if m.startswith('fastget.') and not m.startswith('fastget.kernels')))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['fastget.reference']"


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
        ({"log_pi": torch.ones(6)}, r"log_pi must have shape \(5,\)"),
        ({"mu_f": torch.ones(5, 6, device="meta")}, "meta"),
    ],
    ids=str,
)
def test_errors_say_what_was_expected(change: dict[str, Tensor], message: str) -> None:
    x = batch(4, 5, 6)
    args: dict[str, Any] = dict(zip(("features", "mu", "mu_g", "mu_f", "log_pi"), step_inputs(x), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        kernels.expectation(**args, tau=0.1)


def test_other_errors() -> None:
    x = batch(4, 5, 6)
    with pytest.raises(ValueError, match="tau"):
        kernels.expectation(*step_inputs(x), 0.0)
    with pytest.raises(ValueError, match=r"\(4,\)"):
        kernels.expectation(*step_inputs(x), 0.1, labels=x.labels[:3])
    with pytest.raises(ValueError, match="int64"):
        kernels.expectation(*step_inputs(x), 0.1, labels=x.labels.float())


def whole_step(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, log_pi: Tensor, powers: Tensor, labels: Tensor
) -> Tensor:
    e = kernels.expectation(features, mu, mu_g, mu_f, log_pi, 0.15, estimate=ours.nearest, labels=labels)
    return kernels.objective(e, reference.Prior(log_pi, *powers.unbind()), 0.5, 0.4).loss


NEEDS_CXX = pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=NEEDS_CXX)])
def test_compiles_into_one_graph(backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a cached graph knows an operator by its name only
    x = batch(6, 5, 7)
    rule = PriorRule()
    _, expected = gradients(kernels, x, 0.15, (0.5, 0.4), weights=(1.0, 0.0, 0.0), rule=rule)
    leaves = x.leaves("features", "mu_g", "mu_f")
    compiled = torch.compile(whole_step, fullgraph=True, backend=backend)
    loss = compiled(*step_inputs(leaves, rule), torch.stack(prior_of(x, rule)[1:]), x.labels)
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
        mu, pi, health, prior = x.mu.clone(), x.pi.clone(), torch.tensor([0, -1]), empty_prior(5)
        function(mu, pi, health, e, 0.1, 0.1, prior=prior, rule=PriorRule(), trust=torch.tensor(0.8))
        pairs.append((mu, pi, health, *prior))
    for plain, compiled in zip(*pairs, strict=True):
        assert torch.equal(plain, compiled)
    assert not torch.equal(pairs[0][0], x.mu)


def test_equations_compile_into_one_graph() -> None:
    x = batch(6, 5, 7)

    def run(features: Tensor, mu_g: Tensor) -> Tensor:
        P = kernels.posterior(features, mu_g, x.pi.log(), 0.2)
        mu, _ = kernels.scatter_update(mu_g, x.pi, features, x.labels, P.mean(0), 0.3, 0.1)
        return (kernels.rebalance(P, None, 0.2, 2.2)[:, 0] * P[:, 1]).sum() + mu.square().sum()

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
    log_pi, P = x.pi.log(), torch.rand(4, 5).requires_grad_()
    powers, trust, numbers = (torch.tensor(0.2), torch.tensor(2.2)), torch.tensor(0.9), numbers_of(PriorRule())
    head = (e.S_g, e.S_f, e.colsum_g.clone(), e.colsum_f.clone(), e.y_M, *powers, *e.scales, 0.2, 0.5, 0.5)
    sums = tuple(t.clone() for t in (e.sums, e.counts, e.prior_sum, e.rows, e.bad_rows))
    made = tuple(t.clone() for t in (log_pi, *powers))
    return [
        ("expectation", _expectation, (*step_inputs(x), 0.2, "likelihood", x.labels)),
        ("objective", _objective, (f, g, h, *head)),
        (
            "update_memory",
            _update_memory,
            (x.mu, x.pi, torch.tensor([0, -1]), *made, *sums, None, trust, 0.1, 0.1, 1e-8, numbers),
        ),
        ("renew_prior", _renew_prior, (*made, x.pi, trust, numbers)),
        ("posterior", _posterior_op, (f, g, log_pi, 0.2)),
        ("agreeing_votes", _votes_op, (x.features, x.mu, x.mu_g)),
        ("rebalance", _rebalance_op, (P, *powers, None)),
        ("scatter_update", _scatter_op, (g, x.pi, f, x.labels, x.pi, 0.3, 0.1, 1e-8)),
    ]


@pytest.mark.parametrize("index", range(8))
def test_opcheck(index: int) -> None:
    name, operator, args = operators()[index]
    results = torch.library.opcheck(operator.op, args)
    assert set(results.values()) == {"SUCCESS"}, name

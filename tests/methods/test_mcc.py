"""MCC against a plain computation of METHODS' formula, written here with loops in float64."""

import math

import pytest
import torch
from torch import Tensor

from fastget.methods.base import Seen, Task
from fastget.methods.mcc import MCC, mcc


def plain(z: list[list[float]], temperature: float) -> float:
    """p = softmax(z / T); v_b = 1 + exp(-H(p_b)), scaled to sum to B; M = P^T diag(v) P;
    L = 1 - (1 / C) sum_c M_cc / sum_c' M_cc'."""
    B, C = len(z), len(z[0])
    P = []
    for row in z:
        top = max(row)
        e = [math.exp((x - top) / temperature) for x in row]
        P.append([x / sum(e) for x in e])
    v = [1 + math.exp(sum(p * math.log(p) for p in row if p > 0)) for row in P]
    v = [B * x / sum(v) for x in v]
    M = [[sum(v[b] * P[b][c] * P[b][d] for b in range(B)) for d in range(C)] for c in range(C)]
    return 1 - sum(M[c][c] / max(sum(M[c]), 1e-12) for c in range(C)) / C


def logits(B: int, C: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(B * C))


CASES = {
    "random": logits(36, 7),
    "fewer rows than classes": logits(5, 12),
    "two classes": logits(8, 2),
    "one row": logits(1, 4),
    "uniform": torch.zeros(6, 5, dtype=torch.float64),
    "one-hot": 200 * torch.eye(4, dtype=torch.float64)[[0, 1, 1, 2, 3, 3]],
    "a class that nobody predicts": torch.cat([logits(9, 4), torch.full((9, 1), -80.0, dtype=torch.float64)], 1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_formula(case: str, temperature: float) -> None:
    assert float(mcc(CASES[case], temperature)) == pytest.approx(plain(CASES[case].tolist(), temperature), abs=1e-9)
    single = mcc(CASES[case].float(), temperature)
    assert float(single) == pytest.approx(plain(CASES[case].tolist(), temperature), abs=1e-6)


@pytest.mark.parametrize("case", ["random", "fewer rows than classes", "two classes"])
def test_its_gradient(case: str) -> None:
    """By hand, v constant: dL/dP_bc = -(1/C) v_b [2 P_bc / r_c - (M_cc / r_c^2) s_b - sum_d (M_dd / r_d^2) P_bd]
    with r_c = sum_d M_cd and s_b = sum_c P_bc = 1; then through the softmax."""
    z = CASES[case].clone().requires_grad_()
    mcc(z, 2.5).backward()
    with torch.no_grad():
        P = torch.softmax(z / 2.5, 1)
        v = 1 + torch.exp((P * P.log()).sum(1))
        v = v * len(v) / v.sum()
        M = P.T @ torch.diag(v) @ P
        r, diagonal = M.sum(1), M.diagonal()
        inside = 2 * P / r - diagonal / r**2 - (P * (diagonal / r**2)).sum(1, keepdim=True)
        dP = -v[:, None] * inside / P.shape[1]
        dz = P * (dP - (P * dP).sum(1, keepdim=True)) / 2.5
    torch.testing.assert_close(z.grad, dz, rtol=0, atol=1e-9)


def test_the_entropy_weights_are_constants() -> None:
    """With them in the graph the gradient is another one."""
    z = CASES["random"].clone().requires_grad_()
    P = torch.softmax(z, 1)
    v = 1 + torch.exp((P * P.log()).sum(1))
    M = P.T @ (v[:, None] * P)
    leaky = 1 - (M.diagonal() / M.sum(1)).mean()
    assert leaky.item() == pytest.approx(mcc(z, 1.0).item(), abs=1e-12)
    (wrong,) = torch.autograd.grad(leaky, z)
    (right,) = torch.autograd.grad(mcc(z, 1.0), z)
    assert (wrong - right).abs().max() > 1e-4


def test_the_method_is_the_formula() -> None:
    z = logits(6, 4).float()
    method = MCC(MCC.Config(temperature=2.0), Task(4, 3, 10))
    term = method(Seen(torch.zeros(6, 3), z, torch.arange(6), torch.nn.Linear(3, 4), 0.5))
    assert float(term.loss) == pytest.approx(plain(z.tolist(), 2.0), abs=1e-6)
    assert not list(method.parameters())
    assert not list(method.buffers())

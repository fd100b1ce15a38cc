"""Eq. (2) by itself, with gradients: the products of both are launches of the step's own kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.backward import Head, launch_backward
from fastget.kernels.checks import check_like, check_pair, check_tau
from fastget.kernels.logits import launch_logits
from fastget.kernels.wrap import Differentiable, Operator
from fastget.reference import EPS


def _posterior(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = launch_logits(features, log_prior, tau, mu_g=prototypes)
    assert made.S_g is not None
    assert made.norm_g is not None
    return torch.softmax(made.S_g, 1), made.S_g, made.norm, made.norm_g


def _posterior_fake(features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float) -> tuple[Tensor, ...]:
    B, C = features.shape[0], prototypes.shape[0]
    return tuple(features.new_empty(shape, dtype=torch.float32) for shape in ((B, C), (B, C), (B,), (C,)))


def _posterior_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, prototypes, log_prior, ctx.tau = inputs
    ctx.prior_dtype = log_prior.dtype
    ctx.save_for_backward(features, prototypes, log_prior, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _posterior_gradient(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, P: Tensor, S: Tensor, norm: Tensor, norm_p: Tensor,
    dP: Tensor, tau: float, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Those to features, prototypes and log prior that `needs` asks for: dS in PyTorch, its products in one launch.

    dS[b,c] = P[b,c] (dP[b,c] - sum_c' P[b,c'] dP[b,c']). Where a class has P over 1/2, dP is taken less its value
    there, which changes nothing: what is summed are then the small shares of the others, and nothing cancels.
    """
    peak, best = P.max(1, keepdim=True)
    dP = dP - torch.where(peak > 0.5, dP.gather(1, best), 0)
    slope = P * (dP - (P * dP).sum(1, keepdim=True))
    turned = slope * torch.where(torch.isneginf(S), 0, (S - log_prior) * tau)  # the slope times the cosine
    slopes = torch.stack([slope / norm_p.clamp_min(EPS), slope / norm.clamp_min(EPS)[:, None]])
    found: list[Tensor | None] = [None, None]
    if needs[0] or needs[1]:
        *found, _ = launch_backward(
            features, norm, turned.sum(1)[None], turned.sum(0)[None], 1 / tau, None, Head(prototypes, slopes, norm_p),
            None, (needs[0], needs[1], False), configs.slope_precision(features, prototypes),
        )  # fmt: skip
    return [d for d in (*found, slope.sum(0) if needs[2] else None) if d is not None]


def _gradient_fake(features: Tensor, prototypes: Tensor, log_prior: Tensor, *rest: Any) -> list[Tensor]:
    like = [torch.empty_like(t, memory_format=torch.contiguous_format)
            for t, need in zip((features, prototypes), rest[-1], strict=False) if need]  # fmt: skip
    return [*like, *([log_prior.new_empty(log_prior.shape, dtype=torch.float32)] if rest[-1][2] else [])]


def _posterior_backward(run: Any, ctx: Any, dP: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if dP is None:
        return None, None, None, None
    needs = list(ctx.needs_input_grad[:3])
    made = iter(run(*ctx.saved_tensors, dP, ctx.tau, needs))
    d_features, d_prototypes, d_log_prior = (next(made) if need else None for need in needs)
    return d_features, d_prototypes, None if d_log_prior is None else d_log_prior.to(ctx.prior_dtype), None


_posterior_op = Differentiable(
    "posterior", _posterior, _posterior_fake, _posterior_setup,
    Operator("posterior_backward", _posterior_gradient, _gradient_fake), _posterior_backward,
)  # fmt: skip


def posterior(
    features: Tensor,  # (B, D)
    prototypes: Tensor,  # (C, D)
    log_prior: Tensor,  # (C,)
    tau: float,
) -> Tensor:
    """torch.softmax(log_prior + cosine(features, prototypes) / tau, dim=-1): Eq. (2). (B, C), float32."""
    check_pair(features, prototypes)
    check_like("log_prior", log_prior, (prototypes.shape[0],), features.device)
    check_tau(tau)
    P: Tensor = _posterior_op(features, prototypes, log_prior.contiguous(), float(tau))[0]
    return P

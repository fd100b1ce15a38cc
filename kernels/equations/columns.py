"""Column sums of a (B, C) matrix, each block of columns owned by one program that walks over the rows in order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import launch


@triton.jit(do_not_specialize=["B"])
def column_sums_kernel(
    x,  # (B, C)
    out,  # (C,) out
    B, C, x_b, x_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[c] = sum_b x[b,c].  dx[b,c] = dout[c]."""
    classes = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    held = classes < C
    total = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = (b0 + tl.arange(0, BLOCK_B)).to(tl.int64)
        at = x + rows[:, None] * x_b + classes[None, :].to(tl.int64) * x_c
        total += tl.sum(tl.load(at, mask=(rows < B)[:, None] & held[None, :], other=0.0).to(tl.float32), 0)
    tl.store(out + classes, total, mask=held)


def launch_column_sums(x: Tensor) -> Tensor:
    """x.sum(0) in float32."""
    B, C = x.shape
    out, config = torch.empty(C, dtype=torch.float32, device=x.device), configs.columns(B, C)
    launch(
        column_sums_kernel, (triton.cdiv(C, config.BLOCK_C),), x, out, B, C, *x.stride(),
        writes=(out,), **vars(config),
    )  # fmt: skip
    return out

"""ARPM's weights of source images (Gu et al., IJCV 2024): those that resemble the target count more.

Shapes: n source images.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = torch.finfo(torch.float64).tiny


@torch.no_grad()
def arpm_weights(
    d: Tensor,  # (n,) the critic's values of all source images, larger where the target is further away
    rho: float,
) -> Tensor:
    """(n,) w = argmin sum_i w_i d_i over w >= 0, mean w = 1, mean (w - 1)^2 <= rho, in closed form; a constant.

    The solution is w_i = max(0, eta - kappa d_i). With the m smallest d in it, mean w = 1 and mean (w - 1)^2 = rho give
    eta and kappa; m is the least number for which rho can be met before the next d joins in. From rho = n - 1 on all
    weight is on the smallest d, shared by equal ones. (The authors call a cone solver.)
    """
    n = len(d)
    order = d.double().sort()
    x = order.values - order.values[:1]
    x = x / x[-1:].clamp_min(TINY)  # from 0 to 1, which changes no weight and keeps the digits of sums of squares
    m = torch.arange(1, n, dtype=x.dtype, device=x.device)
    # spread[m-1]: mean (w - 1)^2 where the m smallest are in it and the next one has just the weight 0; it falls with m
    total, squares = x.cumsum(0)[:-1], x.square().cumsum(0)[:-1]
    gap = m * x[1:] - total
    spread = n * (m * x[1:].square() - 2 * x[1:] * total + squares) / gap.square() - 1
    inside = (gap > 0) & (spread <= rho)  # no gap: the next d equals all of these, and is in it with them
    rows = 1 + (~inside).sum().to(x.dtype)
    kept = torch.arange(n, device=x.device) < rows
    apart = torch.where(kept, x - torch.where(kept, x, 0).sum() / rows, 0)
    length = apart.square().sum()
    kappa = torch.where(length > 0, ((n * (1 + rho) - n**2 / rows).clamp_min(0) / length.clamp_min(TINY)).sqrt(), 0)
    w = torch.where(kept, n / rows - kappa * apart, 0).clamp_min(0)
    return torch.empty_like(d).scatter_(0, order.indices, w.to(d.dtype))

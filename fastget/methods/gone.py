"""Options and values of earlier versions that are gone, and what came in their place. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RULE = "get.prior=trusted (the default) has one rule in its place, get.prior=plain takes the prior as the paper does"
RECIPE = (
    "its values are get.gamma_mu=0.01 get.gamma_pi=0.01 get.gamma_Q=0.5 get.prior_start=uniform "
    "get.prior_estimate=likelihood get.prior=plain: give them by --set"
)
GONE = {  # an option, or option=value
    "get.prior_cap": RULE,
    "get.prior_gate": RULE,
    "get.rebalance_gate": RULE,
    "get.prior_shrinkage": RULE,
    "get.on_cpu": "a CPU has one way to compute a step, the reference: leave it out",
    "get.prior_start=estimate": "choose get.prior_start=uniform (1/C), or agreement (the default)",
    "get.prior_estimate=posterior": "choose get.prior_estimate=likelihood (the paper's), or nearest (the default)",
    "method.recipe=0.1": RECIPE,
}


def why_gone(key: str, value: Any = None) -> str:
    """What to do about an option or a value of an earlier version; empty if it is none."""
    found = [name for name in (key, f"{key}={value}") if name in GONE]
    return f"{found[0]} is gone: {GONE[found[0]]}" if found else ""


def refuse_gone(section: str, values: Mapping[str, Any]) -> None:
    """ValueError if one of a section's values is of an earlier version."""
    for name, value in values.items():
        if gone := why_gone(f"{section}.{name}", value):
            raise ValueError(gone)

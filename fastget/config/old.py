"""Configurations that runs of earlier versions stored, as this version says them.

A run of fastget 0.1 or 0.2 whose GeT took the prior as the paper does is resumed: all that it did has a name here. One
that used what is gone is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastget import methods
from fastget.methods.gone import RULE, why_gone

CHANGED_THE_PRIOR = ("get.prior_cap", "get.rebalance_gate", "get.prior_shrinkage")


def as_now(
    stored: Mapping[str, Any],  # section.field -> value: all of a run's, as it stored them
    method: str | None = None,  # of the run to make of them; None: the stored one
) -> dict[str, Any]:
    """The same values by today's names. ValueError if its GeT did what this version does not do."""
    values = {key: value for key, value in stored.items() if not why_gone(key)}
    if "get.tau" not in stored or "get.prior" in stored:
        return values  # without GeT, or of this version
    if values.get("method.recipe") == "0.1":
        values["method.recipe"] = "default"  # the name alone is gone: its values are stored beside it
    used = [f"{key}=true" for key in CHANGED_THE_PRIOR if stored.get(key)]
    if stored.get("get.prior_start", "estimate") == "estimate":  # 1/C, or with nearest the target's histogram
        values["get.prior_start"] = "uniform"
        used += ["get.prior_start=estimate"] if stored.get("get.prior_estimate") == "nearest" else []
    if stored.get("get.prior_estimate") == "posterior":
        values["get.prior_estimate"] = "likelihood"
        used.append("get.prior_estimate=posterior")
    if used and (method or stored.get("method.name", methods.DEFAULT)) == methods.DEFAULT:
        raise ValueError(
            f"this run of an earlier fastget used {', '.join(used)}. That is gone: {RULE}. It cannot be resumed or "
            "repeated: start anew without the `get` section of its config.yaml. Its checkpoints stay of use: "
            "fastget predict, eval and export read them"
        )
    return {"get.prior": "plain", **values}

"""Parts of the catalogue that stand for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastget.kernels.audit.catalogue import Variant, _key


def extremes(found: Sequence[Variant]) -> list[Variant]:
    """Of variants that differ in alignment only, the most and the least aligned: the rest lies between them."""
    groups: dict[Any, list[Variant]] = {}
    for variant in found:
        groups.setdefault((*_key(variant)[:3], variant.num_warps), []).append(variant)
    ordered = [sorted(group, key=lambda v: len(v.attrs)) for group in groups.values()]
    return [v for group in ordered for v in (group[:1] if len(group) == 1 else (group[0], group[-1]))]


def tiles(found: Sequence[Variant]) -> list[Variant]:
    """One variant, the least aligned, for each kernel, tile, precision and set of types: enough to see that it compiles
    and what shared memory it takes."""
    groups: dict[Any, Variant] = {}
    for variant in sorted(found, key=lambda v: len(v.attrs)):
        sizes = [(k, v) for k, v in variant.constexprs.items() if k.endswith(("_B", "_C", "_D", "PRECISION"))]
        types = [kind for kind in variant.signature.values() if kind.startswith("*")]
        key = (variant.kernel.fn.__name__, variant.num_warps, str(sizes), str(types))
        groups.setdefault(key, variant)
    return list(groups.values())

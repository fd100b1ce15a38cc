"""Every kernel in every configuration that a launcher can choose, as the JIT would specialise it.

The launchers themselves are driven in a dry run over shapes that reach every entry of the tables in configs.py, so
the catalogue cannot drift from what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.equations.cross_entropy import soft_cross_entropy
from fastget.kernels.equations.labels import cap_prior, mixed_labels, rebalance_exponent, shrink_prior, structure_loss
from fastget.kernels.equations.nearest import agreeing_votes, nearest_histogram
from fastget.kernels.equations.posterior import posterior
from fastget.kernels.equations.prototypes import class_sums, update_prior, update_prototypes
from fastget.kernels.equations.rebalance import rebalance
from fastget.kernels.expectation import expectation
from fastget.kernels.launch import Launch, record
from fastget.kernels.memory import update_memory_
from fastget.kernels.objective import objective

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}

# (B, C, D): each reaches other entries of the tables; odd sizes lose the alignment that even ones have.
SHAPES = (
    (64, 64, 256),
    (256, 345, 2048),
    (36, 65, 257),
    (37, 5000, 257),
    (4096, 1000, 2048),
    (1000, 1030, 2049),
    (8192, 1024, 2048),
)
FAST_SHAPE = (256, 345, 2048)
COPIED, COPIED_SHAPE = ("copies_kernel", "copied_logits_kernel"), (4096, 1000, 2048)  # which smaller sizes do not reach
MIXED = (36, 65, 257)  # where types and sizes that meet seldom are compiled too
LAID_ACROSS, LAID_APART = (4096, 1000, 2048), (37, 5000, 257)  # where strided inputs are compiled too


Attrs = dict[tuple[int, ...], list[list[Any]]]  # argument -> what the JIT says of it to the compiler


@dataclass(frozen=True)
class Variant:
    """One compilation: ASTSource(kernel, signature, constexprs, attrs) with launch.compile_options(num_warps, ...)."""

    name: str  # kernel, type, sizes: unique
    kernel: Any  # the object that @triton.jit made
    signature: dict[str, str]  # argument -> Triton type, "constexpr" for those in `constexprs`
    constexprs: dict[str, Any]
    attrs: Attrs  # tt.divisibility, as the JIT would specialise
    small: tuple[int, ...]  # arguments in storages below 2 GiB, which ROCm reaches by buffer operations
    num_warps: int
    num_stages: int
    dtype: torch.dtype  # of the features
    backends: tuple[str, ...]  # "cuda", "hip": where this precision exists and can be chosen
    rooms: tuple[bool, ...]  # whether it is chosen where there is room for large tiles, and where there is not
    fast: bool = field(compare=False)  # in the small subset that covers every kernel

    def attrs_for(self, backend: str) -> Attrs:
        """`attrs`, and on ROCm tt.pointer_range for each small tensor."""
        if backend != "hip":
            return self.attrs
        return {**self.attrs, **{(i,): [*self.attrs.get((i,), []), ["tt.pointer_range", 32]] for i in self.small}}


def specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], Attrs, tuple[int, ...]]:
    """Signature, constexprs, attributes and small tensors of a launch, as the JIT has them: None and integers equal
    to 1 are constants, multiples of 16 are said."""
    signature: dict[str, str] = {}
    constexprs: dict[str, Any] = dict(launch.constexprs)
    attrs: Attrs = {}
    small = []
    names = launch.kernel.arg_names
    plain = {p.num for p in getattr(launch.kernel, "params", ()) if p.do_not_specialize}
    for i, (name, value) in enumerate(zip(names, launch.args, strict=False)):
        divisible = False
        if isinstance(value, Tensor):
            signature[name] = POINTERS[value.dtype]
            address = int(value.storage_offset() * value.element_size())
            divisible = bool((address if value.device.type == "meta" else value.data_ptr()) % 16 == 0)
            if value.untyped_storage().size() < 2**31:
                small.append(i)
        elif isinstance(value, int) and (i in plain or value != 1):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible = i not in plain and value % 16 == 0
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name], constexprs[name] = "constexpr", value
        if divisible:
            attrs[(i,)] = [["tt.divisibility", 16]]
    signature.update(dict.fromkeys(names[len(launch.args) :], "constexpr"))
    return signature, constexprs, attrs, tuple(small)


def variants(dtypes: Sequence[torch.dtype] = DTYPES) -> Iterator[Variant]:
    """Every variant once, in a fixed order."""
    found: dict[Any, Variant] = {}
    for dtype in dtypes:
        for precision, room, shape, drive in product(_precisions(dtype), (True, False), SHAPES, DRIVES):
            with record(dry=True) as launches, configs.forced_precision(precision), configs.forced_room(room):
                drive(dtype, *shape)
            for launch in launches:
                backends = _backends(dtype, precision, launch)
                if backends:
                    variant = _variant(launch, dtype, backends, room, shape)
                    key = _key(variant)
                    known = found.setdefault(key, variant)
                    both = tuple(b for b in ("cuda", "hip") if b in (*known.backends, *variant.backends))
                    rooms = tuple(sorted({*known.rooms, *variant.rooms}))
                    found[key] = replace(known, backends=both, rooms=rooms, fast=known.fast or variant.fast)
    yield from found.values()


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


def _precisions(dtype: torch.dtype) -> tuple[str, ...]:
    """What configs.precision() can say of these features; bfloat16's other two are those of a slope that is given."""
    return ("bf16", "ieee", "tf32") if dtype == torch.bfloat16 else ("ieee", "tf32")


def _backends(dtype: torch.dtype, precision: str, launch: Launch) -> tuple[str, ...]:
    """Where configs.precision() can choose this: below "highest", and beside float16, CUDA takes TF32 and ROCm
    multiplies in full; bfloat16 is multiplied as such on both, but for a slope that is given."""
    if dtype == torch.bfloat16 and (launch.kernel.fn.__name__ == "slope_kernel") == (precision == "bf16"):
        return ()
    if precision == "tf32":
        return ("cuda",)
    return ("hip",) if dtype in HALF and precision == "ieee" else ("cuda", "hip")


def _variant(
    launch: Launch, dtype: torch.dtype, backends: tuple[str, ...], room: bool, shape: tuple[int, int, int]
) -> Variant:
    signature, constexprs, attrs, small = specialise(launch)
    kind = str(dtype).removeprefix("torch.")
    choices = ",".join(f"{k}={_short(v)}" for k, v in launch.constexprs.items())
    uses_dot = "PRECISION" in constexprs
    return Variant(
        name=f"{launch.name}[{kind} {'x'.join(map(str, shape))} {choices}]",
        kernel=launch.kernel,
        signature=signature,
        constexprs=constexprs,
        attrs=attrs,
        small=small,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        dtype=dtype,
        backends=backends if uses_dot else ("cuda", "hip"),
        rooms=(room,),
        fast=shape == (COPIED_SHAPE if launch.name in COPIED else FAST_SHAPE) and dtype != torch.float16,
    )


def variant_of(launch: Launch, dtype: torch.dtype) -> Variant:
    """One launch by itself, as a compilation for CUDA."""
    return _variant(launch, dtype, ("cuda",), True, (0, 0, 0))


def _short(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _key(variant: Variant) -> Any:
    return (
        variant.kernel.fn.__name__,
        tuple(variant.signature.items()),
        tuple(variant.constexprs.items()),
        tuple(variant.attrs),
        variant.small,
        variant.num_warps,
        variant.num_stages,
    )


# --- what drives the launchers: functions of (features' dtype, B, C, D) that together reach every option ----------


def _meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def _differentiate(out: Tensor, grad: Tensor | None = None) -> None:
    out.backward(grad)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _step(
    dtype: torch.dtype, B: int, C: int, D: int, *, weight: torch.dtype, estimate: str = "likelihood",
    use_y_M: bool = False, skip: bool = False, backward: str = "loss",
) -> None:  # fmt: skip
    """One step of GeT: E, C, backward, memory."""
    features, labels = _meta(B, D, dtype=dtype, grad=True), _meta(B, dtype=torch.int64)
    mu, pi, health = _meta(C, D), _meta(C), _meta(2, dtype=torch.int64)
    mu_g, mu_f = _meta(C, D, dtype=weight, grad=True), _meta(C, D, grad=True)
    e = expectation(
        features, mu, mu_g, mu_f, pi, 0.15, prior_estimate=estimate,
        use_y_M=use_y_M, labels=None if use_y_M else labels,
    )  # fmt: skip
    out = objective(e, 0.5, 0.5)
    if backward == "all":
        _differentiate(out.loss + out.loss_g + out.loss_f)
    elif backward:
        _differentiate(getattr(out, backward))
    update_memory_(mu, pi, health, e, 0.01, 0.01, skip=_meta() if skip else None)


def _steps(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    for estimate in ("likelihood", "posterior", "nearest"):
        _step(dtype, B, C, D, weight=torch.float32, estimate=estimate)
        _step(dtype, B, C, D, weight=torch.float32, estimate=estimate, use_y_M=True, skip=True)
    features, mu = _meta(B, D, dtype=dtype), _meta(C, D)
    expectation(features, mu, mu, mu, _meta(C), 0.15)  # no class sums
    for backward in ("loss_g", "loss_f", "all"):
        _step(dtype, B, C, D, weight=torch.float32, backward=backward)
    if dtype != torch.float32:
        _step(dtype, B, C, D, weight=dtype)


def _posteriors(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    for other in {dtype, torch.float32}:
        features, prototypes = _meta(B, D, dtype=dtype, grad=True), _meta(C, D, dtype=other, grad=True)
        log_prior = _meta(C, grad=True)
        _differentiate(posterior(features, prototypes, log_prior, 0.15), _meta(B, C))
        _differentiate(soft_cross_entropy(features, prototypes, log_prior, 0.15, _meta(B, C)))
        nearest_histogram(features.detach(), prototypes.detach())
        agreeing_votes(features.detach(), prototypes.detach(), prototypes.detach())


def _equations(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    P, y = _meta(B, C, dtype=dtype, grad=True), _meta(B, dtype=torch.int64)
    _differentiate(rebalance(P), _meta(B, C))
    _differentiate(rebalance(P, _meta(C)), _meta(B, C))
    _differentiate(mixed_labels(P, y, 0.5), _meta(B, C))
    structure_loss(P.detach(), P.detach())
    shrink_prior(_meta(C, dtype=dtype))
    for gate in (False, True):
        cap_prior(_meta(C, dtype=dtype), gate)
    rebalance_exponent(_meta(C, dtype=dtype))
    update_prior(_meta(C), _meta(C), 0.1)
    update_prototypes(_meta(C, D), _meta(C, D), _meta(C), 0.1)
    class_sums(_meta(B, D, dtype=dtype), y, C)


def _strided(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    """Inputs that are not contiguous: transposed where the sizes are LAID_ACROSS, every third element elsewhere."""
    if (B, C, D) not in (LAID_ACROSS, LAID_APART):
        return

    def lay(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if (B, C, D) == LAID_ACROSS:
            return _meta(columns, rows, dtype=dtype).T
        return _meta(rows, 3 * columns, dtype=dtype)[:, ::3]

    for weight in {dtype, torch.float32}:
        features, labels = lay(B, D, dtype).requires_grad_(), _meta(2 * B, dtype=torch.int64)[::2]
        mu, mu_g, mu_f = lay(C, D), lay(C, D, weight).requires_grad_(), lay(C, D).requires_grad_()
        pi, health = _meta(C), _meta(2, dtype=torch.int64)
        e = expectation(features, mu, mu_g, mu_f, pi, 0.15, labels=labels)
        _differentiate(objective(e, 0.5, 0.5).loss)
        update_memory_(mu, pi, health, e, 0.01, 0.01)
        P = posterior(features, mu_g, _meta(C, grad=True), 0.15)
        _differentiate(P, lay(B, C))
        _differentiate(soft_cross_entropy(features, mu_g, _meta(C), 0.15, lay(B, C)))
        nearest_histogram(features.detach(), mu)
    Q = lay(B, C, dtype).requires_grad_()
    _differentiate(rebalance(Q), lay(B, C))
    _differentiate(mixed_labels(Q, labels, 0.5), lay(B, C))
    structure_loss(Q.detach(), Q.detach())
    update_prototypes(mu, lay(C, D), _meta(C), 0.1)
    class_sums(features.detach(), labels, C)


def _mixed(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    """Types and sizes that meet seldom: half prototypes beside float32 features, half priors and labels, int32 classes,
    a width of 1, which the JIT makes a constant."""
    if (B, C, D) != MIXED:
        return
    features, prototypes, log_prior = _meta(B, D, grad=True), _meta(C, D, dtype=dtype, grad=True), _meta(C, dtype=dtype)
    _differentiate(posterior(features, prototypes, log_prior, 0.15), _meta(B, C))
    _differentiate(soft_cross_entropy(features, prototypes, log_prior, 0.15, _meta(B, C, dtype=dtype)))
    nearest_histogram(features.detach(), prototypes.detach())
    labels = _meta(B, dtype=torch.int32)
    mu, pi, health = _meta(C, D), _meta(C), _meta(2, dtype=torch.int64)
    e = expectation(features, mu, prototypes, _meta(C, D), _meta(C, dtype=dtype), 0.15, labels=labels)
    _differentiate(objective(e, 0.5, 0.5).loss)
    update_memory_(mu, pi, health, e, 0.01, 0.01)
    class_sums(features.detach(), labels, C)
    mixed_labels(_meta(B, C, dtype=dtype), labels, 0.5)
    _step(dtype, B, C, 1, weight=dtype)
    _posteriors(dtype, B, C, 1)


DRIVES: tuple[Callable[[torch.dtype, int, int, int], None], ...] = (_steps, _posteriors, _equations, _strided, _mixed)

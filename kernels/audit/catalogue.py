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

from fastget import kernels
from fastget.kernels import configs
from fastget.kernels.audit.step import StepInputs, step
from fastget.kernels.launch import Launch, record
from fastget.reference import Prior

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.int32: "*i32",
}  # fmt: skip

# (B, C, D): each reaches other entries of the tables; odd sizes lose the alignment that even ones have.
SHAPES = (
    (64, 64, 256), (256, 345, 2048), (36, 65, 257), (37, 5000, 257), (4096, 1000, 2048), (1000, 1030, 2049),
    (8192, 1024, 2048),
)  # fmt: skip
FAST_SHAPE = (256, 345, 2048)
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
            address = value.storage_offset() * value.element_size() if value.is_meta else value.data_ptr()
            divisible = int(address) % 16 == 0
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
            with record(dry=True) as launches, configs.choosing(precision=precision, room=room):
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


def _precisions(dtype: torch.dtype) -> tuple[str, ...]:
    """What configs.precision() can say of these features; bfloat16's other two are those of a slope that is given."""
    return ("bf16", "ieee", "tf32") if dtype == torch.bfloat16 else ("ieee", "tf32")


def _backends(dtype: torch.dtype, precision: str, launch: Launch) -> tuple[str, ...]:
    """Where this can be chosen: below "highest", and beside float16, CUDA takes TF32 and ROCm multiplies in full;
    bfloat16 is multiplied as such on both, but for a slope that is given, which is float32."""
    given = zip(launch.kernel.arg_names, launch.args, strict=False)
    slope = any(name.startswith("slopes") and x is not None and x.dtype == torch.float32 for name, x in given)
    if dtype == torch.bfloat16 and (launch.name == "backward_kernel" and slope) == (precision == "bf16"):
        return ()
    if "PRECISION" not in launch.constexprs:
        return ("cuda", "hip")
    if precision == "tf32":
        return ("cuda",)
    return ("hip",) if dtype in HALF and precision == "ieee" else ("cuda", "hip")


def _variant(
    launch: Launch, dtype: torch.dtype, backends: tuple[str, ...], room: bool, shape: tuple[int, int, int]
) -> Variant:
    signature, constexprs, attrs, small = specialise(launch)
    kind = str(dtype).removeprefix("torch.")
    choices = ",".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in launch.constexprs.items())
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
        backends=backends,
        rooms=(room,),
        fast=shape == FAST_SHAPE and dtype != torch.float16,
    )


def variant_of(launch: Launch, dtype: torch.dtype) -> Variant:
    """One launch by itself, as a compilation for CUDA."""
    return _variant(launch, dtype, ("cuda",), True, (0, 0, 0))


def _key(v: Variant) -> Any:
    return (v.kernel.fn.__name__, tuple(v.signature.items()), tuple(v.constexprs.items()), tuple(v.attrs), v.small,
            v.num_warps, v.num_stages)  # fmt: skip


# --- what drives the launchers: functions of (features' dtype, B, C, D) that together reach every option ----------


def _meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def _differentiate(out: Tensor, grad: Tensor | None = None) -> None:
    out.backward(grad)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _steps(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    """Steps of GeT: by the recipes, with every choice of what it does to pi, and where the memory is left as it is."""
    for recipe in ("default", "paper"):
        step(StepInputs.make(B, C, D, dtype, recipe))
    step(StepInputs.make(B, C, D, dtype, partial="yes", prior_estimate="likelihood"), skip=torch.zeros(()))
    step(StepInputs.make(B, C, D, dtype, prior="plain", prototype_labels="y_M"), skip=torch.zeros(()))


def _phases(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    """The functions by themselves: a prior and a memory that nobody follows, weights of the features' type, gradients
    of one head's loss or of all three."""
    for weight, loss in ((torch.float32, "loss_g"), (torch.float32, "loss_f"), (torch.float32, "all"), (dtype, "loss")):
        _phase(_meta(B, D, dtype=dtype, grad=True), _meta(C, D), _meta(C, D, dtype=weight, grad=True),
               _meta(C, D, grad=True), _meta(C), _meta(B, dtype=torch.int64), loss)  # fmt: skip


def _phase(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, log_pi: Tensor, labels: Tensor, loss: str = "loss"
) -> None:
    e = kernels.expectation(features, mu, mu_g, mu_f, log_pi, 0.15, labels=labels)
    out = kernels.objective(e, Prior(log_pi, _meta(), _meta()), 0.35, 0.35)
    _differentiate(out.loss + out.loss_g + out.loss_f if loss == "all" else getattr(out, loss))
    kernels.update_memory_(mu, _meta(len(mu)), _meta(2, dtype=torch.int64), e, 0.1, 0.1)


def _operators(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    for other in {dtype, torch.float32}:
        _of_vectors(_meta(B, D, dtype=dtype), _meta(C, D, dtype=other), _meta(B, C))
    _of_matrix(_meta(B, C, dtype=dtype), _meta(B, C))


def _of_vectors(features: Tensor, prototypes: Tensor, dP: Tensor, log_prior: torch.dtype = torch.float32) -> None:
    (B, C), mu = dP.shape, prototypes.float()
    leaves = features.requires_grad_(), prototypes.requires_grad_(), _meta(C, dtype=log_prior, grad=True)
    _differentiate(kernels.posterior(*leaves, 0.15), dP)
    kernels.agreeing_votes(features.detach(), prototypes.detach(), prototypes.detach())
    kernels.scatter_update(mu, _meta(C), features.detach(), _meta(B, dtype=torch.int64), _meta(C), 0.1, 0.1)


def _of_matrix(P: Tensor, dQ: Tensor) -> None:
    P.requires_grad_()
    _differentiate(kernels.rebalance(P), dQ)
    _differentiate(kernels.rebalance(P, _meta(P.shape[1])), dQ)


def _strided(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    """Inputs that are not contiguous: transposed where the sizes are LAID_ACROSS, every third element elsewhere."""
    if (B, C, D) not in (LAID_ACROSS, LAID_APART):
        return

    def lay(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if (B, C, D) == LAID_ACROSS:
            return _meta(columns, rows, dtype=dtype).T
        return _meta(rows, 3 * columns, dtype=dtype)[:, ::3]

    for weight in {dtype, torch.float32}:
        features, mu_g, mu_f = (lay(*x).requires_grad_() for x in ((B, D, dtype), (C, D, weight), (C, D)))
        _phase(features, lay(C, D), mu_g, mu_f, _meta(C), _meta(2 * B, dtype=torch.int64)[::2])
        _of_vectors(lay(B, D, dtype), lay(C, D, weight), lay(B, C))
    _of_matrix(lay(B, C, dtype), lay(B, C))


def _mixed(dtype: torch.dtype, B: int, C: int, D: int) -> None:
    """Types and sizes that meet seldom: half prototypes beside float32 features, half priors, int32 labels, a width of
    1, which the JIT makes a constant."""
    if (B, C, D) != MIXED:
        return
    features, mu_g, mu_f = _meta(B, D, grad=True), _meta(C, D, dtype=dtype, grad=True), _meta(C, D, grad=True)
    _phase(features, _meta(C, D), mu_g, mu_f, _meta(C, dtype=dtype), _meta(B, dtype=torch.int32))
    _of_vectors(_meta(B, D), _meta(C, D, dtype=dtype), _meta(B, C), dtype)
    _phases(dtype, B, C, 1)
    _of_vectors(_meta(B, 1, dtype=dtype), _meta(C, 1, dtype=dtype), _meta(B, C))


DRIVES: tuple[Callable[[torch.dtype, int, int, int], None], ...] = (_steps, _phases, _operators, _strided, _mixed)

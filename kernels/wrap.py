"""One way to make an operator of a launcher: direct calls in eager mode, a registered custom op under torch.compile.

A custom op passes opcheck and traces into one graph; the direct call saves its dispatch in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Run = Callable[..., Any]


class Operator:
    """`forward` as an operator: `op(*args)` calls it directly, or as torch.ops.fastget.<name> while compiling."""

    def __init__(self, name: str, forward: Run, fake: Run, mutates: Sequence[str] = ()) -> None:
        self.direct = forward
        self.op = torch.library.custom_op(f"fastget::{name}", forward, mutates_args=tuple(mutates))
        self.op.register_fake(fake)

    def __call__(self, *args: Any) -> Any:
        return self.op(*args) if torch.compiler.is_compiling() else self.direct(*args)


class Differentiable(Operator):
    """An operator with a gradient.

    `setup(ctx, inputs, output)` saves what `backward(run, ctx, *grads)` needs; `run` is the `gradient` operator in
    the form that suits the mode, so that the same backward serves eager calls and traced ones.
    """

    def __init__(
        self, name: str, forward: Run, fake: Run, setup: Callable[..., None], gradient: Operator, backward: Run
    ) -> None:
        super().__init__(name, forward, fake)

        def traced(ctx: Any, *grads: Tensor | None) -> Any:
            return backward(gradient.op, ctx, *grads)

        self.op.register_autograd(traced, setup_context=setup)

        class Eager(torch.autograd.Function):
            @staticmethod
            def forward(*args: Any) -> Any:
                return forward(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                setup(ctx, inputs, output)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *grads: Tensor | None) -> Any:
                return backward(gradient.direct, ctx, *grads)

        self.eager = Eager

    def __call__(self, *args: Any) -> Any:
        return self.op(*args) if torch.compiler.is_compiling() else self.eager.apply(*args)

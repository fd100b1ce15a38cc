"""What each base model lets its user set: its section of the configuration. No torch here.

`uses` is what a base model takes of a method; a method says what it gives in its own `Settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastget.common.fields import opt
from fastget.methods.settings import Part, Section


class BaseSettings(Section):
    """A base model's section."""

    uses: ClassVar[frozenset[Part]] = frozenset({"term"})
    ignores: ClassVar[tuple[str, ...]] = ()  # fields of others that mean nothing to it


@dataclass(frozen=True, kw_only=True)
class PlainSettings(BaseSettings):
    """Cross-entropy of the source, and the method's term."""

    uses: ClassVar[frozenset[Part]] = frozenset({"term", "own step", "source-free"})

    joint: bool = opt(False, "source and target in one call of the network: batch-norm statistics of both together")


@dataclass(frozen=True, kw_only=True)
class CDANSettings(BaseSettings):
    """CDAN+E (Long et al., 2018), as ATDOC runs it: a discriminator of the domains, with entropy weights."""

    title: ClassVar[str] = "CDAN+E"

    hidden: int = opt(1024, "width of the discriminator's hidden layer", ge=1)
    weight: float = opt(1.0, "weight of the domains' term; its gradient is reversed by a factor that grows to 1", ge=0)
    random_dim: int | None = opt(
        None, "show it a random projection of this width (the authors' for large C x D); none: all C x D products", ge=1
    )


@dataclass(frozen=True, kw_only=True)
class MixMatchSettings(BaseSettings):
    """MixMatch (Berthelot et al., 2019), as ATDOC runs it; a method with labels replaces its guess."""

    title: ClassVar[str] = "MixMatch"
    uses: ClassVar[frozenset[Part]] = frozenset({"labels"})
    ignores: ClassVar[tuple[str, ...]] = ("method.weight", "method.ramp")  # there is no term to weigh

    temperature: float = opt(0.5, "the guess is sharpened by the power of 1 over this", gt=0)
    alpha: float = opt(0.75, "images are mixed in a share drawn from Beta(alpha, alpha)", gt=0)
    weight: float = opt(100.0, "weight of the target's squared error at the end; it grows linearly from 0", ge=0)

"""What each method lets its user set: its section of the configuration. No torch here.

`presets` are values under a name, chosen by --recipe: of the section's own fields, or of others by `section.field`.
"default" is what the method starts from; a preset of another name stands for all that it says, on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fastget.common import fields
from fastget.common.choices import Backend, OnCPU
from fastget.common.fields import opt

Presets = Mapping[str, Mapping[str, Any]]
Part = Literal[
    "term",  # a term of the loss
    "labels",  # hard labels of the target's images, for a base model that trains on labels
    "own step",  # a term with an optimizer's step of its own
]
BNMNorm = Literal["atdoc", "paper", "mean"]
LINEAR = {"method.ramp": "linear"}  # ATDOC's schedule, iteration / iterations


class Section:
    """A frozen dataclass of fields made by `opt`, checked however it is made."""

    title: ClassVar[str] = ""  # what people call the method or base model, where that is not its name

    def __post_init__(self) -> None:
        fields.check(self)


class Settings(Section):
    """A method's section."""

    presets: ClassVar[Presets] = {"default": {}}
    gives: ClassVar[frozenset[Part]] = frozenset({"term"})  # to a base model, which takes what it can use
    runs_in: ClassVar[tuple[str, ...]] = ("uda", "pda", "ssda")  # values of data.setting

    @classmethod
    def set_by(cls, method: str, *recipes: str) -> dict[str, Any]:
        """By section.field: the values that these recipes of the method give, later ones winning."""
        values = {key: value for recipe in recipes for key, value in cls.presets[recipe].items()}
        return {key if "." in key else f"{method}.{key}": value for key, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class SourceOnly(Settings):
    """No term: on the plain base model the baseline, on another one that model alone."""

    gives: ClassVar[frozenset[Part]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Get(Settings):
    """GeT's own values; the paper's are the recipe `paper`."""

    title: ClassVar[str] = "GeT"
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})
    presets: ClassVar[Presets] = {
        "default": {},  # METHOD.md's values that work
        "paper": {  # what the paper prints
            "tau": 1.0,
            "gamma_mu": 0.9,
            "gamma_pi": 0.01,
            "gamma_Q": 0.2,
            "prototype_labels": "y_M",
            "prior_estimate": "likelihood",
            "prior_start": "estimate",
            "prior_cap": False,
            "rebalance_gate": False,
        },
        "0.1": {  # what the default was in fastget 0.1
            "gamma_mu": 0.01,
            "gamma_pi": 0.01,
            "prior_estimate": "likelihood",
            "prior_start": "estimate",
            "prior_cap": False,
            "rebalance_gate": False,
            "on_cpu": "reference",  # the same bits
        },
    }

    tau: float = opt(0.15, "temperature of the posteriors, Eq. (2)", gt=0)
    gamma_mu: float = opt(0.1, "prototype step, Eq. (4)", ge=0, le=1)
    gamma_pi: float = opt(0.003, "prior step, Eq. (3)", ge=0, le=1)
    gamma_Q: float = opt(0.5, "weight of the hard label y_M, Eq. (10)", ge=0, le=1)
    prior_estimate: Literal["likelihood", "posterior", "nearest"] = opt(
        "nearest", "estimate of the batch's class distribution, Eq. (3) or (3*)"
    )
    prior_start: Literal["estimate", "agreement"] = opt(
        "agreement",
        "start of the prior: as the estimate has it (1/C, or (3*)'s histogram), or the images on which the target's "
        "prototypes and the source's class means agree, (3')",
        was="estimate",
    )
    prior_cap: bool = opt(
        True, "cap the prior at half the typical share: only rarer classes are discounted, (2')", was=False
    )
    prior_gate: bool = opt(
        True,
        'with prior_cap: leave the prior out while it spreads over 85 % of the classes or more, by exp(entropy), (2")',
        was=False,
    )
    rebalance_gate: bool = opt(
        True,
        "weaken the rebalancing and sharpen the labels while the prior spreads over fewer than 85 % of the classes, in "
        "full at 65 %, (6')",
        was=False,
    )
    prior_shrinkage: bool = opt(False, "temper the prior by its own entropy, (2*); in place of prior_cap")
    prototype_labels: Literal["head", "y_M"] = opt(
        "head", "classes in Eq. (4): the classifier's argmax (4*), or the paper's y_M"
    )
    kl_g: bool = opt(True, "soft labels for the classifier's head; off: y_M alone (ablation)")
    kl_f: bool = opt(True, "soft labels for the prototype head; off: y_M alone (ablation)")
    mix: bool = opt(True, "mix y_M into the labels; off: Q alone (ablation)")
    backend: Backend = opt("auto", "who computes the step: triton, reference, auto (triton on a GPU, on_cpu on a CPU)")
    on_cpu: OnCPU = opt(
        "fused",
        "what backend=auto takes on a CPU: fused (few large operators), or reference (the equations one by one)",
        was="reference",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mix and not (self.kl_g and self.kl_f):
            raise ValueError(
                "mix=False leaves Q as the only label, and kl_g or kl_f=False takes it away: set one of them"
            )
        if self.prior_shrinkage and self.prior_cap:
            raise ValueError(
                "prior_shrinkage and prior_cap each put something else in the prior's place: set prior_cap=false too"
            )


@dataclass(frozen=True, kw_only=True)
class MCC(Settings):
    """Minimum class confusion (Jin et al., 2020), as ATDOC runs it; the authors' values are the recipe `original`."""

    title: ClassVar[str] = "MCC"
    presets: ClassVar[Presets] = {
        "default": LINEAR,
        "original": {"temperature": 2.5, "method.ramp": "constant"},
    }

    temperature: float = opt(1.0, "of the softmax; the authors' is 2.5 (3 on VisDA)", gt=0)


@dataclass(frozen=True, kw_only=True)
class MinEnt(Settings):
    """Entropy minimisation, over log C, as ATDOC runs it."""

    title: ClassVar[str] = "MinEnt"
    presets: ClassVar[Presets] = {"default": LINEAR}


@dataclass(frozen=True, kw_only=True)
class BNM(Settings):
    """Batch nuclear-norm maximisation (Cui et al., 2020), as ATDOC scales it; its authors' code is `original`."""

    title: ClassVar[str] = "BNM"
    presets: ClassVar[Presets] = {"default": LINEAR, "original": {"norm": "mean", "method.ramp": "constant"}}

    norm: BNMNorm = opt("atdoc", "scale of the nuclear norm: sqrt(min(B, C)) / B, the paper's 1 / B, or 1 / min(B, C)")


@dataclass(frozen=True, kw_only=True)
class PL(Settings):
    """Pseudo-labels sharpened by column, as ATDOC runs them."""

    title: ClassVar[str] = "PL"
    presets: ClassVar[Presets] = {"default": LINEAR}
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})


SECOND_LOOK = "fill the memory from a second, eval-mode pass as the authors do; off: from the step's own features"


@dataclass(frozen=True, kw_only=True)
class AtdocNC(Settings):
    """ATDOC with nearest centroids (Liang et al., 2021): labels from a memory of one centroid a class."""

    title: ClassVar[str] = "ATDOC-NC"
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})
    presets: ClassVar[Presets] = {"default": {"method.weight": 0.1, **LINEAR}}

    step: float = opt(0.1, "of the centroids towards the batch's means", gt=0, le=1)
    second_look: bool = opt(False, SECOND_LOOK)


@dataclass(frozen=True, kw_only=True)
class AtdocNA(Settings):
    """ATDOC with neighbourhood aggregation (Liang et al., 2021): labels from a memory of every target image."""

    title: ClassVar[str] = "ATDOC-NA"
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})
    presets: ClassVar[Presets] = {"default": {"method.weight": 0.2, **LINEAR}}

    neighbours: int = opt(5, "nearest images in the memory that vote, the image itself left out", ge=1)
    store: Literal["float32", "float16"] = opt("float32", "how the memory is kept; it is computed with in float32")
    second_look: bool = opt(False, SECOND_LOOK)


@dataclass(frozen=True, kw_only=True)
class MME(Settings):
    """Minimax entropy for ssda (Saito et al., 2019): a cosine head, and an optimizer's step of its own."""

    title: ClassVar[str] = "MME"
    presets: ClassVar[Presets] = {
        "default": {
            "method.weight": 0.1,
            "network.head": "cosine",
            "optim.label_smoothing": 0.0,
            "optim.labelled_target": "pooled",
            "optim.weight_decay": 5e-4,
        }
    }
    gives: ClassVar[frozenset[Part]] = frozenset({"own step"})
    runs_in: ClassVar[tuple[str, ...]] = ("ssda",)

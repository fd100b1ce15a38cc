"""What each method lets its user set: its section of the configuration. No torch here.

`presets` are values under a name, chosen by --recipe: of the section's own fields, or of others by `section.field`.
"default" is what the method starts from; a preset of another name stands for all that it says, on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fastget.common import fields
from fastget.common.choices import Backend
from fastget.common.fields import opt

Presets = Mapping[str, Mapping[str, Any]]
Part = Literal[
    "term",  # a term of the loss
    "labels",  # hard labels of the target's images, for a base model that trains on labels
    "own step",  # a term with an optimizer's step of its own
    "source-free",  # a term of steps without source images
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
    elsewhere: ClassVar[Mapping[str, str]] = {}  # why not in one of the others

    @classmethod
    def set_by(cls, method: str, *recipes: str) -> dict[str, Any]:
        """By section.field: the values that these recipes of the method give, later ones winning."""
        values = {key: value for recipe in recipes for key, value in cls.presets[recipe].items()}
        return {key if "." in key else f"{method}.{key}": value for key, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class SourceOnlySettings(Settings):
    """No term: on the plain base model the baseline, on another one that model alone."""

    gives: ClassVar[frozenset[Part]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Get(Settings):
    """GeT with what fastget adds; the paper's values are the recipe `paper`."""

    title: ClassVar[str] = "GeT"
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})
    presets: ClassVar[Presets] = {
        "default": {},  # METHOD.md's values that work
        "paper": {  # what the paper prints
            "tau": 1.0,
            "gamma_mu": 0.9,
            "gamma_pi": 0.01,
            "gamma_Q": 0.2,
            "prior_start": "uniform",
            "prior_estimate": "likelihood",
            "prior": "plain",
            "prototype_labels": "y_M",
        },
    }

    tau: float = opt(0.15, "temperature of the posteriors, Eq. (2)", gt=0)
    gamma_mu: float = opt(0.1, "prototype step, Eq. (4)", ge=0, le=1)
    gamma_pi: float = opt(0.003, "prior step, Eq. (3)", ge=0, le=1)
    gamma_Q: float = opt(0.35, "weight of the hard label y_M, Eq. (10)", ge=0, le=1)
    prior_start: Literal["uniform", "agreement"] = opt(
        "agreement",
        "start of the prior: 1/C (the paper), or the classes of the images on which two labellers agree, the target's "
        "prototypes and the source's class means, (3')",
        was="uniform",
    )
    prior_estimate: Literal["likelihood", "nearest"] = opt(
        "nearest",
        "classes of a batch: the paper's softmax of cosines, Eq. (3), or each image's nearest prototype, (3*)",
    )
    prior: Literal["plain", "trusted"] = opt(
        "trusted",
        "use of the prior: as it is (the paper), or as far as the two labellers agree, and only where it says that "
        "classes are missing, (12), (13)",
        was="plain",
    )
    partial: Literal["auto", "yes", "no"] = opt(
        "auto", "prior=trusted: the target is known to lack classes; auto: with data.setting=pda"
    )
    prototype_labels: Literal["y_M", "head"] = opt(
        "head", "classes in Eq. (4): the paper's y_M, or the classifier's argmax, (4*)"
    )
    kl_g: bool = opt(True, "soft labels for the classifier's head; off: y_M alone (ablation)")
    kl_f: bool = opt(True, "soft labels for the prototype head; off: y_M alone (ablation)")
    mix: bool = opt(True, "mix y_M into the labels; off: Q alone, and kl_g and kl_f do nothing (ablation)")
    backend: Backend = opt("auto", "who computes the step: triton, reference, auto (triton on a GPU)")

    @property
    def needs_source_means(self) -> bool:
        """Whether the start asks two labellers, one of which is the source's class means."""
        return self.prior_start == "agreement" or self.prior == "trusted"


@dataclass(frozen=True, kw_only=True)
class MCCSettings(Settings):
    """Minimum class confusion (Jin et al., 2020), as ATDOC runs it; the authors' values are the recipe `original`."""

    title: ClassVar[str] = "MCC"
    presets: ClassVar[Presets] = {
        "default": LINEAR,
        "original": {"temperature": 2.5, "method.ramp": "constant"},
    }

    temperature: float = opt(1.0, "of the softmax; the authors' is 2.5 (3 on VisDA)", gt=0)


@dataclass(frozen=True, kw_only=True)
class MinEntSettings(Settings):
    """Entropy minimisation, over log C, as ATDOC runs it."""

    title: ClassVar[str] = "MinEnt"
    presets: ClassVar[Presets] = {"default": LINEAR}


@dataclass(frozen=True, kw_only=True)
class BNMSettings(Settings):
    """Batch nuclear-norm maximisation (Cui et al., 2020), as ATDOC scales it; its authors' code is `original`."""

    title: ClassVar[str] = "BNM"
    presets: ClassVar[Presets] = {"default": LINEAR, "original": {"norm": "mean", "method.ramp": "constant"}}

    norm: BNMNorm = opt("atdoc", "scale of the nuclear norm: sqrt(min(B, C)) / B, the paper's 1 / B, or 1 / min(B, C)")


@dataclass(frozen=True, kw_only=True)
class PLSettings(Settings):
    """Pseudo-labels sharpened by column, as ATDOC runs them."""

    title: ClassVar[str] = "PL"
    presets: ClassVar[Presets] = {"default": LINEAR}
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})


@dataclass(frozen=True, kw_only=True)
class AlphaPowerSettings(Settings):
    """ARPM's alpha-power term alone (Gu et al., 2024): sure predictions, without a balance of classes."""

    presets: ClassVar[Presets] = {
        "default": {"method.weight": 0.3, **LINEAR},
        "original": {"method.weight": 0.3, "method.ramp": "constant"},
    }

    alpha: float = opt(6.0, "power of the probabilities", gt=1)


WIDE = {"network.bottleneck_norm": True, "network.bottleneck_relu": True}  # TLlib's bottleneck, and
TLLIB = {"plain.joint": True, "optim.decay": 20.0, "optim.label_smoothing": 0.0}  # its training


@dataclass(frozen=True, kw_only=True)
class DANNSettings(Settings):
    """Domain-adversarial training (Ganin et al., 2016) by cdan's discriminator, on features alone."""

    title: ClassVar[str] = "DANN"
    presets: ClassVar[Presets] = {"default": {}, "original": {"optim.label_smoothing": 0.0}}

    hidden: int = opt(1024, "width of the discriminator's hidden layer", ge=1)
    rate: float = opt(10.0, "how early the reversal is on: its factor is 2 / (1 + exp(-rate t)) - 1", gt=0)


@dataclass(frozen=True, kw_only=True)
class SAFNSettings(Settings):
    """Adaptive feature norms (Xu et al., 2019): features of both domains grow longer, in steps or to a radius."""

    title: ClassVar[str] = "SAFN"
    presets: ClassVar[Presets] = {
        "default": {
            **WIDE,
            "network.bottleneck_dim": 1000,
            "network.bottleneck_dropout": 0.5,
            "optim.label_smoothing": 0.0,
        },
        "original": {
            "optim.lr": 0.001,
            "optim.decay": 0.0,
            "optim.backbone_lr_scale": 1.0,
            "optim.backbone_momentum": 0.0,
            "optim.nesterov": False,
            "optim.weight_decay": 5e-4,
        },
    }

    weight: float = opt(0.05, "weight of the norms' term; 0.01 on VisDA", ge=0)
    norm: Literal["stepwise", "hard"] = opt("stepwise", "SAFN: each feature by a step; HAFN: their mean to a radius")
    step: float = opt(1.0, "stepwise: how much longer; 0.3 on VisDA", gt=0)
    radius: float = opt(25.0, "hard: how long", gt=0)
    entropy: float = opt(0.0, "weight of the target's mean entropy; 0.1 in SAFN+ENT", ge=0)


@dataclass(frozen=True, kw_only=True)
class DALNSettings(Settings):
    """The classifier as the domains' critic (Chen et al., 2022), by nuclear norms of its predictions."""

    title: ClassVar[str] = "DALN"
    presets: ClassVar[Presets] = {"default": WIDE, "original": TLLIB}

    rate: float = opt(20.0, "how early the reversal is on: its factor is 2 / (1 + exp(-rate t)) - 1", gt=0)


@dataclass(frozen=True, kw_only=True)
class SCDASettings(Settings):
    """Semantic concentration (Li et al., 2021): predictions of one class, pulled apart and together."""

    title: ClassVar[str] = "SCDA"
    presets: ClassVar[Presets] = {"default": WIDE, "original": TLLIB}

    pairs: float = opt(1.0, "weight of the pairs' discrepancy at the end; it grows linearly from 0", ge=0)
    mi: float | None = opt(None, "weight of the target's mutual information; default: 0.1, and 0 in pda", ge=0)
    temperature: float = opt(10.0, "of the pairs' softmax", gt=0)
    threshold: float = opt(0.8, "how sure a target image must be to be of a pair", ge=0, le=1)
    rate: float = opt(20.0, "how early the reversal is on: its factor is 2 / (1 + exp(-rate t)) - 1", gt=0)


SHOTS_NETWORK = {"network.bottleneck_norm": True, "network.head": "weight-norm"}
UNREAD = "its steps after the warm-up read no labelled image"


@dataclass(frozen=True, kw_only=True)
class SHOTSettings(Settings):
    """Source-free adaptation by information and labels of centroids (Liang et al., 2020); SHOT-IM has no labels."""

    title: ClassVar[str] = "SHOT"
    presets: ClassVar[Presets] = {
        "default": SHOTS_NETWORK,
        "original": {"train.batch_size": 64},
        "visda": {"late": 1, "optim.lr": 0.001, "train.batch_size": 64},
    }
    gives: ClassVar[frozenset[Part]] = frozenset({"source-free"})
    runs_in: ClassVar[tuple[str, ...]] = ("uda", "pda")
    elsewhere: ClassVar[Mapping[str, str]] = {"ssda": UNREAD}

    labels: float = opt(0.3, "weight of the labels' cross-entropy; 0: SHOT-IM; the authors' is 0.1 on digits", ge=0)
    balance: Literal["auto", "on", "off"] = opt("auto", "the term that asks for all classes alike; auto: off in pda")
    threshold: float | None = opt(
        None, "a class has a centroid if it is predicted for more than so many images; default: 0, in pda by the share",
        ge=0,
    )  # fmt: skip
    threshold_share: float = opt(0.4, "in pda: this share of the images that each of all classes would have", ge=0)
    intervals: int = opt(15, "how often the labels are made, by a pass over the target", ge=1)
    late: int = opt(0, "in how many intervals, the first ones, the labels have no weight yet", ge=0)


@dataclass(frozen=True, kw_only=True)
class AaDSettings(Settings):
    """Source-free adaptation by attracting and dispersing (Yang et al., 2022): neighbours agree, others do not."""

    title: ClassVar[str] = "AaD"
    presets: ClassVar[Presets] = {
        "default": SHOTS_NETWORK,
        "original": {"train.batch_size": 64},
        "visda": {"neighbours": 5, "decay": 5.0, "train.batch_size": 64},
    }
    gives: ClassVar[frozenset[Part]] = frozenset({"source-free"})
    runs_in: ClassVar[tuple[str, ...]] = ("uda",)
    elsewhere: ClassVar[Mapping[str, str]] = {
        "pda": "its dispersing part spreads images over all classes, also over those that the target lacks",
        "ssda": UNREAD,
    }

    neighbours: int = opt(
        3, "nearest images in the memory that an image is to agree with; the authors' is 5 on VisDA", ge=1
    )
    decay: float = opt(0.0, "the dispersing part's weight is (1 + 10 t)^-decay; the authors' is 0 to 5", ge=0)
    store: Literal["float32", "float16"] = opt("float32", "how the memory is kept; it is computed with in float32")


SECOND_LOOK = "fill the memory from a second, eval-mode pass as the authors do; off: from the step's own features"


@dataclass(frozen=True, kw_only=True)
class AtdocNCSettings(Settings):
    """ATDOC with nearest centroids (Liang et al., 2021): labels from a memory of one centroid a class."""

    title: ClassVar[str] = "ATDOC-NC"
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})
    presets: ClassVar[Presets] = {"default": {"method.weight": 0.1, **LINEAR}}

    step: float = opt(0.1, "of the centroids towards the batch's means", gt=0, le=1)
    second_look: bool = opt(False, SECOND_LOOK)


@dataclass(frozen=True, kw_only=True)
class AtdocNASettings(Settings):
    """ATDOC with neighbourhood aggregation (Liang et al., 2021): labels from a memory of every target image."""

    title: ClassVar[str] = "ATDOC-NA"
    gives: ClassVar[frozenset[Part]] = frozenset({"term", "labels"})
    presets: ClassVar[Presets] = {"default": {"method.weight": 0.2, **LINEAR}}

    neighbours: int = opt(5, "nearest images in the memory that vote, the image itself left out", ge=1)
    store: Literal["float32", "float16"] = opt("float32", "how the memory is kept; it is computed with in float32")
    second_look: bool = opt(False, SECOND_LOOK)


@dataclass(frozen=True, kw_only=True)
class MMESettings(Settings):
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
    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("uda", "pda"), "without labelled target images its second step has nothing to hold against"
    )

"""The sections of a run's configuration: frozen, typed fields, each with a line of meaning and a range. No torch here.

`free=True` marks a field that the trajectory does not depend on: it may differ when a run goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastget import bases, methods
from fastget.common.choices import Criterion, Decoder, Edges, Interpolation, Precision
from fastget.common.fields import opt
from fastget.common.preprocessing import Preprocessing

BEFORE = Preprocessing()  # of runs that do not tell theirs


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, and how they reach the network."""

    name: str = opt(
        "digits",
        "data set: digits, office31, office-home, visda2017, domainnet126, domainnet, pacs (`fastget data list`), "
        "folder (ROOT/DOMAIN/CLASS/image), lists (files of `path label` lines) or features "
        "(made by `fastget features`)",
    )
    root: str | None = opt(
        None, "folder that the images, or their features, lie in (digits: made in the cache directory)", free=True
    )
    started_in: str | None = opt(
        None, "the folder that relative paths were given in: what is not found here is looked for there", free=True
    )
    source: str | None = opt(None, "labelled domain: a domain's name, or a list file with data.name=lists")
    target: str | None = opt(None, "domain to adapt to; its labels, if any, are used for reporting only")
    labelled_target: str | None = opt(None, "ssda with data.name=lists: the list of the labelled target images")
    validation: str | None = opt(
        None,
        "ssda with data.name=lists: a list of target images whose labels no step trains on, for "
        "train.select=validation; published lists have their own",
    )
    setting: Literal["uda", "pda", "ssda"] = opt(
        "uda",
        "protocol: uda (the target has all classes and no labels), pda (only data.pda_classes of them), "
        "ssda (data.shots labelled target images a class)",
    )
    pda_classes: int | None = opt(None, "pda: how many classes the target keeps; default: half", ge=1)
    pda_subset: Literal["first", "random"] = opt(
        "first", "pda: which classes: the first in sorted order, as the benchmarks have it, or drawn by data.split_seed"
    )
    shots: int = opt(3, "ssda: labelled target images a class, from the published lists where given, else drawn", ge=1)
    imbalanced: bool = opt(False, "thin out the first half of the target's classes, on top of any setting")
    imbalanced_keep: float = opt(0.3, "imbalanced: share of those classes' images that is kept", gt=0, le=1)
    split_seed: int = opt(
        0, "seed of the ssda, imbalanced and random pda draws; train.seeds do not change the split", ge=0
    )
    limit: int | None = opt(
        None,
        "at most so many images of each domain, drawn by data.split_seed: of the source as many of each class as can "
        "be, of the target by chance; default: all",
        ge=1,
    )
    bad_images: Literal["error", "skip"] = opt("error", "what to do about unreadable images: stop, or leave them out")
    bad_threshold: float = opt(
        0.01, "share of a list's images that may turn unreadable in mid-run before the run stops", ge=0, le=1, free=True
    )
    max_pixels: int = opt(
        178_956_970,
        "an image whose header tells of more pixels is unreadable: it is refused before it is decoded",
        ge=1,
    )
    loader: Decoder = opt(
        "auto", "who decodes: dali, torchvision, synthetic (random images), auto (dali on a GPU, else torchvision)"
    )
    dali_edges: Edges = opt(
        "plain",
        "dali: how the outermost row and column of an image are resized: plain (as DALI does, up to 12 levels of 255 "
        "from PIL's), exact (as PIL does, at twice the cost and more)",
        was="exact",
    )
    cache: str = opt(
        "auto",
        "packed cache (`fastget data pack`): auto (in the root, if it is fresh), off, or the folder it lies in",
        free=True,
    )
    # the five of the backbone: None until fastget.networks.preprocessing.filled puts its own in their place
    resize: int | None = opt(
        None,
        "images are resized to this many pixels, both sides; default: the backbone's, 256 of resnet50",
        ge=1,
        was=BEFORE.resize,
    )
    crop: int | None = opt(
        None,
        "and cropped to this many: at random in training, the centre in evaluation; default: the backbone's, 224 of "
        "resnet50",
        ge=1,
        was=BEFORE.crop,
    )
    interpolation: Interpolation | None = opt(
        None, "how they are resized: bilinear or bicubic; default: the backbone's", was=BEFORE.interpolation
    )
    mean: tuple[float, ...] | None = opt(
        None, "of the channels, between 0 and 1, which is subtracted; default: the backbone's", was=BEFORE.mean
    )
    std: tuple[float, ...] | None = opt(
        None, "of the channels, which they are divided by; default: the backbone's", gt=0, was=BEFORE.std
    )
    flip: bool = opt(True, "mirror half of the training images")
    workers: int = opt(0, "decoding threads; 0: one per core", ge=0, free=True)

    @property
    def preprocessing(self) -> Preprocessing:
        """How an image reaches the network. Features have had it: then it means nothing."""
        if self.name == "features":
            return BEFORE
        given = (self.resize, self.crop, self.interpolation, self.mean, self.std)
        if None in given:
            raise ValueError(
                "the backbone's own preprocessing is not in the configuration yet: "
                "fastget.networks.preprocessing.filled(config) puts it there"
            )
        return Preprocessing(*given)  # type: ignore[arg-type]  # none of them is None, by the line above


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Backbone, bottleneck, classifier."""

    name: str = opt(
        "resnet50",
        "backbone: small (for small images), any torchvision classifier (resnet50, vit_b_16 ...), or timm/NAME "
        "(timm/vit_small_patch14_dinov2.lvd142m ...; needs fastget[timm])",
    )
    weights: str = opt(
        "imagenet",
        "the backbone's start: imagenet (the published weights: torchvision's default, or those of timm's tag), the "
        "name of others of torchvision's (IMAGENET1K_V1 ...), none (random), or a file of weights",
    )
    bottleneck_dim: int = opt(256, "feature width D after the bottleneck", ge=1, le=65536)
    bottleneck_norm: bool = opt(False, "batch-norm after the bottleneck")
    bottleneck_relu: bool = opt(False, "and ReLU after it")
    bottleneck_dropout: float = opt(
        0.0,
        "and dropout of this share that keeps the mean square: what is left is divided by sqrt(1 - it)",
        ge=0,
        le=0.9,
    )
    head: Literal["linear", "cosine", "weight-norm"] = opt(
        "linear",
        "classifier: linear; cosine (unit features, no bias), which mme needs; weight-norm (linear, the length and the "
        "direction of each class's weights learned apart), which shot has",
    )
    head_temperature: float = opt(0.05, "cosine head: its logits are divided by this", gt=0)


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What is optimised."""

    name: str = opt(methods.DEFAULT, "the method; each has a section of its own below", choices=methods.names)
    base: str = opt(
        bases.DEFAULT,
        "the base model, which owns the step's forward pass; with method.name=source-only it is trained alone",
        choices=bases.names,
    )
    recipe: str = opt("default", "the method's values under a name, as --recipe; settings of your own win", free=True)
    module: str | None = opt(
        None, "a module, or a .py file, that registers methods of your own; imported first", free=True
    )
    weight: float = opt(1.0, "weight of the method's term", ge=0)
    ramp: Literal["constant", "linear"] = opt("constant", "the weight over time: constant, or growing linearly from 0")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """SGD as in the paper: lr(i) = lr * (1 + decay * i / I)^-0.75."""

    lr: float = opt(0.01, "learning rate of bottleneck, classifier and what the method learns", gt=0)
    backbone_lr_scale: float = opt(0.1, "the backbone's learning rate is this times lr; 0: it is frozen", ge=0)
    bottleneck_lr_scale: float = opt(
        1.0, "the bottleneck's learning rate is this times lr: 1 as in ATDOC's code, 0.1 as in the paper's text", gt=0
    )
    decay: float = opt(10.0, "how far the learning rate falls, by the formula above; 0: it is constant", ge=0)
    momentum: float = opt(0.9, "momentum", ge=0, le=1)
    backbone_momentum: float | None = opt(None, "the backbone's; default: as the rest", ge=0, le=1)
    nesterov: bool = opt(True, "Nesterov's momentum")
    weight_decay: float = opt(1e-3, "weight decay", ge=0)
    impl: Literal["auto", "fused", "plain", "apex"] = opt(
        "auto", "who computes it: torch's fused SGD (auto, where there is one), plain, or NVIDIA's apex"
    )
    label_smoothing: float = opt(0.1, "label smoothing of the labelled images' cross-entropy", ge=0, le=1)
    labelled_target: Literal["added", "pooled"] = opt(
        "added",
        "ssda: the labelled target images' cross-entropy is added to the source's, or both are one mean",
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, logging, places."""

    preset: Literal["none", "quick"] = opt(
        "none",
        "quick: a first answer in minutes on a laptop (docs/quick.md); settings of your own win over its values",
        free=True,
    )
    seeds: tuple[int, ...] = opt((0,), "one run for each, e.g. 0,1,2", ge=0)
    out: str | None = opt(None, "the run's folder; default: a new one under runs/, named after the task", free=True)
    resume: Literal["no", "auto"] = opt(
        "no", "auto: go on from the newest checkpoint of the same run, if there is one", free=True
    )
    lock: Literal["heed", "take"] = opt(
        "heed",
        "a folder that another process writes to is refused; take: one of another host, which cannot be seen from "
        "here, counts as gone (a shared file system)",
        free=True,
    )
    batch_size: int = opt(36, "images a step from each domain", ge=1)
    eval_batch_size: int | None = opt(
        None, "images a batch in evaluation; default: 256, and of large images no more than 8 times batch_size",
        ge=1, free=True,
    )  # fmt: skip
    eval_images: int = opt(
        4096,
        "target images, drawn once, of an evaluation before the last one, which is of all; 0: all of them always",
        ge=0, free=True, was=0,
    )  # fmt: skip
    epochs: int = opt(10, "length; an epoch is as many batches as the larger domain holds", ge=1)
    max_steps: int | None = opt(None, "length in steps, in place of epochs", ge=1)
    warmup_steps: int | None = opt(
        None,
        "steps on the source alone first; default: 30 % of all for a method that needs them, else none",
        ge=0,
    )
    log_every: int = opt(20, "steps between log lines", ge=1, free=True)
    eval_every: int | None = opt(None, "steps between evaluations; default: ten in a run", ge=1, free=True)
    checkpoint_every: int | None = opt(None, "steps between checkpoints; default: as eval_every", ge=1, free=True)
    keep_checkpoints: int = opt(2, "how many of the latest step checkpoints to keep", ge=1, free=True)
    sync_batchnorm: bool = opt(False, "batch-norm statistics over all ranks")
    select: Literal["none", Criterion] = opt(
        "none",
        "also keep the checkpoint that is best by this as selected.pt: entropy, mutual_information and "
        "neighbourhood_density need no target labels; validation is the mean class accuracy on ssda's validation list",
        free=True,
    )
    device: str = opt("auto", "cpu, cuda, cuda:1 ..., or auto", free=True)
    precision: Precision = opt(
        "auto", "number type of the network; auto: bfloat16 or float16 on a GPU, float32 on a CPU"
    )
    force_precision: bool = opt(False, "use that type even where it is slow")
    channels_last: Literal["auto", "gpu", "always", "never"] = opt(
        "auto",
        "whether the network's weights lie channels last: auto (on a GPU, and on a CPU in a half type, where it is "
        "measured faster), gpu (on a GPU alone), always, never",
        was="gpu",
    )
    compile: bool = opt(False, "torch.compile the network")
    graph: Literal["off", "auto", "on"] = opt(
        "auto",
        "whole steps as CUDA graphs, on one GPU in bfloat16 or float32: auto (where they can be, and where `fastget "
        "selftest` has shown on this card that they give the eager bits), on (or an error that says why not)",
        free=True,
    )
    watch: int = opt(
        2000,
        "target images, drawn once, whose features and pseudo-labels are kept for `fastget report`; 0: none",
        ge=0,
        free=True,
    )
    tensorboard: bool = opt(True, "write TensorBoard events beside metrics.jsonl", free=True)
    profile: bool = opt(False, "print where the time of a step goes, and write a Chrome trace", free=True)
    threads: int = opt(0, "CPU threads of torch; 0: torch's own choice. The same number gives the same bits", ge=0)

    def interim_images(self, target: int) -> int:
        """How many of so many target images an evaluation before the last one looks at."""
        return min(target, self.eval_images) if self.eval_images else target

"""A run's configuration: frozen sections of typed fields, each with a line of meaning, checked where they are read.

Values are layered, later ones winning: the defaults below, the preset of the data set (`PRESETS`), the recipe
(`fastget.RECIPES`), the file given by --config, and section.field=value settings from the command line.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from fastget.common.precision import Precision
from fastget.common.text import nearest as _nearest
from fastget.methods.get import RECIPES, Backend, PriorEstimate, PrototypeLabels


def opt(default: Any, help: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Any:
    """A field with its meaning and its range."""
    return field(default=default, metadata={"help": help, "ge": ge, "gt": gt, "le": le})


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, and how they reach the network."""

    name: str = opt(
        "digits",
        "data set: digits, office31, office-home, visda2017, domainnet126, domainnet, pacs (`fastget data list`), "
        "folder (ROOT/DOMAIN/CLASS/image) or lists (files of `path label` lines)",
    )
    root: str | None = opt(None, "folder that the images lie in (digits: made in the cache directory)")
    source: str | None = opt(None, "labelled domain: a domain's name, or a list file with data.name=lists")
    target: str | None = opt(None, "domain to adapt to; its labels, if any, are used for reporting only")
    labelled_target: str | None = opt(None, "ssda with data.name=lists: the list of the labelled target images")
    setting: Literal["uda", "pda", "ssda"] = opt(
        "uda",
        "protocol: uda (the target has all classes and no labels), pda (only the first data.pda_classes of them), "
        "ssda (data.shots labelled target images a class)",
    )
    pda_classes: int | None = opt(None, "pda: classes that the target keeps, in sorted order; default: half", ge=1)
    shots: int = opt(3, "ssda: labelled target images a class, from the published lists where given, else drawn", ge=1)
    imbalanced: bool = opt(False, "thin out the first half of the target's classes, on top of any setting")
    imbalanced_keep: float = opt(0.3, "imbalanced: share of those classes' images that is kept", gt=0, le=1)
    split_seed: int = opt(0, "seed of the ssda and imbalanced draws; train.seeds do not change the split", ge=0)
    bad_images: Literal["error", "skip"] = opt("error", "what to do about unreadable images: stop, or leave them out")
    bad_threshold: float = opt(
        0.01, "share of a list's images that may turn unreadable in mid-run before the run stops", ge=0, le=1
    )
    loader: Literal["auto", "dali", "torchvision", "synthetic"] = opt(
        "auto", "who decodes: dali, torchvision, synthetic (random images), auto (dali on a GPU, else torchvision)"
    )
    cache: str = opt(
        "auto", "packed cache (`fastget data pack`): auto (in the root, if it is fresh), off, or the folder it lies in"
    )
    resize: int = opt(256, "images are resized to this many pixels, both sides", ge=1)
    crop: int = opt(224, "and cropped to this many: at random in training, the centre in evaluation", ge=1)
    flip: bool = opt(True, "mirror half of the training images")
    workers: int = opt(0, "decoding threads; 0: one per core", ge=0)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Backbone, bottleneck, classifier."""

    name: str = opt(
        "resnet50", "backbone: small (for small images) or any torchvision classifier (resnet50, mobilenet_v2 ...)"
    )
    weights: str = opt(
        "imagenet", "the backbone's start: imagenet (torchvision's), none (random), or a file of weights"
    )
    bottleneck_dim: int = opt(256, "feature width D after the bottleneck", ge=1)
    bottleneck_norm: bool = opt(False, "batch-norm after the bottleneck")


@dataclass(frozen=True, kw_only=True)
class GetConfig:
    """GeT's own values; the paper's are the recipe `paper`."""

    tau: float = opt(0.15, "temperature of the posteriors, Eq. (2)", gt=0)
    gamma_mu: float = opt(0.01, "prototype step, Eq. (4)", ge=0, le=1)
    gamma_pi: float = opt(0.01, "prior step, Eq. (3)", ge=0, le=1)
    gamma_Q: float = opt(0.5, "weight of the hard label y_M, Eq. (10)", ge=0, le=1)
    prior_estimate: PriorEstimate = opt("likelihood", "estimate of the batch's class distribution, Eq. (3) or (3*)")
    prior_shrinkage: bool = opt(False, "temper the prior by its own entropy, (2*)")
    prototype_labels: PrototypeLabels = opt(
        "head", "classes in Eq. (4): the classifier's argmax (4*), or the paper's y_M"
    )
    kl_g: bool = opt(True, "soft labels for the classifier's head; off: y_M alone (ablation)")
    kl_f: bool = opt(True, "soft labels for the prototype head; off: y_M alone (ablation)")
    mix: bool = opt(True, "mix y_M into the labels; off: Q alone (ablation)")
    backend: Backend = opt("auto", "who computes the step: triton, reference, auto (triton on a GPU)")


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What is optimised."""

    name: Literal["get", "source-only"] = opt("get", "get, or the baseline source-only")
    weight: float = opt(1.0, "weight of the target term, Eq. (11)", ge=0)
    ramp: Literal["constant", "linear"] = opt("constant", "the weight over time: constant, or growing linearly from 0")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """SGD as in the paper: lr(i) = lr * (1 + 10 i / I)^-0.75."""

    lr: float = opt(0.01, "learning rate of bottleneck, classifier and mu_f", gt=0)
    backbone_lr_scale: float = opt(0.1, "the backbone's learning rate is this times lr", ge=0)
    momentum: float = opt(0.9, "momentum", ge=0, le=1)
    nesterov: bool = opt(True, "Nesterov's momentum")
    weight_decay: float = opt(1e-3, "weight decay", ge=0)
    impl: Literal["auto", "fused", "plain", "apex"] = opt(
        "auto", "who computes it: torch's fused SGD (auto, where there is one), plain, or NVIDIA's apex"
    )
    label_smoothing: float = opt(0.1, "label smoothing of the source's cross-entropy", ge=0, le=1)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, logging, places."""

    seeds: tuple[int, ...] = opt((0,), "one run for each, e.g. 0,1,2", ge=0)
    out: str | None = opt(None, "the run's folder; default: a new one under runs/, named after the task")
    resume: Literal["no", "auto"] = opt("no", "auto: go on from the newest checkpoint of the same run, if there is one")
    batch_size: int = opt(36, "images a step from each domain", ge=1)
    epochs: int = opt(10, "length; an epoch is as many batches as the larger domain holds", ge=1)
    max_steps: int | None = opt(None, "length in steps, in place of epochs", ge=1)
    warmup_steps: int | None = opt(None, "steps on the source alone before GeT starts; default: 30 % of all", ge=0)
    log_every: int = opt(20, "steps between log lines", ge=1)
    eval_every: int | None = opt(None, "steps between evaluations; default: ten in a run", ge=1)
    checkpoint_every: int | None = opt(None, "steps between checkpoints; default: as eval_every", ge=1)
    keep_checkpoints: int = opt(2, "how many of the latest step checkpoints to keep", ge=1)
    sync_batchnorm: bool = opt(False, "batch-norm statistics over all ranks")
    select: Literal["none", "entropy", "mutual_information", "neighbourhood_density"] = opt(
        "none", "also keep the checkpoint that is best by this, which needs no target labels, as selected.pt"
    )
    device: str = opt("auto", "cpu, cuda, cuda:1 ..., or auto")
    precision: Precision = opt(
        "auto", "number type of the network; auto: bfloat16 or float16 on a GPU, float32 on a CPU"
    )
    force_precision: bool = opt(False, "use that type even where it is slow")
    compile: bool = opt(False, "torch.compile the network")
    tensorboard: bool = opt(True, "write TensorBoard events beside metrics.jsonl")
    profile: bool = opt(False, "print where the time of a step goes, and write a Chrome trace")
    threads: int = opt(0, "CPU threads of torch; 0: torch's own choice. The same number gives the same bits", ge=0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All sections."""

    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    get: GetConfig = field(default_factory=GetConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        for key, info, value in walk(self):
            if info.name and value is not None:
                _check_range(key, info, value)
        if self.data.crop > self.data.resize:
            raise ValueError(
                f"data.crop ({self.data.crop}) must not exceed data.resize ({self.data.resize}): "
                "a crop cannot be larger than the image"
            )
        if self.optim.nesterov and self.optim.momentum == 0:
            raise ValueError("optim.nesterov needs a momentum above 0: set optim.nesterov=false or optim.momentum=0.9")
        if len(set(self.train.seeds)) != len(self.train.seeds) or not self.train.seeds:
            raise ValueError(f"train.seeds must be one or more different seeds, got {list(self.train.seeds)}")

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain sections, as in config.yaml."""
        sections = dataclasses.asdict(self)
        sections["train"]["seeds"] = list(self.train.seeds)
        return sections

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False))


PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "data.source": "fonts",
        "data.target": "handwritten",
        "data.resize": 32,
        "data.crop": 28,
        "data.flip": False,
        "network.name": "small",
        "network.weights": "none",
        "optim.backbone_lr_scale": 1.0,
        "optim.lr": 0.03,
        "train.batch_size": 64,
        "train.max_steps": 500,
        "train.threads": 1,  # so small a network gains nothing from more
    },
    "office31": {"data.source": "amazon", "data.target": "dslr", "data.pda_classes": 10, "train.epochs": 100},
    "office-home": {"data.source": "Art", "data.target": "Clipart", "data.pda_classes": 25, "train.epochs": 50},
    "visda2017": {"data.source": "train", "data.target": "validation", "data.pda_classes": 6, "train.epochs": 1},
    "domainnet126": {
        "data.source": "real",
        "data.target": "clipart",
        "data.pda_classes": 40,
        "network.name": "resnet34",
        "train.epochs": 20,
    },
    "domainnet": {"data.source": "real", "data.target": "clipart", "train.epochs": 20},
    "pacs": {"data.source": "photo", "data.target": "sketch", "train.epochs": 50},
}


def make_config(
    settings: Mapping[str, Any] | None = None,  # {"section.field": value}
    *,
    file: str | Path | None = None,
    recipe: str = "default",
) -> Config:
    """The configuration from all layers. Raises ValueError naming the key, what was expected, the nearest right one."""
    if recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}{_nearest(recipe, RECIPES)}: choose from {', '.join(RECIPES)}")
    given = {**(_read_file(Path(file)) if file else {}), **(settings or {})}
    checked = {key: _parse(key, value) for key, value in given.items()}
    preset = PRESETS.get(checked.get("data.name", DataConfig.name), {})
    values = {**preset, **{f"get.{name}": value for name, value in RECIPES[recipe].items()}, **checked}
    sections: dict[str, dict[str, Any]] = {name: {} for name in _sections()}
    for key, value in values.items():
        section, name = key.split(".")
        sections[section][name] = value
    return Config(**{name: _sections()[name](**fields) for name, fields in sections.items()})


def parse_pairs(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """The settings of repeated `--set section.field=value ...` options."""
    given = {}
    for pair in (pair for group in groups for pair in group):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set takes section.field=value, got {pair!r}")
        given[key.strip()] = value.strip()
    return given


def walk(config: Config) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(section.field, its description, its value) of every field."""
    for section in dataclasses.fields(config):
        part = getattr(config, section.name)
        for info in dataclasses.fields(part):
            yield f"{section.name}.{info.name}", info, getattr(part, info.name)


def describe_type(key: str) -> str:
    """A field's type in a reader's words."""
    return _type_name(_field_types()[key])


# --- reading and checking ------------------------------------------------------------------------


def _sections() -> dict[str, Any]:
    return {f.name: f.default_factory for f in dataclasses.fields(Config)}


def _field_types() -> dict[str, Any]:
    return {
        f"{section}.{name}": kind
        for section, cls in _sections().items()
        for name, kind in get_type_hints(cls).items()
        if not name.startswith("_")
    }


def _read_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the configuration file {file}: {error}") from error
    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
    if isinstance(tree, dict):
        tree = {section: {} if part is None else part for section, part in tree.items()}
    if not isinstance(tree, dict) or not all(isinstance(part, dict) for part in tree.values()):
        raise ValueError(f"{file} must hold sections ({', '.join(_sections())}), each with `field: value` lines")
    flat = {}
    for section, part in tree.items():
        for name, value in part.items():
            key = f"{section}.{name}"
            try:
                flat[key] = _parse(key, value)
            except ValueError as error:
                raise ValueError(f"{file}: {error}") from error
    return flat


def _parse(key: str, value: Any) -> Any:
    kinds = _field_types()
    if key not in kinds:
        bare = {k.split(".")[1]: k for k in kinds}
        hint = f" (did you mean {bare[key]!r}?)" if key in bare else _nearest(key, kinds)
        raise ValueError(f"unknown setting {key!r}{hint}; `fastget train --help` lists them all")
    try:
        return _convert(kinds[key], value)
    except _Mismatch as error:
        raise ValueError(f"{key} must be {_type_name(kinds[key])}, got {value!r}{error}") from error


class _Mismatch(Exception):
    """A value that does not fit its type; the text is a hint, or empty."""


def _convert(kind: Any, value: Any) -> Any:
    """`value` (from YAML, Python or the command line) as `kind`."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value in (None, "none", "null", ""):
            return None
        (inner,) = (a for a in get_args(kind) if a is not type(None))
        return _convert(inner, value)
    if origin is Literal:
        if value in get_args(kind):
            return value
        if value is False and "no" in get_args(kind):  # YAML reads a bare `no` as false
            return "no"
        raise _Mismatch(_nearest(str(value), [str(a) for a in get_args(kind)]))
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        return tuple(_convert(get_args(kind)[0], part.strip() if isinstance(part, str) else part) for part in parts)
    if isinstance(value, str) and kind is not str:
        return _from_text(kind, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and value is not None and not isinstance(value, (str, dict, list)):
        return str(value)
    if type(value) is not kind:
        raise _Mismatch("")
    return value


def _from_text(kind: Any, text: str) -> Any:
    if kind is bool:
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        if text.lower() not in words:
            raise _Mismatch("")
        return words[text.lower()]
    try:
        return kind(text)
    except ValueError as error:
        raise _Mismatch("") from error


def _type_name(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if a is type(None) else _type_name(a) for a in get_args(kind))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if origin is tuple:
        return "whole numbers separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]


def _check_range(key: str, info: dataclasses.Field[Any], value: Any) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, (bool, str)):
            continue
        ge, gt, le = (info.metadata[bound] for bound in ("ge", "gt", "le"))
        if (
            (isinstance(item, float) and not math.isfinite(item))
            or (ge is not None and item < ge)
            or (gt is not None and item <= gt)
            or (le is not None and item > le)
        ):
            bounds = [f"at least {ge}" if ge is not None else "", f"above {gt}" if gt is not None else ""]
            bounds += [f"at most {le}" if le is not None else ""]
            raise ValueError(f"{key} must be {' and '.join(b for b in bounds if b) or 'finite'}, got {item}")

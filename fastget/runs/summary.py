"""summary.json: a finished run's figures, typed, for everything that reads a run.

The headline is the final model. Target labels serve these figures only, and nothing is selected by them; SSDA's
validation list, which may select, has figures of its own.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

FILE = "summary.json"
FIGURES = ("accuracy", "mean_class_accuracy")


@dataclass(frozen=True, kw_only=True)
class Summary(Mapping[str, Any]):
    """What a run of one seed and a run of several have in common; as a mapping it is the content of the file."""

    method: str
    base: str = "plain"
    recipe: str = "default"  # the name of the method's values, and
    settings: dict[str, Any] = field(default_factory=dict)  # what they were: method.weight, the method's own ...
    data: str
    setting: str
    source: str
    target: str
    steps: int
    images: dict[str, int]  # by role: source, target, labelled_target, validation
    scored: int | None = None  # target images behind the figures: all but those that could not be read any more
    accuracy: float | None  # None: the target has no labels
    mean_class_accuracy: float | None
    source_only: dict[str, Any] | None  # the model at the end of the warm-up, before it adapts
    per_class_accuracy: dict[str, float | None]  # None: no image of that class
    classes: dict[str, Any] | None = None  # what the target is made of, in short: the whole is classes.csv
    backbone: dict[str, str] = field(default_factory=dict)  # its name, where its weights came from, their sha256
    validation: dict[str, Any] | None = None  # the final model on SSDA's validation list, and its images
    verdict: list[dict[str, Any]] = field(default_factory=list)  # name, text, numbers of what is wrong; of many: seed

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)

    def to_dict(self) -> dict[str, Any]:
        """The content of summary.json."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class SeedSummary(Summary):
    """A run of one seed."""

    seed: int
    left_out: list[str] = field(default_factory=list)  # bad files, at the start
    turned_bad: list[dict[str, Any]] = field(default_factory=list)  # and in mid-run; `unscored`: in an evaluation
    label_free: dict[str, float | None] = field(default_factory=dict)
    agreement: dict[str, float] | None = None  # of a method's two labellers: agreement, kappa, trust


@dataclass(frozen=True, kw_only=True)
class SeedsSummary(Summary):
    """Runs of several seeds: means, and standard deviations of the sample."""

    seeds: list[int]
    accuracy_std: float | None
    accuracy_per_seed: list[float] | None = None
    mean_class_accuracy_std: float | None
    mean_class_accuracy_per_seed: list[float] | None = None


def over_seeds(parts: Sequence[SeedSummary]) -> SeedsSummary:
    """One summary of the runs that differ in nothing but the seed."""
    first = parts[0]
    shared = {info.name: getattr(first, info.name) for info in dataclasses.fields(Summary)}
    figures: dict[str, Any] = {}
    for name in FIGURES:
        values = [getattr(part, name) for part in parts]
        known = None not in values
        figures[name] = statistics.fmean(values) if known else None
        figures[f"{name}_std"] = statistics.stdev(values) if known else None
        figures[f"{name}_per_seed"] = values if known else None
    before = [part.source_only for part in parts if part.source_only is not None]
    figures["source_only"] = {name: _mean([b[name] for b in before]) for name in FIGURES} if before else None
    validation = [part.validation for part in parts if part.validation is not None]
    if validation:
        figures["validation"] = {name: _mean([one[name] for one in validation]) for name in FIGURES}
        figures["validation"]["images"] = validation[0]["images"]
    made_of = [part.classes for part in parts if part.classes is not None]
    if made_of:
        figures["classes"] = made_of[0] | {
            name: _mean([one[name] for one in made_of]) for name in ("probably_absent", "total_variation")
        }
        figures["classes"]["untold"] = next((one["untold"] for one in made_of if one.get("untold")), "")
    figures["verdict"] = [{"seed": part.seed, **one} for part in parts for one in part.verdict]
    same = set.intersection(*(set(part.backbone.items()) for part in parts))  # random weights are a seed's own
    figures["backbone"] = {name: value for name, value in first.backbone.items() if (name, value) in same}
    figures["per_class_accuracy"] = {
        name: _mean([part.per_class_accuracy[name] for part in parts]) for name in first.per_class_accuracy
    }
    return SeedsSummary(**{**shared, **figures}, seeds=[part.seed for part in parts])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


# --- reading -------------------------------------------------------------------------------------

Kind = TypeVar("Kind", bound=Summary)


def read_summary(folder: Path) -> SeedSummary | SeedsSummary | None:
    """The summary of a finished run, of this version or an earlier one; None if the run is not finished."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        return _from(SeedsSummary, content) if "seeds" in content else _from(SeedSummary, content)
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"{file} is damaged or no run's summary ({error}): remove it to go on without it") from error


def _from(kind: type[Kind], content: Mapping[str, Any]) -> Kind:
    """What a later version has added is left out."""
    known = {info.name for info in dataclasses.fields(kind)}
    return kind(**{"source_only": None, **{name: value for name, value in content.items() if name in known}})

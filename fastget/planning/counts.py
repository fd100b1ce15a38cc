"""Images of both domains, as published or given, as the setting leaves them. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from fastget.config import Config
from fastget.data.datasets import DATA_SETS


@dataclass(frozen=True)
class Sizes:
    """Images, as the setting leaves them, and classes."""

    source: int
    target: int  # without labels
    labelled_target: int
    classes: int

    @property
    def stored(self) -> int:
        """Images on disk."""
        return self.source + self.target + self.labelled_target


def sizes_of(config: Config, images: tuple[int, int] | None, classes: int | None) -> Sizes:
    """Of the data set as published, or as given. ValueError says what is missing."""
    data, known = config.data, DATA_SETS.get(config.data.name)
    if data.name == "features":
        raise ValueError("data.name=features runs no backbone, and takes seconds: plan for the images, or just train")
    classes = classes or (known.num_classes if known else None)
    if images is None and known is not None:
        images = _published(known.domains, data.source, "source"), _published(known.domains, data.target, "target")
    if images is None or classes is None:
        raise ValueError(
            f"data.name={data.name} is not counted here: give --images SOURCE,TARGET and --classes, "
            f"or a data set that is known ({', '.join(DATA_SETS)})"
        )
    source, target = (count if data.limit is None else min(count, data.limit) for count in images)
    target = in_setting(config, target, classes)
    shots = min(data.shots * classes, target - 1) if data.setting == "ssda" else 0
    return Sizes(source, target - shots, shots, classes)


def _published(domains: dict[str, int], name: str | None, role: str) -> int:
    if name not in domains:
        raise ValueError(f"data.{role} must be one of {', '.join(domains)}, got {name!r}; or give --images")
    return domains[name]


def in_setting(config: Config, target: int, classes: int) -> int:
    """About how many target images the setting leaves."""
    data = config.data
    if data.setting == "pda":
        target = target * (data.pda_classes or classes // 2) // classes
    return round(target * (1 + data.imbalanced_keep) / 2) if data.imbalanced else target

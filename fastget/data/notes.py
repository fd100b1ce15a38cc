"""Lines for people on the lists of a run: what is allowed, and likely not what was meant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastget.common.text import and_more
from fastget.data.datasets import DATA_SETS
from fastget.data.lists import ImageList
from fastget.data.protocols import Split


def count_notes(name: str, lists: Sequence[ImageList]) -> list[str]:
    """Where a known data set has not as many images as were published."""
    published = DATA_SETS[name].domains if name in DATA_SETS else {}
    return [
        f"{images.name}: {len(images):,} images, and {published[images.name]:,} were published"
        for images in lists
        if published.get(images.name, len(images)) != len(images)
    ]


def same_notes(source: ImageList, same: NDArray[np.bool_]) -> list[str]:
    """Where the source's images, at these places, are the target's too."""
    if not same.any():
        return []
    return [
        f"{int(same.sum()):,} of the {len(source):,} images of {source.name} are among the target's too: are --source "
        "and --target as they should be?"
    ]


def lacking_notes(target: ImageList) -> list[str]:
    """Where a labelled target lacks a class, of which unsupervised adaptation expects them all."""
    lacking = [target.classes[c] for c in np.flatnonzero(target.counts() == 0)] if target.labelled else []
    if not lacking:
        return []
    count = len(target.classes)
    return [
        f"{target.name} has no image of {len(lacking)} of the {count} classes: {and_more(lacking)}. If that is meant, "
        f"it is partial adaptation: --setting pda --set data.pda_classes={count}"
    ]


def ssda_notes(split: Split) -> list[str]:
    """Where SSDA's lists overlap: shots, which are left out, and validation images, which a method may see."""
    notes = []
    target, labelled, validation = split.target, split.labelled_target, split.validation
    if labelled is not None and (count := split.protocol.get("shots_left_out")):
        notes.append(
            f"{target.name}: {count:,} of its images are the labelled shots of {labelled.name}; they are left out of "
            "what is adapted to and scored"
        )
    both = validation.shared_with(target) if validation is not None else []
    if validation is not None and both:
        notes.append(
            f"{validation.name}: {len(both):,} of its {len(validation):,} images are among the unlabelled ones of "
            f"{target.name} too, and stay there, without their labels"
        )
    return notes


def limit_notes(split: Split) -> list[str]:
    """Which lists data.limit has cut."""
    whole = split.protocol.get("whole", {})
    cut = [(images, whole.get(role)) for role, images in (("source", split.source), ("target", split.target))]
    return [
        f"{images.name}: {len(images):,} of its {count:,} images are used (data.limit)"
        for images, count in cut
        if count not in (None, len(images))
    ]


def batch_notes(lists: Sequence[ImageList], batch_size: int) -> list[str]:
    """Where a batch is larger than the list that it is drawn from."""
    return [
        f"train.batch_size={batch_size} is more than the {len(images):,} images of {images.name}: a batch holds "
        "some of them several times"
        for images in lists
        if batch_size > len(images)
    ]

"""Lines for people on the lists of a run: what is allowed, and likely not what was meant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastget.common.text import and_more
from fastget.data.datasets import DATA_SETS
from fastget.data.lists import ImageList


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


def batch_notes(lists: Sequence[ImageList], batch_size: int) -> list[str]:
    """Where a batch is larger than the list that it is drawn from."""
    return [
        f"train.batch_size={batch_size} is more than the {len(images):,} images of {images.name}: a batch holds "
        "some of them several times"
        for images in lists
        if batch_size > len(images)
    ]

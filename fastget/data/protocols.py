"""Which images of a data set a run uses: pure functions from lists to lists.

`uda` takes the target as it is; `pda` keeps the first k classes in sorted order, or k drawn by seed; `ssda` splits the
target into a few labelled shots a class and the unlabelled rest; `imbalance` thins the first half of the classes, on
top of any; `limited` takes a few of what is left, for a first look.

A draw depends on the seed and on each path alone, never on the order of the list: the images of a class are ranked by
a hash of (seed, purpose, path) and the first ones are taken. So a list that is sorted another way, or that lacks some
files, gives the same split up to those files, and a recorded seed rebuilds a split to the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastget.common.files import path_keys
from fastget.common.text import and_more
from fastget.config import DataConfig
from fastget.data.decode import Problem
from fastget.data.feature_store import Origin
from fastget.data.lists import ImageList, Unused
from fastget.data.packed.read import Packed


@dataclass(frozen=True)
class Domains:
    """The lists of a run, as its setting makes them."""

    source: ImageList
    target: ImageList  # what the method adapts to, and what accuracy is measured on; SSDA: the unlabelled part
    labelled_target: ImageList | None = None  # SSDA's shots
    validation: ImageList | None = None  # SSDA's images whose labels no step trains on, where there are any
    left_out: list[Problem] = field(default_factory=list)  # bad files, under data.bad_images=skip
    unused: dict[str, tuple[Unused, ...]] = field(default_factory=dict)  # role -> its folder's files that no list holds
    packed: dict[str, Packed] = field(default_factory=dict)  # role -> cache, where fresh
    features: dict[str, NDArray[Any]] = field(default_factory=dict)  # role -> (N, D), where data.name=features
    origin: Origin | None = None  # of the features: what made them
    notes: list[str] = field(default_factory=list)  # lines for people: caches, counts that differ from the published
    protocol: dict[str, Any] = field(default_factory=dict)  # how the lists came about: split.json of the run

    def lists(self) -> dict[str, ImageList]:
        """The lists by their role."""
        found = {role: getattr(self, role) for role in ("source", "target", "labelled_target", "validation")}
        return {role: images for role, images in found.items() if images is not None}


def apply(
    source: ImageList,
    target: ImageList,
    data: DataConfig,
    *,
    published: tuple[ImageList, ImageList] | None = None,  # SSDA: the labelled and unlabelled list, where given
    validation: ImageList | None = None,  # SSDA: the validation list, where given
) -> Domains:
    """The lists that a setting makes of a data set's two domains, with a protocol that rebuilds them."""
    protocol: dict[str, Any] = {"setting": data.setting}
    seed = data.split_seed
    notes: list[str] = []
    labelled = None
    if data.setting == "pda":
        count = data.pda_classes or max(1, len(source.classes) // 2)
        kept = partial_classes(target.classes, count, None if data.pda_subset == "first" else seed)
        target = pda(target, kept)
        protocol["pda_classes"] = [target.classes[c] for c in kept]
        if data.pda_subset == "random":
            protocol |= {"pda_subset": "random", "split_seed": seed}
    elif data.setting == "ssda":
        labelled, target = published or ssda(target, data.shots, seed)
        protocol |= {"shots": data.shots, "split": "published lists" if published else f"drawn with seed {seed}"}
        known = target.in_both(labelled) if published else np.zeros(len(target), dtype=bool)
        if known.any():  # a score on what was trained on would say nothing
            target = _not_empty(target.keep(~known), target, "its own beside the labelled shots")
            protocol["shots_left_out"] = int(known.sum())
            notes.append(
                f"{target.name}: {known.sum():,} of its images are the labelled shots of {labelled.name}; they are "
                "left out of what is adapted to and scored"
            )
        if validation is not None:
            _refuse_leak(validation, labelled, drawn=published is None)
    if data.imbalanced:
        target = imbalance(target, data.imbalanced_keep, seed)
        protocol |= {"imbalanced_keep": data.imbalanced_keep, "split_seed": seed}
    if data.limit is not None:
        whole = {"source": source, "target": target}
        protocol |= {"limit": data.limit, "whole": {role: len(every) for role, every in whole.items()}}
        protocol["split_seed"] = seed
        source, target = limited(source, data.limit, seed, by_class=True), limited(target, data.limit, seed)
        validation = None if validation is None else limited(validation, data.limit, seed)
        notes += [
            f"{some.name}: {len(some):,} of its {len(every):,} images are used (data.limit)"
            for some, every in zip((source, target), whole.values(), strict=True)
            if len(some) < len(every)
        ]
    if validation is not None and (both := validation.shared_with(target)):
        notes.append(
            f"{validation.name}: {len(both):,} of its {len(validation):,} images are among the unlabelled ones of "
            f"{target.name} too, and stay there, without their labels"
        )
    domains = Domains(source, target, labelled, validation, notes=notes, protocol=protocol)
    protocol["lists"] = {role: describe(images) for role, images in domains.lists().items()}
    return domains


def partial_classes(classes: Sequence[str], count: int, seed: int | None = None) -> list[int]:
    """PDA's classes by number, in order: the first `count`, or with a seed as many drawn, by a hash of each name.

    A draw does not depend on the order of the names, and that of a smaller count lies within that of a larger one.
    """
    if not 1 <= count <= len(classes):
        raise ValueError(f"data.pda_classes must be 1 to {len(classes)}, the number of classes, got {count}")
    if seed is None:
        return list(range(count))
    return sorted(np.argsort(path_keys(classes, f"{seed}:pda:"), kind="stable")[:count].tolist())


def pda(target: ImageList, kept: Sequence[int]) -> ImageList:
    """Partial: the images of these classes. Class numbers follow the sorted class names."""
    _need_labels(target, "pda")
    names = and_more([target.classes[c] for c in kept])
    return _not_empty(target.keep(np.isin(target.labels, kept)), target, f"the {len(kept)} classes kept: {names}")


def ssda(target: ImageList, shots: int, seed: int) -> tuple[ImageList, ImageList]:
    """Semi-supervised: `shots` images of each class with their labels, and all the others."""
    _need_labels(target, "ssda")
    counts = target.counts()
    poor = [f"{target.classes[c]} ({counts[c]})" for c in np.flatnonzero((counts > 0) & (counts <= shots))]
    if poor:
        raise ValueError(
            f"data.shots={shots} leaves no unlabelled image of {', '.join(poor[:5])} in {target.name}: "
            "every class needs more images than shots"
        )
    drawn = _rank_in_class(target, f"{seed}:ssda:{shots}") < shots
    return target.keep(drawn), target.keep(~drawn)


def imbalance(target: ImageList, keep: float, seed: int) -> ImageList:
    """Imbalanced: of the first floor(C / 2) of the C classes that the target has, `keep` of the images (at least one).

    C counts the classes that are there: under PDA the first half of all classes may be every class that is left.
    """
    _need_labels(target, "imbalanced")
    counts = target.counts()
    there = np.flatnonzero(counts)
    quota = counts.copy()
    thin = there[: len(there) // 2]
    quota[thin] = np.maximum(1, np.floor(counts[thin] * keep + 0.5).astype(np.int64))
    return target.keep(_rank_in_class(target, f"{seed}:imbalanced") < quota[target.labels])


def limited(images: ImageList, limit: int, seed: int, *, by_class: bool = False) -> ImageList:
    """At most `limit` of the images, in their order: by chance, or as many of each class as can be. A target's labels
    must not tell which of its images are seen."""
    if limit >= len(images):
        return images
    keys = path_keys(images.paths, f"{seed}:limit:")
    if not by_class:
        return images.take(np.sort(np.argsort(keys, kind="stable")[:limit]))
    classes = int((images.counts() > 0).sum())
    if limit < classes:
        raise ValueError(f"data.limit={limit} leaves {images.name} no image of some of its {classes} classes: raise it")
    return images.take(np.sort(np.lexsort((keys, _rank_in_class(images, f"{seed}:limit")))[:limit]))


def describe(images: ImageList) -> dict[str, Any]:
    """A list in the run's protocol: its name, size, and a digest that tells whether a rebuilt list is the same."""
    digest = hashlib.sha256()
    for path, label in zip(images.paths, images.labels.tolist(), strict=True):
        digest.update(f"{path} {label}\n".encode("utf-8", "surrogateescape"))
    return {"name": images.name, "images": len(images), "sha256": digest.hexdigest()}


def _rank_in_class(images: ImageList, purpose: str) -> NDArray[np.int64]:
    """(N,) each image's place, from 0, among its class, by a hash of its path."""
    order = np.lexsort((path_keys(images.paths, f"{purpose}:"), images.labels))
    labels = images.labels[order]
    starts = np.searchsorted(labels, labels)  # where each one's class begins
    rank = np.empty(len(images), dtype=np.int64)
    rank[order] = np.arange(len(images)) - starts
    return rank


def _need_labels(target: ImageList, setting: str) -> None:
    if not target.labelled:
        raise ValueError(
            f"the {setting} protocol splits the target {target.name} by class, but its list has no labels: "
            "give a labelled list or class folders, or use --setting uda without data.imbalanced"
        )


def _refuse_leak(validation: ImageList, shots: ImageList, *, drawn: bool) -> None:
    """An error for an image that is trained on with its label, and is to tell a good checkpoint from a bad one."""
    both = validation.shared_with(shots)
    if both:
        mend = ", or draw other shots by data.split_seed" if drawn else f", or from {shots.name}"
        raise ValueError(
            f"the validation list {validation.name} must hold none of the labelled shots, since a checkpoint is not "
            f"chosen by images that it is trained on, and it holds {len(both):,} of them: {and_more(both)}. "
            f"Remove them from {validation.name}{mend}"
        )


def _not_empty(images: ImageList, of: ImageList, what: str) -> ImageList:
    if not len(images):
        raise ValueError(f"{of.name} has no image of {what}")
    return images

"""Which lists a data set's name or a configuration means: found on disk, split by the protocol, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastget.common.progress import Advance
from fastget.common.text import and_more, nearest
from fastget.config import DataConfig
from fastget.data import protocols
from fastget.data.check.files import without_bad
from fastget.data.datasets import DATA_SETS, NAMES
from fastget.data.digits import digits_root
from fastget.data.feature_store import Store
from fastget.data.folders import domains_from_folders, folders_in, unused_notes, what_is
from fastget.data.lists import ImageList, domains_from_lists, read_list
from fastget.data.packed.read import Packed, find_packed
from fastget.data.protocols import Domains
from fastget.data.published import present, published_shots, read_domain, validation_file
from fastget.data.relative_paths import as_found


def load_domains(
    data: DataConfig, *, workers: int = 0, advance: Advance | None = None, need_validation: bool = False
) -> Domains:
    """The lists of a run. Every image has had a quick check; bad ones stop it, or are left out.

    `advance` is told how many more files have been checked, for a progress bar. `need_validation`: an error if there is
    no validation list, before the images are looked at.
    """
    _refuse_misplaced(data)
    data, moved = as_found(data)
    store = Store.open(_root(data.name, data.root)) if data.name == "features" else None
    whole = find_domains(data, store)
    source, target = whole
    shots, validation = _given(data, target) if data.setting == "ssda" else (None, None)
    if need_validation and validation is None:
        raise ValueError(_no_validation(data))
    domains = protocols.apply(source, target, data, published=shots, validation=validation)
    same = int(source.in_both(target).sum()) if store is None else len(source) * (data.source == data.target)
    notes = [*moved, *domains.notes, *_odd_notes(source, target, same, data.setting)]
    if store is None:
        return _with_files(domains, data, whole, notes, workers, advance)
    notes = [f"features of {store.origin.tag}, {store.origin.dim} wide, from {store.folder}", *notes]
    return dataclasses.replace(  # no image is opened, so that none can be bad
        domains,
        features={role: store.features(images) for role, images in domains.lists().items()},
        origin=store.origin,
        notes=notes,
        protocol=domains.protocol | {"features": dataclasses.asdict(store.origin)},
    )


def _with_files(
    domains: Domains,
    data: DataConfig,
    whole: Sequence[ImageList],
    notes: list[str],
    workers: int,
    advance: Advance | None,
) -> Domains:
    """The lists after a quick look at every file, with their caches. What lies in the folders of the whole domains and
    is not used is counted in the notes, and listed in the protocol."""
    lists, report = without_bad(domains.lists(), data, workers, advance, whole)
    found: dict[str, tuple[Packed | None, str]] = {}
    if data.resize is not None and data.interpolation is not None:  # else it is not known what a cache should hold
        found = {role: find_packed(some, data.cache, data.resize, data.interpolation) for role, some in lists.items()}
    by_name = {images.name: images.unused for images in whole}  # of one domain that is both, once
    protocol = dict(domains.protocol)
    if report.bad:
        protocol["left_out"] = [dataclasses.asdict(problem) for problem in report.bad]
    if unused := [dataclasses.asdict(one) for some in by_name.values() for one in some]:
        protocol["unused"] = unused
    unused_in = [note for name, some in by_name.items() for note in unused_notes(name, some)]
    of_caches = [note for _, note in found.values() if note]
    changed: dict[str, Any] = dict(lists)
    return dataclasses.replace(
        domains,
        **changed,
        left_out=report.bad,
        unused=dict(zip(("source", "target"), (images.unused for images in whole), strict=True)),
        packed={role: packed for role, (packed, _) in found.items() if packed},
        notes=[*report.notes, *unused_in, *of_caches, *notes, *count_notes(data.name, whole)],
        protocol=protocol,
    )


def _odd_notes(source: ImageList, target: ImageList, same: int, setting: str) -> list[str]:
    """What is allowed, and likely not what was meant: images in both lists, a class that the target lacks."""
    notes = []
    if same:
        notes.append(
            f"{same:,} of the {len(source):,} images of {source.name} are among the target's too: are --source and "
            "--target as they should be?"
        )
    lacking = [target.classes[c] for c in np.flatnonzero(target.counts() == 0)] if target.labelled else []
    if lacking and setting == "uda":
        count = len(target.classes)
        notes.append(
            f"{target.name} has no image of {len(lacking)} of the {count} classes: {and_more(lacking)}. If that is "
            f"meant, it is partial adaptation: --setting pda --set data.pda_classes={count}"
        )
    return notes


def count_notes(name: str, lists: Sequence[ImageList]) -> list[str]:
    """Where a known data set has not as many images as were published."""
    published = DATA_SETS[name].domains if name in DATA_SETS else {}
    return [
        f"{images.name}: {len(images):,} images, and {published[images.name]:,} were published"
        for images in lists
        if published.get(images.name, len(images)) != len(images)
    ]


def find_domains(data: DataConfig, store: Store | None = None) -> tuple[ImageList, ImageList]:
    """All images of the source and of the target, before any protocol. `store`: that of data.name=features, if open."""
    _refuse_unknown(data.name)
    source, target = data.source, data.target
    if data.name == "digits":
        source, target = source or "fonts", target or "handwritten"
    for role, domain in (("source", source), ("target", target)):
        if domain is None:
            kinds = {"lists": "a list file", "features": "a domain that `fastget features show` names"}
            kind = kinds.get(data.name, "a domain folder under --root")
            if data.name in DATA_SETS:
                kind = f"one of {', '.join(DATA_SETS[data.name].domains)}"
            raise ValueError(f"data.{role} is missing: give {kind} by --{role}")
    names = [str(source), str(target)]
    first, second = _stored(store, names, led=True) if store else read_domains(data.name, data.root, names, led=True)
    return first, second


def read_domains(name: str, root: str | None, domains: Sequence[str] = (), *, led: bool = False) -> list[ImageList]:
    """The lists of a data set's domains, or of all that its root holds. Raises ValueError with advice.

    `led`: the first is a run's source. Its classes are everyone's, and one that it lacks is an error.
    """
    _refuse_unknown(name)
    if name == "lists":
        if not domains:
            raise ValueError("give the list files by --source and --target (one of them is enough)")
        return domains_from_lists(Path(root or "."), *domains, led=led)
    place = _root(name, root)
    if name == "features":
        return _stored(Store.open(place), domains, led=led)
    if name == "folder":
        found = domains or (folders_in(place) if place.is_dir() else [])
        if not found:
            raise ValueError(f"{place} {what_is(place)}: expected {place}/DOMAIN/CLASS/image.jpg")
        return domains_from_folders(place, *found, led=led)
    known = DATA_SETS[name]
    lists = [read_domain(known, place, domain) for domain in domains or present(known, place)]
    return [dataclasses.replace(images, classes=lists[0].classes) for images in lists] if led else lists


def _root(name: str, root: str | None) -> Path:
    if name == "digits":
        return digits_root(root)
    if root is None:
        what = "the folder that holds the domains' folders" if name == "folder" else f"the folder that {name} lies in"
        raise ValueError(f"data.root is missing: give {what} by --root")
    return Path(root)


def _stored(store: Store, domains: Sequence[str], *, led: bool) -> list[ImageList]:
    """The lists of a folder of features."""
    lists = [store.images(domain) for domain in domains or store.domains]
    if led and not lists[0].labelled:
        raise ValueError(
            f"{lists[0].name} has images without a label, and a source needs them all: make the features of labelled "
            "images, or choose another --source"
        )
    return lists


def _refuse_unknown(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"unknown data set {name!r}{nearest(name, NAMES)}: choose from {', '.join(NAMES)}")


def _refuse_misplaced(data: DataConfig) -> None:
    """An error for the field of a validation list where none is read."""
    found = way = ""
    if data.setting != "ssda":
        found = f"data.setting=ssda, and the setting is {data.setting}, which has no labelled target images"
        way = ", or use --setting ssda"
    elif data.name != "lists":
        found = f"data.name=lists, and the data set is {data.name}"
        way = ". The published lists have a validation list of their own, which is found"
    if data.validation is not None and found:
        raise ValueError(f"data.validation goes with {found}: leave it out (--set data.validation=none){way}")


def _given(data: DataConfig, target: ImageList) -> tuple[tuple[ImageList, ImageList] | None, ImageList | None]:
    """SSDA's lists that are not drawn: labelled and unlabelled target images, and those set aside for validation.

    By their fields beside a target list, or found in the root, where the validation list goes with the published shots.
    """
    if data.name == "lists":

        def part(file: str | None) -> ImageList | None:
            if file is None:
                return None
            paths, labels = read_list(file, target.root, num_classes=len(target.classes))
            return ImageList(Path(file).stem, target.root, paths, labels, target.classes)

        labelled, validation = part(data.labelled_target), part(data.validation)
        return None if labelled is None else (labelled, target), validation
    if data.labelled_target is not None:
        raise ValueError("data.labelled_target goes with data.name=lists; other data sets find or draw the split")
    found = None
    if data.name in DATA_SETS and data.root is not None:
        found = published_shots(DATA_SETS[data.name], Path(data.root), str(data.target), data.shots)
    return (None, None) if found is None else (found[:2], found.validation)


def _no_validation(data: DataConfig) -> str:
    """Why there is no validation list, and what to do."""
    known = DATA_SETS.get(data.name)
    if data.name == "lists":
        where = "give its list file by --set data.validation=FILE"
    elif known is not None and known.ssda:
        shots = f"labeled_target_images_{known.ssda_names.get(str(data.target), data.target)}_{data.shots}.txt"
        where = (
            f"expected {validation_file(known, str(data.target))} beside the published {shots}, as in "
            f"{Path(str(data.root)) / 'txt' / known.ssda} (there are lists for data.shots=1 and 3)"
        )
    else:
        where = f"{data.name} has no published one; list files of your own, by --data lists, may have (data.validation)"
    return (
        f"train.select=validation needs a validation list, and {data.target} has none: {where}. "
        "Or choose by what needs no labels: --select entropy, mutual_information or neighbourhood_density"
    )

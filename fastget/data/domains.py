"""From a data set's name to its lists, and from a configuration to those of a run: split by the protocol, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastget.common.progress import Advance
from fastget.common.text import and_more, nearest
from fastget.config import DataConfig
from fastget.data import protocols
from fastget.data.check.files import CheckReport, check_lists
from fastget.data.datasets import DATA_SETS, NAMES
from fastget.data.decode import Problem
from fastget.data.digits import digits_root
from fastget.data.feature_store import Store
from fastget.data.folders import domains_from_folders, folders_in, unreadable, unused_notes, what_is
from fastget.data.lists import ImageList, domains_from_lists, read_list
from fastget.data.notes import count_notes, lacking_notes, same_notes
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
    same = source.in_both(target) if store is None else np.full(len(source), data.source == data.target)
    notes = [*moved, *same_notes(source, same), *domains.notes]
    notes += lacking_notes(target) if data.setting == "uda" else []
    if store is not None:
        return _with_features(domains, store, notes)
    return _with_files(domains, data, whole, notes, workers, advance)


def _with_features(domains: Domains, store: Store, notes: list[str]) -> Domains:
    """The lists with their features. No image is opened, so that none can be bad."""
    note = f"features of {store.origin.tag}, {store.origin.dim} wide, from {store.folder}"
    return dataclasses.replace(
        domains,
        features={role: store.features(images) for role, images in domains.lists().items()},
        origin=store.origin,
        notes=[note, *notes],
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
    lists, report = sound_lists(domains.lists(), data, workers, advance, whole)
    found: dict[str, tuple[Packed | None, str]] = {}
    if data.resize is not None and data.interpolation is not None:  # else it is not known what a cache should hold
        found = {role: find_packed(some, data.cache, data.resize, data.interpolation) for role, some in lists.items()}
    by_name = {images.name: images.unused for images in whole}  # of one domain that is both, once
    protocol = dict(domains.protocol)
    if report.bad:
        protocol["left_out"] = [dataclasses.asdict(problem) for problem in report.bad]
    if unused := [dataclasses.asdict(one) for some in by_name.values() for one in some]:
        protocol["unused"] = unused
    changed: dict[str, Any] = dict(lists)
    return dataclasses.replace(
        domains,
        **changed,
        left_out=report.bad,
        unused=dict(zip(("source", "target"), (images.unused for images in whole), strict=True)),
        packed={role: packed for role, (packed, _) in found.items() if packed},
        notes=[
            *report.notes,
            *(note for name, some in by_name.items() for note in unused_notes(name, some)),
            *(note for _, note in found.values() if note),
            *notes,
            *count_notes(data.name, whole),
        ],
        protocol=protocol,
    )


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
        return domains_from_folders(place, *(domains or _domain_folders(place)), led=led)
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


def _domain_folders(root: Path) -> list[str]:
    found = folders_in(root) if root.is_dir() else []
    if not found:
        raise ValueError(f"{root} {what_is(root)}: expected {root}/DOMAIN/CLASS/image.jpg")
    return found


def _refuse_misplaced(data: DataConfig) -> None:
    """An error for the field of a validation list where none is read."""
    if data.validation is None:
        return
    if data.setting != "ssda":
        raise ValueError(
            f"data.validation goes with data.setting=ssda, and the setting is {data.setting}, which has no labelled "
            "target images: leave it out (--set data.validation=none), or use --setting ssda"
        )
    if data.name != "lists":
        raise ValueError(
            f"data.validation goes with data.name=lists, and the data set is {data.name}: leave it out "
            "(--set data.validation=none). The published lists have a validation list of their own, which is found"
        )


def _given(data: DataConfig, target: ImageList) -> tuple[tuple[ImageList, ImageList] | None, ImageList | None]:
    """SSDA's lists that are not drawn: labelled and unlabelled target images, and those set aside for validation.

    By their fields beside a target list, or found in the root, where the validation list goes with the published shots.
    """
    if data.name == "lists":
        labelled, validation = (_target_list(file, target) for file in (data.labelled_target, data.validation))
        return None if labelled is None else (labelled, target), validation
    if data.labelled_target is not None:
        raise ValueError("data.labelled_target goes with data.name=lists; other data sets find or draw the split")
    found = None
    if data.name in DATA_SETS and data.root is not None:
        found = published_shots(DATA_SETS[data.name], Path(data.root), str(data.target), data.shots)
    return (None, None) if found is None else (found[:2], found.validation)


def _target_list(file: str | None, target: ImageList) -> ImageList | None:
    """Labelled images of the target, from a list file."""
    if file is None:
        return None
    paths, labels = read_list(file, target.root, num_classes=len(target.classes))
    return ImageList(Path(file).stem, target.root, paths, labels, target.classes)


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


def sound_lists(
    lists: Mapping[str, ImageList],
    data: DataConfig,
    workers: int = 0,
    advance: Advance | None = None,
    whole: Sequence[ImageList] = (),  # the domains that they are parts of, where they are parts
) -> tuple[dict[str, ImageList], CheckReport]:
    """Lists by any name, after a quick look at every file, without the bad ones; ValueError if those are an error."""
    _refuse_closed_folders(whole or list(lists.values()), data)
    report = check_lists(
        list(lists.values()),
        full=False,
        workers=workers or data.workers,
        max_pixels=data.max_pixels,
        advance=advance,
    )
    if not report.bad:
        return dict(lists), report
    if data.bad_images == "error":
        raise ValueError(_bad_message(report.bad, report.checked))
    bad = {problem.path for problem in report.bad}
    kept: dict[str, ImageList] = {}
    for role, images in lists.items():
        good = np.fromiter((file not in bad for file in images.files()), dtype=bool, count=len(images))
        if not good.any():
            first = report.bad[0]
            raise ValueError(
                f"all {len(images):,} images of {images.name} are bad; the first: {first.path} {first.reason}. "
                "Check --root"
            )
        kept[role] = images if good.all() else images.keep(good)
    return kept, report


def _refuse_closed_folders(lists: Sequence[ImageList], data: DataConfig) -> None:
    """An error for folders that may not be read, unless bad images are left out: then they are counted."""
    closed = {one.path: one.reason for images in lists for one in unreadable(images.unused)}
    if closed and data.bad_images == "error":
        words = and_more([f"{path} is {reason}" for path, reason in closed.items()])
        raise ValueError(f"{words}: give yourself the right to (chmod), or leave it out by --bad-images skip")


def _bad_message(bad: list[Problem], checked: int) -> str:
    missing = sum(problem.kind == "missing" for problem in bad)
    words = and_more([f"{problem.path} {problem.reason}" for problem in bad])
    root = "Check --root: " if missing == checked else ""
    return (
        f"{len(bad):,} of {checked:,} images cannot be read: {words}. "
        f"{root}`fastget data check` lists them all; --bad-images skip leaves them out"
    )

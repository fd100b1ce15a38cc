"""From a data set's name to its lists, and from a configuration to those of a run: split by the protocol, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastget.common.progress import Advance
from fastget.common.text import and_more, nearest
from fastget.config import DataConfig
from fastget.data import protocols
from fastget.data.check.files import check_lists
from fastget.data.datasets import DATA_SETS, NAMES
from fastget.data.decode import Problem
from fastget.data.digits import digits_root
from fastget.data.folders import domains_from_folders, folders_in
from fastget.data.layout import present, published_shots, read_domain
from fastget.data.lists import ImageList, domains_from_lists, read_list
from fastget.data.packed.read import Packed, find_packed


@dataclass(frozen=True)
class Domains:
    """The lists of a run, as its setting makes them, without the bad files."""

    source: ImageList
    target: ImageList  # what the method adapts to; SSDA: the unlabelled part
    labelled_target: ImageList | None = None  # SSDA's shots
    left_out: list[Problem] = field(default_factory=list)  # bad files, under data.bad_images=skip
    warnings: list[Problem] = field(default_factory=list)  # misnamed files, which are used all the same
    packed: dict[str, Packed] = field(default_factory=dict)  # source, target, labelled_target -> cache, where fresh
    notes: list[str] = field(default_factory=list)  # lines for people: caches, counts that differ from the published
    protocol: dict[str, Any] = field(default_factory=dict)  # how the lists came about: split.json of the run

    @property
    def evaluation(self) -> ImageList:
        """What accuracy is measured on: the target; in SSDA its unlabelled part."""
        return self.target

    def lists(self) -> dict[str, ImageList]:
        """The lists by their role."""
        found = {"source": self.source, "target": self.target, "labelled_target": self.labelled_target}
        return {role: images for role, images in found.items() if images is not None}


def load_domains(data: DataConfig, *, workers: int = 0, advance: Advance | None = None) -> Domains:
    """The lists of a run. Every image has had a quick check; bad ones stop it, or are left out.

    `advance` is told how many more files have been checked, for a progress bar.
    """
    source, target = find_domains(data)
    split = protocols.apply(
        source,
        target,
        setting=data.setting,
        classes=data.pda_classes,
        shots=data.shots,
        published=_published(data, target) if data.setting == "ssda" else None,
        imbalanced=data.imbalanced,
        keep=data.imbalanced_keep,
        seed=data.split_seed,
    )
    domains = Domains(split.source, split.target, split.labelled_target, protocol=split.protocol)
    domains = _without_bad(domains, data, workers, advance)
    caches = {role: find_packed(images, data.cache, data.resize) for role, images in domains.lists().items()}
    notes = [note for _, note in caches.values() if note] + count_notes(data.name, [source, target])
    return dataclasses.replace(
        domains, packed={role: packed for role, (packed, _) in caches.items() if packed}, notes=notes
    )


def find_domains(data: DataConfig) -> tuple[ImageList, ImageList]:
    """All images of the source and of the target, before any protocol."""
    _refuse_unknown(data.name)
    source, target = data.source, data.target
    if data.name == "digits":
        source, target = source or "fonts", target or "handwritten"
    for role, domain in (("source", source), ("target", target)):
        if domain is None:
            kind = "a list file" if data.name == "lists" else "a domain folder under --root"
            raise ValueError(f"data.{role} is missing: give {kind} by --{role}")
    first, second = read_domains(data.name, data.root, [str(source), str(target)], led=True)
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
    if root is None and name != "digits":
        raise ValueError(f"data.root is missing: give the folder that {name} lies in by --root")
    place = digits_root(root) if name == "digits" else Path(str(root))
    if name == "folder":
        return domains_from_folders(place, *(domains or _domain_folders(place)), led=led)
    known = DATA_SETS[name]
    lists = [read_domain(known, place, domain) for domain in domains or present(known, place)]
    return [dataclasses.replace(images, classes=lists[0].classes) for images in lists] if led else lists


def _refuse_unknown(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"unknown data set {name!r}{nearest(name, NAMES)}: choose from {', '.join(NAMES)}")


def _domain_folders(root: Path) -> list[str]:
    found = folders_in(root) if root.is_dir() else []
    if not found:
        what = "holds no domain folders" if root.is_dir() else "does not exist"
        raise ValueError(f"{root} {what}: expected {root}/DOMAIN/CLASS/image.jpg")
    return found


def count_notes(name: str, lists: list[ImageList]) -> list[str]:
    """Where a known data set has not as many images as were published."""
    published = DATA_SETS[name].domains if name in DATA_SETS else {}
    return [
        f"{images.name}: {len(images):,} images, and {published[images.name]:,} were published"
        for images in lists
        if published.get(images.name, len(images)) != len(images)
    ]


def _published(data: DataConfig, target: ImageList) -> tuple[ImageList, ImageList] | None:
    """SSDA's published split: given by data.labelled_target beside a target list, or found in the root."""
    if data.labelled_target is not None:
        if data.name != "lists":
            raise ValueError("data.labelled_target goes with data.name=lists; other data sets find or draw the split")
        paths, labels = read_list(data.labelled_target, target.root, num_classes=len(target.classes))
        return ImageList(Path(data.labelled_target).stem, target.root, paths, labels, target.classes), target
    if data.name in DATA_SETS and data.root is not None:
        return published_shots(DATA_SETS[data.name], Path(data.root), str(data.target), data.shots)
    return None


def _without_bad(domains: Domains, data: DataConfig, workers: int, advance: Advance | None) -> Domains:
    lists = domains.lists()
    report = check_lists(list(lists.values()), full=False, workers=workers or data.workers, advance=advance)
    if not report.bad:
        return dataclasses.replace(domains, warnings=report.warnings)
    if data.bad_images == "error":
        raise ValueError(_bad_message(report.bad, report.checked))
    bad = {problem.path for problem in report.bad}
    kept: dict[str, Any] = {}
    for role, images in lists.items():
        good = np.fromiter((file not in bad for file in images.files()), dtype=bool, count=len(images))
        if not good.any():
            first = report.bad[0]
            raise ValueError(
                f"all {len(images):,} images of {images.name} are bad; the first: {first.path} {first.reason}. "
                "Check --root"
            )
        kept[role] = images if good.all() else images.keep(good)
    protocol = domains.protocol | {"left_out": [dataclasses.asdict(problem) for problem in report.bad]}
    return dataclasses.replace(domains, **kept, left_out=report.bad, warnings=report.warnings, protocol=protocol)


def _bad_message(bad: list[Problem], checked: int) -> str:
    missing = sum(problem.kind == "missing" for problem in bad)
    words = and_more([f"{problem.path} {problem.reason}" for problem in bad])
    root = "Check --root: " if missing == checked else ""
    return (
        f"{len(bad):,} of {checked:,} images cannot be read: {words}. "
        f"{root}`fastget data check` lists them all; --bad-images skip leaves them out"
    )

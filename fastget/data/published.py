"""Where a known data set's images lie under a root, and what to do when the root is not quite right."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastget.common.text import and_more, nearest
from fastget.data.datasets import DataSet
from fastget.data.folders import BESIDE, Found, folders_in, read_folder, unused_notes, walk
from fastget.data.lists import ImageList, Unused, class_names, read_list

ON_DISK = 0.6  # how like a name on disk must be to be offered: there may be many
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar")


def read_domain(known: DataSet, root: Path, domain: str) -> ImageList:
    """All images of one domain. Raises ValueError with advice if the root does not hold it."""
    if domain not in known.domains:
        raise ValueError(
            f"{known.name} has no domain {domain!r}{nearest(domain, known.domains)}: "
            f"choose from {', '.join(known.domains)}"
        )
    root = Path(root)
    if known.layout == "ssda lists":
        return _from_ssda_list(known, root, domain)
    lists = _list_files(known, root, domain)
    if lists:
        return _from_lists(known, root, domain, lists)
    return _from_folders(known, root, domain)


class Published(NamedTuple):
    """SSDA's published lists of a target."""

    labelled: ImageList
    unlabelled: ImageList
    validation: ImageList | None  # set aside for choosing a checkpoint, where it is in place


def published_shots(known: DataSet, root: Path, domain: str, shots: int) -> Published | None:
    """SSDA's lists of a target, where the published ones are in place."""
    if not known.ssda:
        return None
    name = known.ssda_names.get(domain, domain)
    files = [f"{part}_target_images_{name}_{shots}.txt" for part in ("labeled", "unlabeled")]
    folder = next((f for f in ssda_folders(known, root) if all((f / file).is_file() for file in files)), None)
    if folder is None:
        return None
    validation = validation_file(known, domain)
    if (folder / validation).is_file():
        files.append(validation)
    images_root = _images_root(known, root)
    classes = read_domain(known, root, domain).classes
    place = _folder(known, images_root, domain)
    lists = []
    for file in files:
        paths, labels = read_list(folder / file, images_root, num_classes=known.num_classes)
        renamed = [f"{place}/{path.removeprefix(f'{name}/')}" if name != place else path for path in paths]
        lists.append(ImageList(Path(file).stem, images_root, renamed, labels, classes))
    return Published(lists[0], lists[1], lists[2] if len(lists) == 3 else None)


def validation_file(known: DataSet, domain: str) -> str:
    """What the published validation list is called: one list of three images a class, whatever the shots."""
    return f"validation_target_images_{known.ssda_names.get(domain, domain)}_3.txt"


def ssda_folders(known: DataSet, root: Path) -> Iterator[Path]:
    """Where the published lists may lie: in the root, under txt/, or beside it as in their own repository."""
    for base in (root, root.parent):
        yield from (base / "txt" / known.ssda, base / "data" / "txt" / known.ssda, base / "txt")
    yield from (root, root / "lists")


# --- layouts -------------------------------------------------------------------------------------


def _folder(known: DataSet, root: Path, domain: str) -> str:
    """A domain's folder in the root: by its name, else as the publisher's archive calls it."""
    other = known.folders.get(domain, domain)
    return other if not (root / domain).is_dir() and (root / other).is_dir() else domain


def _from_folders(known: DataSet, root: Path, domain: str) -> ImageList:
    """ROOT/DOMAIN/CLASS/image, or ROOT/DOMAIN/images/CLASS/image for Office-31."""
    place = _folder(known, root, domain)
    folder = root / place
    if not folder.is_dir():
        raise ValueError(advise(known, root, domain))
    middle = known.between if known.between and (folder / known.between).is_dir() else ""
    found = folders_in(folder / middle)
    classes = known.classes or tuple(found)
    unknown = [name for name in found if name not in classes]
    if unknown or not found:
        raise ValueError(_about_classes(known, folder / middle, unknown))
    read = read_folder(root, posixpath.join(place, middle) if middle else place)
    paths, labels = read.labelled(classes)
    beside = walk(root, place, without=[middle]) if middle else Found()  # Office-31 has features beside its images
    unused = (*read.unused, *beside.unused, *(Unused(path, BESIDE) for path in beside.images))
    if not paths:
        why = "; ".join(unused_notes(domain, unused)) or "they are empty"
        raise ValueError(f"{folder / middle} has class folders, but no image lies in them: {why}")
    return ImageList(domain, root, paths, labels, classes, unused)


def _list_files(known: DataSet, root: Path, domain: str) -> list[Path]:
    """The list files of a domain, where the publisher gives any and they are in place."""
    if known.layout != "lists":
        return []
    own = root / domain / "image_list.txt"
    both = [root / f"{domain}_{part}.txt" for part in ("train", "test")]
    return [own] if own.is_file() else [file for file in both if file.is_file()]


def _from_lists(known: DataSet, root: Path, domain: str, files: list[Path]) -> ImageList:
    paths: list[str] = []
    labels = []
    for file in files:
        some, label = read_list(file, root, num_classes=known.num_classes)
        if file.parent != root:  # VisDA's paths begin in the list's own folder
            some = [posixpath.join(domain, path) for path in some]
        paths += some
        labels.append(label)
    label = np.concatenate(labels)
    return ImageList(domain, root, paths, label, known.classes or class_names(paths, label, known.num_classes))


def _images_root(known: DataSet, root: Path) -> Path:
    """SSDA_MME keeps the images of DomainNet in data/multi, and its lists in data/txt."""
    inner = root / known.ssda
    return inner if known.layout == "ssda lists" and any((inner / d).is_dir() for d in known.domains) else root


def _from_ssda_list(known: DataSet, root: Path, domain: str) -> ImageList:
    name = f"labeled_source_images_{domain}.txt"
    images_root = _images_root(known, root)
    file = next((f / name for f in ssda_folders(known, root) if (f / name).is_file()), None)
    if file is None or not (images_root / domain).is_dir():
        raise ValueError(advise(known, root, domain, "" if file else f"txt/{known.ssda}/{name}"))
    paths, labels = read_list(file, images_root, num_classes=known.num_classes)
    return ImageList(domain, images_root, paths, labels, class_names(paths, labels, known.num_classes))


# --- advice --------------------------------------------------------------------------------------


def advise(known: DataSet, root: Path, domain: str, missing: str = "") -> str:
    """Why a domain is not found under a root, and what to do."""
    wanted = missing or f"{domain}/"
    advice = _almost(known, root, domain, missing)
    if not advice:
        there = sorted(p.name for p in root.iterdir() if not p.name.startswith("."))
        advice = f"It holds {and_more(there)}." if there else "It is empty."
    return f"{known.name}: {root} does not hold {wanted}. {advice}\n{expected(known)}"


def present(known: DataSet, root: Path) -> list[str]:
    """The domains that a root holds; others may be absent. Raises ValueError with advice if it is almost right."""
    missing = "" if known.layout != "ssda lists" else f"txt/{known.ssda}/labeled_source_images_%s.txt"
    base = _images_root(known, root)
    found = [domain for domain in known.domains if (base / _folder(known, base, domain)).is_dir()]
    for domain in known.domains:
        if domain not in found and (not found or _almost(known, root, domain, "")):
            raise ValueError(advise(known, root, domain, missing % domain if missing and not found else ""))
    return found


def expected(known: DataSet) -> str:
    where = f" Publisher: {known.publisher}" + (f" ({', '.join(known.archives)})." if known.archives else ".")
    return f"Expected under --root: {', '.join(known.tree)}.{where}"


def _almost(known: DataSet, root: Path, domain: str, missing: str) -> str:
    """What to do about a root that is almost right; empty if it is not even that."""
    if root.is_file():
        return f"It is a file, not a folder: give the folder it was extracted to by --root.{_extract(root)}"
    if not root.is_dir():
        near = nearest(root.name, [p.name for p in root.parent.iterdir()], ON_DISK) if root.parent.is_dir() else ""
        return f"There is no such folder{near}: check --root."
    if root.name in known.domains and (root.parent / domain).is_dir():
        return f"--root is one level too deep: use --root {root.parent}."
    there = sorted(p.name for p in root.iterdir())
    other = [name for name in known.also.get(domain, ()) if name in there]
    other += [name for name in there if _plain(name) == _plain(domain) and name not in other]
    if other and not missing:
        rename = f"mv {str(root / other[0])!r} {str(root / domain)!r}"
        return f"It holds {other[0]!r}, which fastget calls {domain}. Rename it: {rename}"
    inner = _holder(known, root, domain, missing)
    if inner:
        return f"The data set lies {'one level' if inner.parent == root else 'two levels'} deeper: use --root {inner}."
    likely = [*known.archives, *(f"{domain}{suffix}" for suffix in ARCHIVES)]
    archives = [name for name in there if name.lower().endswith(ARCHIVES)]
    if any(name in likely for name in archives) or (archives and len(archives) == len(there)):
        first = min(archives, key=lambda name: (not name.startswith(f"{domain}."), name not in likely))
        return f"It holds {first}, which is not extracted.{_extract(root / first)}"
    return ""


def _holder(known: DataSet, root: Path, domain: str, missing: str) -> Path | None:
    """A folder one or two levels down that has what the root should have."""

    def holds(folder: Path) -> bool:
        return (folder / missing).is_file() if missing else (folder / domain).is_dir()

    first = sorted(p for p in root.iterdir() if p.is_dir() and p.name not in known.domains)
    second = (p for f in first for p in sorted(f.iterdir()) if p.is_dir())
    return next((folder for folder in (*first, *second) if holds(folder)), None)


def _extract(archive: Path) -> str:
    into = archive.parent
    if archive.suffix == ".zip":
        return f" Extract it: unzip {str(archive)!r} -d {str(into)!r}"
    return f" Extract it: tar -xf {str(archive)!r} -C {str(into)!r}"


def _about_classes(known: DataSet, folder: Path, unknown: list[str]) -> str:
    if not unknown:
        return f"{known.name}: {folder} has no class folders. {expected(known)}"
    hints = [f"{name}{nearest(name, known.classes, ON_DISK)}" for name in unknown]
    return f"{known.name}: {folder} has folders that are none of its {known.num_classes} classes: {and_more(hints)}"


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())

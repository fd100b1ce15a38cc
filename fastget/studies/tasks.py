"""Tasks: pairs of a data set's domains."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from fastget.archive.collect import names_of
from fastget.common.text import and_more, nearest
from fastget.config import DataConfig
from fastget.data.datasets import DATA_SETS, NAMES
from fastget.data.feature_store import Store
from fastget.data.folders import folders_in
from fastget.data.published import present

Task = tuple[str, str]  # source, target


def find_tasks(text: str | None, data: DataConfig, source: str | None, target: str | None) -> list[Task]:
    """`all` ordered pairs (of --source or to --target, where given), pairs like `A-B,C-D`, or without --tasks the one
    pair of --source and --target, else the data set's own. ValueError says which there are."""
    if data.name not in NAMES:
        raise ValueError(f"unknown data set {data.name!r}{nearest(data.name, NAMES)}: choose from {', '.join(NAMES)}")
    if text is None:
        if data.source is None or data.target is None:
            raise ValueError(
                f"{data.name} has no pair of domains of its own: give --source and --target, or --tasks all, or pairs "
                "like --tasks photo-sketch,sketch-photo"
            )
        return [(data.source, data.target)]
    domains = domains_of(data)
    pairs = list(permutations(domains, 2))
    if text.strip() == "all":
        for role, domain in (("source", source), ("target", target)):
            if domain is not None and domain not in domains:
                known = ", ".join(domains)
                raise ValueError(f"--{role} {domain}: no such domain{nearest(domain, domains)}: there are {known}")
        found = [(a, b) for a, b in pairs if source in (None, a) and target in (None, b)]
        if not found:
            raise ValueError(f"--tasks all: no pair of two domains in {', '.join(domains) or 'an empty root'}")
        if len(set(map(folder_of, found))) < len(found):
            raise ValueError(
                "two pairs of domains have the same name A-B, as names have dashes: give --source, --target"
            )
        return found
    if source is not None or target is not None:
        raise ValueError("--tasks with pairs says source and target: leave --source and --target out")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or len(set(parts)) != len(parts):
        raise ValueError(f"--tasks takes all, or different pairs like A-B,C-D, got {text!r}")
    return [_pair(part, pairs) for part in parts]


def folder_of(task: Task) -> str:
    """A task as a folder's name."""
    return "-".join(names_of(task))


def domains_of(data: DataConfig) -> list[str]:
    """The domains that are there."""
    if data.name == "digits":
        return list(DATA_SETS["digits"].domains)
    if data.name not in ("folder", "features") and data.name not in DATA_SETS:
        raise ValueError(f"--data {data.name} has no named domains: give --source and --target in place of --tasks")
    if data.root is None:
        raise ValueError(f"data.root is missing: give the folder that {data.name} lies in by --root")
    root = Path(data.root)
    if data.name == "features":
        return list(Store.open(root).domains)
    if data.name in DATA_SETS:
        return present(DATA_SETS[data.name], root)
    found = folders_in(root) if root.is_dir() else []
    if not found:
        what = "holds no domain folders" if root.is_dir() else "does not exist"
        raise ValueError(f"{root} {what}: expected {root}/DOMAIN/CLASS/image.jpg")
    return found


def _pair(text: str, pairs: list[Task]) -> Task:
    """`A-B`; a domain's name may have dashes too."""
    fitting = [pair for pair in pairs if folder_of(pair) == text]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        both = " or ".join(f"--source {a} --target {b}" for a, b in fitting)
        raise ValueError(f"--tasks {text} may be {both}: say which in place of --tasks")
    known = [folder_of(pair) for pair in pairs]
    raise ValueError(f"no such task {text!r}{nearest(text, known)}: there are {and_more(known, 12)}")

"""What a folder of features holds: what a backbone says of every image, in safetensors shards, with an index.

    index.json                       what made them, the class names, and the shards of every finished domain
    DOMAIN-00000.safetensors ...     features (n, D), labels (n,) int64, paths (UTF-8, ended by NUL each)

A shard tells in its own metadata what it was made by and of, and the digest of its tensors, so that a making that was
killed goes on from the shards that are there. A domain stands in the index once all its shards do. No torch here.

Shapes: n rows of a shard or a domain, D width of the features.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fastget.common.files import write_atomically
from fastget.common.text import and_more, first_line, nearest
from fastget.data.lists import UNLABELLED, ImageList

VERSION = 1
INDEX = "index.json"
FeatureType = Literal["float16", "float32"]


@dataclass(frozen=True)
class Origin:
    """What made the features: one and the same for all shards of a folder."""

    data: str  # the data set
    backbone: str
    weights: str  # in words: IMAGENET1K_V2 ..., timm's tag, random, a file's name
    weights_sha256: str  # of the backbone's tensors; of an imported file
    dim: int  # D
    dtype: FeatureType  # as they are stored
    precision: str = ""  # that the backbone computed in
    resize: int | None = None  # None here and below: not known, since they were imported
    crop: int | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def weights_tag(self) -> str:
        """The weights in a few words that no others have."""
        return f"{self.weights}, sha256 {self.weights_sha256[:12]}"

    @property
    def tag(self) -> str:
        """The backbone in a line."""
        return f"{self.backbone} ({self.weights_tag})"

    def differences(self, other: Origin) -> list[str]:
        """In words, the fields in which another one differs."""
        mine, its = dataclasses.asdict(self), dataclasses.asdict(other)
        if self.weights_sha256 == other.weights_sha256:
            its["weights"] = self.weights  # the same ones, by whatever name
        return [f"{name} ({mine[name]!r} there, {its[name]!r} here)" for name in mine if mine[name] != its[name]]

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> Origin:
        lists = {name: tuple(tree[name]) for name in ("mean", "std") if tree.get(name) is not None}
        before = {} if tree.get("resize") is None else {"interpolation": "bilinear"}  # until it was told
        return cls(**{**before, **tree, **lists})


# --- shards --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """A shard, as the index tells of it."""

    file: str
    rows: int
    bytes: int
    sha256: str  # of its tensors
    left_out: tuple[dict[str, str], ...] = ()  # images that could not be read: path and reason


@dataclass(frozen=True)
class FeatureRows:
    """Some images of a domain."""

    features: NDArray[Any]  # (n, D) float16 or float32
    labels: NDArray[np.int64]  # (n,)
    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, start: int, end: int) -> FeatureRows:
        return FeatureRows(self.features[start:end], self.labels[start:end], self.paths[start:end])

    def tensors(self) -> dict[str, NDArray[Any]]:
        text = "".join(f"{path}\0" for path in self.paths).encode("utf-8", "surrogateescape")
        return {
            "features": np.ascontiguousarray(self.features),
            "labels": np.ascontiguousarray(self.labels, dtype=np.int64),
            "paths": np.frombuffer(text, dtype=np.uint8),
        }


class DamagedShard(ValueError):
    """A shard that is not as it was written; the text names it."""


def write_shard(
    file: Path, rows: FeatureRows, origin: Origin, made_of: str, left_out: Sequence[dict[str, str]] = ()
) -> Shard:
    """Whole or not at all. `made_of` is a digest of what it was made of, by which a restart knows it again."""
    tensors = rows.tensors()
    sha256 = _digest(tensors)
    about = {
        "version": VERSION,
        "origin": dataclasses.asdict(origin),
        "made_of": made_of,
        "sha256": sha256,
        "left_out": list(left_out),
    }
    content = save(tensors, {"fastget": json.dumps(about)})
    write_atomically(file, content)
    return Shard(file.name, len(rows), len(content), sha256, tuple(left_out))


def read_shard(file: Path) -> tuple[FeatureRows, dict[str, Any]]:
    """Its rows, and what it tells of itself. DamagedShard if its tensors are not those that were written."""
    again = "make it again by the same `fastget features` command, which keeps the others"
    try:
        with safe_open(file, framework="numpy") as shard:
            about = json.loads((shard.metadata() or {})["fastget"])
            tensors = {name: shard.get_tensor(name) for name in ("features", "labels", "paths")}
    except FileNotFoundError as error:
        raise DamagedShard(f"{file} is missing: {again}") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamagedShard(f"{file} is damaged, or no shard of fastget ({first_line(error)}): {again}") from error
    if _digest(tensors) != about.get("sha256"):
        raise DamagedShard(f"{file} is damaged (its checksum is wrong): {again}")
    paths = bytes(tensors["paths"]).decode("utf-8", "surrogateescape").split("\0")[:-1]
    return FeatureRows(tensors["features"], tensors["labels"], paths), about


def kept_entry(file: Path, made_of: str, origin: Origin) -> Shard | None:
    """The entry of a shard that an earlier making wrote of the very same, if it is there and whole."""
    if not file.is_file():
        return None
    try:
        rows, about = read_shard(file)
        same = about["version"] == VERSION and about["made_of"] == made_of and Origin.read(about["origin"]) == origin
    except (DamagedShard, KeyError, TypeError):
        return None
    entry = Shard(file.name, len(rows), file.stat().st_size, about["sha256"], tuple(about["left_out"]))
    return entry if same else None


def shard_name(domain: str, number: int) -> str:
    """A domain's name may hold what a file's may not."""
    plain = re.sub(r"[^\w.-]+", "_", domain)
    if plain != domain or plain.startswith("."):
        plain = f"d{plain}-{hashlib.sha256(domain.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"
    return f"{plain}-{number:05d}.safetensors"


def _digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in ("features", "labels", "paths"):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape};".encode())
        digest.update(tensors[name].data)
    return digest.hexdigest()


# --- the folder ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """A folder of features and its index."""

    folder: Path
    origin: Origin
    classes: tuple[str, ...]
    domains: dict[str, tuple[Shard, ...]] = field(default_factory=dict)  # the finished ones
    _read: dict[str, FeatureRows] = field(default_factory=dict, repr=False, compare=False)  # those in memory

    @classmethod
    def open(cls, folder: Path) -> Store:
        """By its index. ValueError says what is wrong with it, and what to do."""
        file = folder / INDEX
        if not file.is_file():
            made = "`fastget features import` makes one of it" if folder.is_file() else "`fastget features` makes it"
            raise ValueError(f"{folder} is no folder of features: expected {file}; {made}")
        try:
            tree = json.loads(file.read_text(encoding="utf-8", errors="surrogateescape"))
            version = tree["version"]
            if version != VERSION:
                raise ValueError(
                    f"{file} is of format {version}, and this fastget reads format {VERSION}: make the features "
                    "again in another folder, or use the fastget that made them"
                )
            domains = {
                name: tuple(Shard(**{**entry, "left_out": tuple(entry["left_out"])}) for entry in entries)
                for name, entries in tree["domains"].items()
            }
            return cls(folder, Origin.read(tree["origin"]), tuple(tree["classes"]), domains)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} is damaged ({first_line(error)}): remove it, and run the same `fastget features` command "
                "again, which keeps the shards that are whole"
            ) from error

    def write(self) -> None:
        """The index, whole or not at all."""
        tree = {
            "version": VERSION,
            "origin": dataclasses.asdict(self.origin),
            "classes": self.classes,
            "domains": {name: [dataclasses.asdict(entry) for entry in some] for name, some in self.domains.items()},
        }
        text = json.dumps(tree, indent=1)  # ASCII, also of names that are not UTF-8
        write_atomically(self.folder / INDEX, text.encode())

    def images(self, domain: str) -> ImageList:
        """A domain's list. Its paths are those of the images, none of which is opened."""
        rows = self.rows(domain)
        return ImageList(domain, self.folder, rows.paths, rows.labels, self.classes)

    def features(self, images: ImageList) -> NDArray[Any]:
        """(N, D) of a list that is a part of a domain, in its order."""
        rows = self.rows(images.name)
        if images.paths is rows.paths:
            return rows.features
        index = {path: i for i, path in enumerate(rows.paths)}
        return rows.features[np.fromiter((index[path] for path in images.paths), np.int64, len(images))]

    def rows(self, domain: str) -> FeatureRows:
        """All of a domain, read once, every shard compared with its checksum."""
        if domain not in self.domains:
            found = f"it has {and_more(list(self.domains))}" if self.domains else "none is finished yet"
            raise ValueError(
                f"{self.folder} has no features of {domain!r}{nearest(domain, self.domains)}: {found}; "
                f"`fastget features --domains {domain}` with the same --out adds them, or finishes them"
            )
        if domain not in self._read:
            self._read[domain] = self._load(domain)
        return self._read[domain]

    def _load(self, domain: str) -> FeatureRows:
        parts = [self._shard(entry) for entry in self.domains[domain]]
        labels = np.concatenate([part.labels for part in parts])
        wrong = np.flatnonzero((labels < UNLABELLED) | (labels >= len(self.classes)))
        if len(wrong):
            raise ValueError(
                f"{self.folder}: label {labels[wrong[0]]} in {domain} is out of range: expected 0 to "
                f"{len(self.classes) - 1}, or {UNLABELLED} for none; make the features again"
            )
        features = parts[0].features if len(parts) == 1 else np.concatenate([part.features for part in parts])
        return FeatureRows(features, labels, [path for part in parts for path in part.paths])

    def _shard(self, entry: Shard) -> FeatureRows:
        file = self.folder / entry.file
        rows, about = read_shard(file)
        if Origin.read(about["origin"]) != self.origin:
            differing = self.origin.differences(Origin.read(about["origin"]))
            raise ValueError(
                f"{file} was made otherwise than the index tells: {'; '.join(differing)}. Features of two backbones "
                "do not mix: make them again in another folder"
            )
        if about["sha256"] != entry.sha256 or rows.features.shape != (entry.rows, self.origin.dim):
            raise DamagedShard(f"{file} is not the shard that the index tells of: make the features again")
        return rows


def common_classes(lists: Iterable[ImageList]) -> tuple[str, ...]:
    """The classes that all the lists have; ValueError if they differ."""
    found = {images.name: images.classes for images in lists}
    first = next(iter(found))
    for name, classes in found.items():
        if classes != found[first]:
            raise ValueError(
                f"{first} has {len(found[first])} classes, and {name} has {len(classes)} or names them otherwise: "
                "give --source and --target, of which the source tells the classes"
            )
    return found[first]

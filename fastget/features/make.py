"""`fastget features` as one call: the backbone once over every image, shard by shard.

A shard is the unit of all: ranks share out the shards, a making that is killed loses the one that it was at, and a
restart keeps those that were made by the same backbone of the same files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fastget.common.device import choose_device, laid_out
from fastget.common.errors import RunFailed
from fastget.common.files import sizes_and_times, writing
from fastget.common.lock import held
from fastget.common.precision import autocast, choose_precision
from fastget.common.progress import Advance
from fastget.common.ranks import Ranks, joined
from fastget.common.text import and_more
from fastget.config import Config
from fastget.data.check.files import without_bad
from fastget.data.domains import read_domains
from fastget.data.feature_store import (
    INDEX,
    FeatureRows,
    FeatureType,
    Origin,
    Shard,
    Store,
    common_classes,
    kept_entry,
    shard_name,
    write_shard,
)
from fastget.data.folders import unused_notes
from fastget.data.lists import ImageList
from fastget.data.packed.read import find_packed
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler
from fastget.loading.stream import Batch, Stream, TooManyBadImages
from fastget.networks.network import build_network
from fastget.networks.preprocessing import filled
from fastget.networks.provenance import RANDOM, digest_of, source_of

SHARD = 1024  # rows: what a kill may cost
BATCH = 128
Progress = Callable[[int], AbstractContextManager[Advance]]  # of how many in all -> what is told how many more


@dataclass(frozen=True)
class Made:
    """What a making came to."""

    store: Store
    images: int  # of the domains asked for
    kept: int  # of them in shards that were there already
    left_out: list[dict[str, str]]  # path and reason
    notes: list[str]  # lines for people: files of the domains' folders that are no images of theirs


def make_features(
    config: Config,
    out: str | Path,
    domains: Sequence[str] = (),  # none: all that the data set has
    *,
    led: bool = False,  # the first domain tells the classes, as a run's source does
    dtype: FeatureType = "float16",
    shard: int = SHARD,
    progress: Progress = lambda total: nullcontext(lambda count: None),
) -> Made:
    """The features of every image of the domains, in the folder `out`, which may hold others by the same backbone.

    Preprocessed as in evaluation: resized, cropped at the centre. Under torchrun every rank calls it.
    """
    config = filled(config)
    data = config.data
    if data.name == "features":
        raise ValueError("--data features names features already: give the data set that the images are of")
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    with joined(choose_device(config.train.device, "train.device")) as (ranks, device), ExitStack() as stack:
        ranks.decided(lambda: stack.enter_context(_held(Path(out), config)))
        lists = read_domains(data.name, data.root, list(domains), led=led)
        names = [images.name for images in lists]
        if len(set(names)) != len(names):
            raise ValueError(f"two of the domains have one name ({and_more(names)}): rename one of the lists")
        classes = common_classes(lists)
        sound, report = without_bad({images.name: images for images in lists}, data)
        backbone, origin = build_backbone(config, len(classes), dtype, device)
        store = _open(Path(out), origin, classes, ranks)
        with progress(sum(map(len, sound.values()))) as advance:
            maker = _Maker(config, store, backbone, device, ranks, shard, advance)
            entries = [entry for images in sound.values() for entry in maker.domain(images)]
    left_out = [{"path": problem.path, "reason": problem.reason} for problem in report.bad]
    left_out += [problem for entry in entries for problem in entry.left_out]
    notes = [*report.notes, *(note for images in lists for note in unused_notes(images.name, images.unused))]
    return Made(maker.store, sum(map(len, lists)), maker.kept, left_out, notes)


@contextmanager
def _held(folder: Path, config: Config) -> Iterator[None]:
    """One making at a time, in a folder of its own: among the images themselves shards would lie about."""
    if folder.is_dir() and not (folder / INDEX).exists():
        other = sorted(file.name for file in folder.iterdir() if file.suffix != ".safetensors" and file.name[0] != ".")
        if other:
            raise ValueError(
                f"{folder} holds other files ({and_more(other, 3)}): features go to a folder of their own, choose "
                "another --out"
            )
    with ExitStack() as stack:
        with writing(folder):
            stack.enter_context(held(folder, take=config.train.lock == "take"))
        yield


def build_backbone(
    config: Config, num_classes: int, dtype: FeatureType, device: torch.device
) -> tuple[nn.Module, Origin]:
    """The backbone as a run of the first seed starts from it, in evaluation mode, and what is to be told of it."""
    seed = config.train.seeds[0]
    torch.manual_seed(seed)
    wanted = config.data.preprocessing
    network = build_network(config.network, num_classes, wanted.crop)
    weights = source_of(config.network)
    precision = choose_precision(config.train.precision, device, config.train.force_precision)
    origin = Origin(
        data=config.data.name,
        backbone=config.network.name,
        weights=f"{RANDOM} of seed {seed}" if weights == RANDOM else weights,
        weights_sha256=digest_of(network.backbone),
        dim=network.bottleneck[0].in_features,  # type: ignore[arg-type]  # an nn.Linear
        dtype=dtype,
        precision=str(precision).removeprefix("torch."),
        **dataclasses.asdict(wanted),
    )
    return laid_out(network.backbone, device).eval().requires_grad_(False), origin


def _open(folder: Path, origin: Origin, classes: tuple[str, ...], ranks: Ranks) -> Store:
    """The folder, new or of the same backbone and classes; ValueError otherwise."""
    if (folder / INDEX).exists() or folder.is_file():
        store = Store.open(folder)
        why = store.origin.differences(origin)
        if store.classes != classes:
            why.append(f"classes ({and_more(store.classes, 3)} there, {and_more(classes, 3)} here)")
        if why:
            raise ValueError(
                f"{folder} holds features that were made otherwise: {'; '.join(why)}. Choose another --out"
            )
    else:
        store = Store(folder, origin, classes)
    ranks.barrier()  # all have looked
    if ranks.main:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for rest in folder.glob(".*.part*"):
                rest.unlink()  # of a making that was killed
            store.write()
    ranks.barrier()
    return store


class _Maker:
    """One making under way."""

    def __init__(
        self,
        config: Config,
        store: Store,
        backbone: nn.Module,
        device: torch.device,
        ranks: Ranks,
        shard: int,
        advance: Advance,
    ) -> None:
        self.config, self.store, self.backbone, self.device, self.ranks = config, store, backbone, device, ranks
        self.shard, self.advance = shard, advance
        self.dtype = getattr(torch, store.origin.precision)
        self.stored: torch.dtype = getattr(torch, store.origin.dtype)
        self.kept = 0

    def domain(self, images: ImageList) -> list[Shard]:
        """The shards of a domain: those that are there and fit, and the others made. Then it stands in the index."""
        places = [np.arange(start, min(start + self.shard, len(images))) for start in range(0, len(images), self.shard)]
        parts = [images.take(place) for place in places]
        made_of = [_made_of(part) for part in parts]
        files = [self.store.folder / shard_name(images.name, number) for number in range(len(parts))]
        found: list[Shard | None] = []
        if self.ranks.main:
            found = [kept_entry(*one, self.store.origin) for one in zip(files, made_of, strict=True)]
        entries: dict[int, Shard] = {n: entry for n, entry in enumerate(self.ranks.gather(found)[0]) if entry}
        count = sum(len(parts[number]) for number in entries)
        self.kept += count
        self.advance(count)
        todo = [number for number in range(len(parts)) if number not in entries]
        if todo:
            self._index(images.name, None)  # it tells of shards that may be replaced
        made: dict[int, Shard] = {}
        if mine := todo[self.ranks.rank :: self.ranks.world]:
            looked_at = self._look(images, [places[number] for number in mine])
            for number, (rows, left_out) in zip(mine, looked_at, strict=True):
                made[number] = self._write(files[number], rows, made_of[number], left_out)
        for some in self.ranks.gather(made):
            entries |= some
        done = [entries[number] for number in range(len(parts))]
        if not sum(entry.rows for entry in done):
            raise ValueError(f"no image of {images.name} could be read: check --root")
        self._index(images.name, tuple(done))
        return done

    def _index(self, domain: str, entries: tuple[Shard, ...] | None) -> None:
        """Put a domain into the index, or take it out; the others stay."""
        domains = {name: some for name, some in self.store.domains.items() if name != domain}
        domains |= {} if entries is None else {domain: entries}
        self.store = dataclasses.replace(self.store, domains=domains)
        if self.ranks.main:
            self.store.write()
        self.ranks.barrier()

    def _look(
        self, images: ImageList, places: list[NDArray[np.int64]]
    ) -> Iterator[tuple[FeatureRows, list[dict[str, str]]]]:
        """The rows of each part of a list, and its images that cannot be read, as soon as its last image is through.

        One loader goes through all the parts, and no batch of it lies in two."""
        whole = images.take(np.concatenate(places))
        loader = self._loader(whole)
        batches = loader.batches()
        waiting: list[tuple[NDArray[np.int64], torch.Tensor]] = []  # places in the whole, and their features
        end = 0
        for place in places:
            start, end = end, end + len(place)
            while (not waiting or waiting[-1][0][-1] < end - 1) and (batch := self._next(batches, loader)) is not None:
                waiting.append(batch)
                self.advance(len(batch[0]) * self.ranks.world)  # the others are about as far
            done = [batch for batch in waiting if batch[0][0] < end]
            waiting = waiting[len(done) :]
            index = np.concatenate([np.empty(0, dtype=np.int64), *(at for at, _ in done)])
            empty = torch.empty(0, self.store.origin.dim, dtype=self.stored)
            values = torch.cat([empty, *(features for _, features in done)])
            reasons = {bad.path: bad.reason for bad in loader.bad.files}
            lacking = [whole.file(i) for i in np.setdiff1d(np.arange(start, end), index).tolist()]
            self.advance(len(lacking) * self.ranks.world)
            chosen = whole.take(index)
            left_out = [{"path": file, "reason": reasons.get(file, "")} for file in lacking]
            yield FeatureRows(values.numpy(), chosen.labels, chosen.paths), left_out
        batches.close()

    def _write(self, file: Path, rows: FeatureRows, made_of: str, left_out: list[dict[str, str]]) -> Shard:
        try:
            return write_shard(file, rows, self.store.origin, made_of, left_out)
        except OSError as error:
            raise RunFailed(
                f"cannot write {file} ({error.strerror}). The finished shards are kept: make room, then run the same "
                "command again"
            ) from error

    def _next(self, batches: Iterator[Batch], loader: Loader) -> tuple[NDArray[np.int64], torch.Tensor] | None:
        """The next batch's places and features, on the host; none after the last."""
        again = "The finished shards are kept: mend the files, then run the same command again"
        try:
            batch = next(batches, None)
        except TooManyBadImages as error:
            first = and_more([f"{bad.path} {bad.reason}" for bad in error.files], 3)
            raise RunFailed(
                f"{len(error.files):,} images cannot be read, over data.bad_threshold="
                f"{self.config.data.bad_threshold:g}: {first}. {again}"
            ) from error
        if loader.bad.files and self.config.data.bad_images == "error":
            bad = loader.bad.files[0]
            raise RunFailed(f"cannot read {bad.path}: {bad.reason}. {again}, or leave them out by --bad-images skip")
        return None if batch is None else (batch.index, self._features(batch.images))

    @torch.inference_mode()
    def _features(self, images: torch.Tensor) -> torch.Tensor:
        with autocast(self.device, self.dtype):
            found: torch.Tensor = self.backbone(images).float()
        stored: torch.Tensor = found.to(self.stored)
        if not bool(torch.isfinite(stored).all()):
            why = (
                f"reach {float(found.abs().max()):.3g}, beyond float16: store them by --dtype float32"
                if bool(torch.isfinite(found).all())
                else "are not all finite: are the backbone's weights? Try --set train.precision=float32"
            )
            raise RunFailed(f"the features {why}")
        return stored.cpu()

    def _loader(self, images: ImageList) -> Loader:
        data = self.config.data
        wanted = data.preprocessing
        packed, _ = find_packed(images, data.cache, *wanted.resizing)
        sampler = EvalSampler(len(images), math.gcd(BATCH, self.shard), margin=wanted.margin)
        threshold = data.bad_threshold if data.bad_images == "skip" else 1.0  # else the first one is the end
        stream = Stream(images, sampler, wanted, packed, threshold, data.max_pixels, edges=data.dali_edges)
        return Loader(stream, self.device, data.loader, data.workers)


def _made_of(images: ImageList) -> str:
    """A digest of paths, labels, sizes and times: a file that was replaced is looked at again."""
    digest = hashlib.sha256(sizes_and_times(images.files()).data)
    digest.update(np.ascontiguousarray(images.labels).data)
    digest.update("\0".join(images.paths).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()

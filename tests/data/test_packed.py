"""The packed cache: the same pixels, whole or absent after a kill, checked by checksum, used only when fresh."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastget.common.errors import RunFailed
from fastget.common.files import path_keys
from fastget.common.preprocessing import Preprocessing
from fastget.config import DataConfig
from fastget.data.decode import read_image
from fastget.data.domains import load_domains
from fastget.data.folders import domains_from_folders
from fastget.data.lists import ImageList
from fastget.data.packed import write as pack_module
from fastget.data.packed.read import Cache, Encoding, Format, Packed, cache_folder, find_packed
from fastget.data.packed.write import estimate, pack, verify
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler, TrainSampler
from fastget.loading.stream import Stream
from tests.pictures import image_list, this_fastget, write_damage, write_domains

CPU = torch.device("cpu")
RAW = Encoding("raw", 32)
SMALL = 20_000  # bytes of a shard, for a few images in each


@pytest.fixture
def images(tmp_path: Path) -> ImageList:
    return domains_from_folders(write_domains(tmp_path / "data"), "photo", "sketch")[0]


def opened(folder: Path) -> Cache:
    cache = Cache.open(folder)
    assert cache
    return cache


def holds(packed: Packed, images: ImageList, index: int) -> bool:
    """Whether a record is the image, resized, to the bit."""
    square = packed.read(index)
    return square is not None and np.array_equal(square, np.asarray(read_image(images.file(index), packed.resize)))


def flip_bit(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 4
    file.write_bytes(data)


@pytest.mark.parametrize("format", ["raw", "jpeg"])
def test_records_are_the_resized_images(images: ImageList, tmp_path: Path, format: Format) -> None:
    encoding = Encoding(format, 32, 95)
    made = pack(images, tmp_path / "cache", encoding, shard_bytes=SMALL)
    cache = opened(made.folder)
    assert len(cache.shards) > 1
    records, fresh = cache.find(images)
    assert fresh.all()
    packed = Packed(cache, records)
    apart = []
    for i in range(len(images)):
        square, wanted = packed.read(i), np.asarray(read_image(images.file(i), 32))
        assert square is not None
        apart.append(np.abs(square.astype(int) - wanted).mean())
    assert max(apart) == 0 if format == "raw" else max(apart) < 8
    assert made.bytes == sum((made.folder / name).stat().st_size for name in cache.shards)
    if format == "raw":
        assert (
            estimate(len(images), encoding) <= made.bytes <= estimate(len(images), encoding) + 2048 * len(cache.shards)
        )


def test_what_is_stored_keeps_its_names(images: ImageList, tmp_path: Path) -> None:
    """A cache that an earlier version made is found by a later one."""
    folder = pack(images, tmp_path / "cache", RAW, shard_bytes=SMALL).folder
    with np.load(folder / "index.npz") as saved:
        about, records = json.loads(bytes(saved["about"])), saved["records"]
    assert about["version"] == 1
    assert about["recipe"] == {"format": "raw", "resize": 32, "quality": 90}
    assert about["shards"]["shard-00000.tar"] == (folder / "shard-00000.tar").stat().st_size
    assert records.dtype.names == ("key", "shard", "offset", "size", "crc", "file_size", "mtime")
    assert sorted(records["key"].tolist()) == sorted(path_keys(images.paths).tolist())
    assert cache_folder(tmp_path, "auto", RAW) == tmp_path / ".fastget-packed" / "raw-32"


def test_shards_are_plain_tar_files(images: ImageList, tmp_path: Path) -> None:
    folder = pack(images, tmp_path / "cache", Encoding("jpeg", 32), shard_bytes=SMALL).folder
    names = []
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                names.append(member.name)
                file = tar.extractfile(member)
                assert file
                assert file.read(2) == b"\xff\xd8"
    assert len(names) == len(set(names)) == len(images)


def test_dali_reads_them_as_a_webdataset(images: ImageList, tmp_path: Path) -> None:
    from nvidia.dali import Pipeline, fn

    folder = pack(images, tmp_path / "cache", RAW).folder
    pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipeline:
        pipeline.set_outputs(fn.readers.webdataset(paths=[str(folder / "shard-00000.tar")], ext="raw"))
    (out,) = pipeline.run()
    first = np.asarray(out[0]).reshape(32, 32, 3)
    assert np.array_equal(first, np.asarray(read_image(images.file(0), 32)))


def test_batches_from_the_cache_are_those_from_the_files(images: ImageList, tmp_path: Path) -> None:
    cache = opened(pack(images, tmp_path / "cache", RAW, shard_bytes=SMALL).folder)
    packed = Packed(cache, cache.find(images)[0])
    sampler = TrainSampler(len(images), 8, seed=1, stream="source", margin=4, flip=True)
    files = Loader(Stream(images, sampler, Preprocessing(32, 28)), CPU, "torchvision", 2).batches(3)
    for loader in (
        Loader(Stream(images, sampler, Preprocessing(32, 28), packed), CPU, "torchvision", 2),
        Loader(Stream(images, sampler, Preprocessing(32, 28), packed), CPU, "dali", 1),
    ):
        for _, a, b in zip(range(3), files, loader.batches(3), strict=False):
            assert torch.equal(a.images, b.images)
            assert np.array_equal(a.index, b.index)
        files = Loader(Stream(images, sampler, Preprocessing(32, 28)), CPU, "torchvision", 2).batches(3)
    for other, wanted in ((Preprocessing(64, 28), "64, bilinear"), (Preprocessing(32, 28, "bicubic"), "32, bicubic")):
        with pytest.raises(ValueError, match=rf"holds images of 32 pixels, bilinear, and the stream wants {wanted}"):
            Loader(Stream(images, sampler, other, packed), CPU)


@pytest.mark.parametrize("other", [(32, "bilinear"), (40, "bicubic")])
def test_a_cache_of_another_interpolation_is_another_cache(images: ImageList, other: tuple[int, Any]) -> None:
    cubic = Encoding("raw", 32, interpolation="bicubic")
    folder = cache_folder(images.root, "auto", cubic)
    assert folder.name == "raw-32-bicubic"
    pack(images, folder, cubic)
    assert opened(folder).encoding == cubic
    packed, _ = find_packed(images, "auto", 32, "bicubic")
    assert packed is not None
    square, wanted = packed.read(5), np.asarray(read_image(images.file(5), 32, "bicubic"))
    assert square is not None
    assert np.array_equal(square, wanted)
    assert not np.array_equal(wanted, np.asarray(read_image(images.file(5), 32)))
    packed, note = find_packed(images, "auto", *other)
    assert packed is None
    assert f"no packed cache of {other[0]} pixels, {other[1]}" in note
    assert "there is raw-32-bicubic" in note
    assert f"--resize {other[0]} --interpolation {other[1]}" in note
    assert pack(images, folder, cubic).kept == len(images)


def test_a_subset_of_the_images_finds_its_records(images: ImageList, tmp_path: Path) -> None:
    cache = opened(pack(images, tmp_path / "cache", RAW).folder)
    some = images.take(np.array([30, 2, 2, 17]))
    packed = Packed(cache, cache.find(some)[0])
    assert all(holds(packed, some, i) for i in range(4))


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["raw", "jpeg"])
def test_a_flipped_bit_is_found_and_repaired(images: ImageList, tmp_path: Path, format: Format) -> None:
    encoding = Encoding(format, 32)
    folder = pack(images, tmp_path / "cache", encoding, shard_bytes=SMALL).folder
    cache = opened(folder)
    assert verify(cache) == []
    records, _ = cache.find(images)
    victim = cache.records[records[5]]
    shard = folder / cache.shards[int(victim["shard"])]
    flip_bit(shard, int(victim["offset"]) + int(victim["size"]) // 2)
    assert verify(opened(folder)) == [shard.name]
    # Training reads the image from its own file in place, and says so.
    packed = Packed(opened(folder), records)
    with pytest.warns(UserWarning, match="packed cache is damaged"):
        assert packed.read(5) is None
    stream = Stream(
        images, EvalSampler(len(images), 36, margin=4), Preprocessing(32, 28), Packed(opened(folder), records)
    )
    with pytest.warns(UserWarning, match="packed cache is damaged"):
        (batch,) = Loader(stream, CPU, "torchvision", 1).batches()
    (plain,) = Loader(Stream(images, stream.sampler, Preprocessing(32, 28)), CPU, "torchvision", 1).batches()
    assert torch.equal(batch.images[5], plain.images[5])
    made = pack(images, folder, encoding, shard_bytes=SMALL)
    assert 0 < made.repaired < len(images)
    assert made.kept == len(images) - made.repaired
    assert verify(opened(folder)) == []


def test_a_shard_cut_short_is_no_cache(images: ImageList, tmp_path: Path) -> None:
    folder = pack(images, tmp_path / "cache", RAW).folder
    shard = folder / "shard-00000.tar"
    shard.write_bytes(shard.read_bytes()[:-600])
    assert Cache.open(folder) is None
    assert pack(images, folder, RAW).kept == 0
    assert verify(opened(folder)) == []


KILLED = """
import os, sys, threading, time
from pathlib import Path
from typing import Any
from fastget.data.folders import domains_from_folders
from fastget.data.packed.write import pack
from fastget.data.packed.read import Encoding
images = domains_from_folders(Path(sys.argv[1]), "photo", "sketch")[0]
left = int(sys.argv[3])
def advance(count):
    global left
    left -= count
    if left <= 0:
        os.kill(os.getpid(), 9)
pack(images, Path(sys.argv[2]), Encoding("raw", 32), shard_bytes=20_000, advance=advance)
"""


@pytest.mark.parametrize("after", [1, 6, 20, 36])
def test_a_killed_packing_is_absent_and_goes_on(images: ImageList, tmp_path: Path, after: int) -> None:
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", KILLED, str(images.root), str(folder), str(after)]
    killed = subprocess.run(command, env=this_fastget(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert Cache.open(folder) is None
    done = len(list(folder.glob("shard-*.npz")))
    made = pack(images, folder, RAW, shard_bytes=SMALL)
    assert made.kept == min(done * 5, 36)  # five images in a shard; what was finished is kept
    assert verify(opened(folder)) == []
    assert list(folder.glob("*.part*")) == []
    packed = Packed(opened(folder), opened(folder).find(images)[0])
    assert all(holds(packed, images, i) for i in range(36))


def dies_at(moment: int, after: bool, images: ImageList, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A packing that is stopped at one of its renames, just before or after it. False if it has no such rename."""
    replace, calls = os.replace, 0

    def dying(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls != moment or after:
            replace(source, target)
        if calls == moment:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        try:
            pack(images, folder, RAW, shard_bytes=50_000)
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_stopping_at_any_rename_leaves_a_cache_that_is_whole_or_absent(
    images: ImageList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, changed: bool
) -> None:
    moment, complete = 1, 0
    while dies_at(moment, after, images, folder := tmp_path / f"cache{moment}", monkeypatch):
        if changed:  # die again at the same place, over what is there, with a file that has changed since
            os.utime(images.file(0), ns=(moment, moment))
            dies_at(moment, after, images, folder, monkeypatch)
        cache = Cache.open(folder)
        complete += cache is not None
        if cache:
            assert verify(cache) == []
            assert len(cache.records) == 36
        pack(images, folder, RAW, shard_bytes=50_000)
        cache = opened(folder)
        assert verify(cache) == []
        records, fresh = cache.find(images)
        assert fresh.all()
        packed = Packed(cache, records)
        assert all(holds(packed, images, i) for i in (0, 20, 35))
        moment += 1
    assert moment == 8  # three shards, their indexes, and that of the whole
    assert changed or complete == int(after)  # only the last rename makes it complete


def test_two_packings_at_a_time(images: ImageList, tmp_path: Path) -> None:
    with pack_module._locked(tmp_path / "cache"), pytest.raises(ValueError, match="another `fastget data pack`"):
        pack(images, tmp_path / "cache", RAW)


def test_a_folder_that_cannot_be_written(images: ImageList, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot write the packed cache"):
        pack(images, tmp_path / "file" / "cache", RAW)


def test_a_disk_that_is_too_small(images: ImageList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ValueError, match="use --format jpeg"):
        pack(images, tmp_path / "cache", RAW)


def test_bad_files_are_left_out(tmp_path: Path) -> None:
    damage = write_damage(tmp_path)
    files = image_list(tmp_path, ["good.jpg", "half.jpg", "good.png", "text.jpg", "gone.jpg"])
    for _ in range(2):  # when it is made, and when it is found finished
        made = pack(files, tmp_path / "cache", RAW)
        assert {Path(p.path).name: p.kind for p in made.bad} == {
            n: damage[n] for n in ("half.jpg", "text.jpg", "gone.jpg")
        }
    cache = opened(made.folder)
    packed = Packed(cache, cache.find(files)[0])
    assert [packed.read(i) is not None for i in range(5)] == [True, False, True, False, False]


# --- freshness -----------------------------------------------------------------------------------


def config(root: Path, **fields: object) -> DataConfig:
    base = {"name": "folder", "root": str(root), "source": "photo", "target": "sketch", "resize": 32, "crop": 28}
    base |= {"interpolation": "bilinear"}
    return DataConfig(**{**base, **fields})  # type: ignore[arg-type]


def test_a_fresh_cache_is_used_and_a_stale_one_is_not(images: ImageList, tmp_path: Path) -> None:
    root = images.root
    folder = cache_folder(root, "auto", RAW)
    both = ImageList(
        "both",
        root,
        [*images.paths, *domains_from_folders(root, "photo", "sketch")[1].paths],
        np.zeros(72, np.int64),
        (),
    )
    assert load_domains(config(root)).packed == {}
    pack(both, folder, RAW)
    found = load_domains(config(root))
    assert set(found.packed) == {"source", "target"}
    assert set(load_domains(config(root, setting="ssda", shots=3)).packed) == {"source", "target", "labelled_target"}
    assert load_domains(config(root, cache="off")).packed == {}
    assert load_domains(config(root, resize=40)).packed == {}
    os.utime(images.file(3), (0, Path(images.file(3)).stat().st_mtime + 10))  # changed, whatever the clock counts in
    found = load_domains(config(root))
    assert set(found.packed) == {"target"}
    assert any("1 of 36 files are new or changed" in note for note in found.notes)
    made = pack(both, folder, RAW)
    assert made.images == 72
    assert set(load_domains(config(root)).packed) == {"source", "target"}
    (root / "photo" / "ant" / "new.jpg").write_bytes(Path(images.file(1)).read_bytes())  # added
    assert set(load_domains(config(root)).packed) == {"target"}


def test_a_cache_elsewhere(images: ImageList, tmp_path: Path) -> None:
    where = str(tmp_path / "elsewhere")
    pack(images, cache_folder(images.root, where, RAW), RAW)
    packed, note = find_packed(images, where, 32)
    assert packed
    assert "elsewhere" in note
    assert find_packed(images, "auto", 32)[0] is None


def test_raw_goes_before_jpeg(images: ImageList) -> None:
    for encoding in (Encoding("jpeg", 32), RAW):
        pack(images, cache_folder(images.root, "auto", encoding), encoding)
        packed, _ = find_packed(images, "auto", 32)
        assert packed
        assert packed.format == encoding.format


def test_a_shorter_list_drops_the_shards_that_it_no_longer_needs(images: ImageList, tmp_path: Path) -> None:
    pack(images, tmp_path / "cache", RAW, shard_bytes=SMALL)
    pack(images.take(np.arange(7)), tmp_path / "cache", RAW, shard_bytes=SMALL)
    assert sorted(p.name for p in (tmp_path / "cache").glob("*.tar")) == ["shard-00000.tar", "shard-00001.tar"]
    assert len(opened(tmp_path / "cache").records) == 7


def test_a_disk_that_fills_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_list(write_domains(tmp_path / "data") / "photo" / "ant", ["000.png", "001.jpg", "002.jpg"])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFailed, match=r"No space left on device\). The finished shards are kept: make room"):
            pack_module.pack(images, tmp_path / "cache", Encoding("jpeg", 16, 90))
    assert pack_module.pack(images, tmp_path / "cache", Encoding("jpeg", 16, 90)).images == 3

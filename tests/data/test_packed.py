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
from fastget.data.decode import read_image
from fastget.data.domains import load_domains
from fastget.data.folders import domains_from_folders
from fastget.data.lists import ImageList, merged
from fastget.data.packed import write as pack_module
from fastget.data.packed.read import Cache, Encoding, Format, Packed, cache_folder, find_packed
from fastget.data.packed.write import estimate, pack, verify
from fastget.data.protocols import Domains
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler, TrainSampler
from fastget.loading.stream import Stream
from tests.data.support import kinds, on_folders
from tests.pictures import image_list, this_fastget, write_damage, write_domains

CPU = torch.device("cpu")
RAW = Encoding("raw", 32)
SMALL = 20_000  # bytes of a shard, for a few images in each
SIZE = Preprocessing(32, 28)


@pytest.fixture
def images(tmp_path: Path) -> ImageList:
    return domains_from_folders(write_domains(tmp_path / "data"), "photo", "sketch")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(folder: Path) -> Cache:
    cache = Cache.open(folder)
    assert cache
    return cache


def packed_of(folder: Path, images: ImageList) -> Packed:
    records, fresh = opened(folder).find(images)
    assert fresh.all()
    return Packed(opened(folder), records)


def holds(packed: Packed, images: ImageList, index: int) -> bool:
    """Whether a record is the image, resized, to the bit."""
    square = packed.read(index)
    return square is not None and np.array_equal(
        square, np.asarray(read_image(images.file(index), *packed.cache.encoding.resizing))
    )


def first_batch(images: ImageList, packed: Packed | None = None) -> torch.Tensor:
    stream = Stream(images, EvalSampler(len(images), 36, margin=4), SIZE, packed)
    return next(Loader(stream, CPU, "torchvision", 1).batches()).images


# --- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["raw", "jpeg"])
def test_records_are_the_resized_images(images: ImageList, folder: Path, format: Format) -> None:
    encoding = Encoding(format, 32, 95)
    made = pack(images, folder, encoding, shard_bytes=SMALL)
    shards, packed = opened(folder).shards, packed_of(folder, images)
    assert len(shards) > 1
    assert made.bytes == sum((folder / name).stat().st_size for name in shards)
    if format == "raw":
        assert all(holds(packed, images, i) for i in range(len(images)))
        expected = estimate(len(images), encoding)
        assert expected <= made.bytes <= expected + 2048 * len(shards)
        some = images.take(np.array([30, 2, 2, 17]))  # a part of the images finds its records
        assert all(holds(packed_of(folder, some), some, i) for i in range(4))
        return
    for i in range(len(images)):
        square = packed.read(i)
        assert square is not None
        assert np.abs(square.astype(int) - np.asarray(read_image(images.file(i), 32))).mean() < 8


def test_what_is_stored_keeps_its_names(images: ImageList, folder: Path) -> None:
    """A cache that an earlier version made is found by a later one."""
    pack(images, folder, RAW, shard_bytes=SMALL)
    with np.load(folder / "index.npz") as saved:
        about, records = json.loads(bytes(saved["about"])), saved["records"]
    assert about["version"] == 1
    assert about["recipe"] == {"format": "raw", "resize": 32, "quality": 90}
    assert about["shards"]["shard-00000.tar"] == (folder / "shard-00000.tar").stat().st_size
    assert records.dtype.names == ("key", "shard", "offset", "size", "crc", "file_size", "mtime")
    assert sorted(records["key"].tolist()) == sorted(path_keys(images.paths).tolist())
    assert cache_folder(folder, "auto", RAW) == folder / ".fastget-packed" / "raw-32"


def test_shards_are_plain_tar_files_and_a_webdataset(images: ImageList, folder: Path) -> None:
    from nvidia.dali import Pipeline, fn

    jpegs = pack(images, folder / "jpeg", Encoding("jpeg", 32), shard_bytes=SMALL).folder
    names = []
    for shard in sorted(jpegs.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                names.append(member.name)
                file = tar.extractfile(member)
                assert file
                assert file.read(2) == b"\xff\xd8"
    assert len(names) == len(set(names)) == len(images)
    raw = pack(images, folder / "raw", RAW).folder
    pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipeline:
        pipeline.set_outputs(fn.readers.webdataset(paths=[str(raw / "shard-00000.tar")], ext="raw"))
    (out,) = pipeline.run()
    first = np.asarray(out[0]).reshape(32, 32, 3)
    assert np.array_equal(first, np.asarray(read_image(images.file(0), 32)))


def test_batches_from_the_cache_are_those_from_the_files(images: ImageList, folder: Path) -> None:
    pack(images, folder, RAW, shard_bytes=SMALL)
    packed = packed_of(folder, images)
    sampler = TrainSampler(len(images), 8, seed=1, stream="source", margin=4, flip=True)

    def three(decoder: Any, packed: Packed | None = None) -> list[Any]:
        batches = Loader(Stream(images, sampler, SIZE, packed), CPU, decoder, 2).batches(3)
        return [next(batches) for _ in range(3)]

    files = three("torchvision")
    for decoder in ("torchvision", "dali"):
        for a, b in zip(files, three(decoder, packed), strict=True):
            assert torch.equal(a.images, b.images)
            assert np.array_equal(a.index, b.index)
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
    assert holds(packed, images, 5)
    assert not np.array_equal(packed.read(5), np.asarray(read_image(images.file(5), 32)))  # type: ignore[arg-type]
    packed, note = find_packed(images, "auto", *other)
    assert packed is None
    for told in (
        f"no packed cache of {other[0]} pixels, {other[1]}",
        "there is raw-32-bicubic",
        f"--resize {other[0]} --interpolation {other[1]}",
    ):
        assert told in note
    assert pack(images, folder, cubic).kept == len(images)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["raw", "jpeg"])
def test_a_flipped_bit_is_found_and_repaired(images: ImageList, folder: Path, format: Format) -> None:
    encoding = Encoding(format, 32)
    pack(images, folder, encoding, shard_bytes=SMALL)
    cache = opened(folder)
    assert verify(cache) == []
    victim = cache.records[cache.find(images)[0][5]]
    shard = folder / cache.shards[int(victim["shard"])]
    data = bytearray(shard.read_bytes())
    data[int(victim["offset"]) + int(victim["size"]) // 2] ^= 4
    shard.write_bytes(data)
    assert verify(opened(folder)) == [shard.name]
    # Training reads the image from its own file in place, and says so.
    with pytest.warns(UserWarning, match="packed cache is damaged"):
        assert packed_of(folder, images).read(5) is None
    with pytest.warns(UserWarning, match="packed cache is damaged"):
        batch = first_batch(images, packed_of(folder, images))
    assert torch.equal(batch[5], first_batch(images)[5])
    made = pack(images, folder, encoding, shard_bytes=SMALL)
    assert 0 < made.repaired < len(images)
    assert made.kept == len(images) - made.repaired
    assert verify(opened(folder)) == []


def test_a_shard_cut_short_is_no_cache(images: ImageList, folder: Path) -> None:
    pack(images, folder, RAW)
    shard = folder / "shard-00000.tar"
    shard.write_bytes(shard.read_bytes()[:-600])
    assert Cache.open(folder) is None
    assert pack(images, folder, RAW).kept == 0
    assert verify(opened(folder)) == []


KILLED = """
import os, sys
from pathlib import Path
from fastget.data.folders import domains_from_folders
from fastget.data.packed.read import Encoding
from fastget.data.packed.write import pack
left = int(sys.argv[3])
def advance(count):
    global left
    left -= count
    if left <= 0:
        os.kill(os.getpid(), 9)
images = domains_from_folders(Path(sys.argv[1]), "photo", "sketch")[0]
pack(images, Path(sys.argv[2]), Encoding("raw", 32), shard_bytes=20_000, advance=advance)
"""


@pytest.mark.parametrize("after", [1, 6, 20, 36])
def test_a_killed_packing_is_absent_and_goes_on(images: ImageList, folder: Path, after: int) -> None:
    command = [sys.executable, "-c", KILLED, str(images.root), str(folder), str(after)]
    assert subprocess.run(command, env=this_fastget(), check=False).returncode == -signal.SIGKILL
    assert Cache.open(folder) is None
    done = len(list(folder.glob("shard-*.npz")))
    made = pack(images, folder, RAW, shard_bytes=SMALL)
    assert made.kept == min(done * 5, 36)  # five images in a shard; what was finished is kept
    assert verify(opened(folder)) == []
    assert list(folder.glob("*.part*")) == []
    packed = packed_of(folder, images)
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
        if cache := Cache.open(folder):
            complete += 1
            assert verify(cache) == []
            assert len(cache.records) == 36
        pack(images, folder, RAW, shard_bytes=50_000)
        assert verify(opened(folder)) == []
        packed = packed_of(folder, images)
        assert all(holds(packed, images, i) for i in (0, 20, 35))
        moment += 1
    assert moment == 8  # three shards, their indexes, and that of the whole
    assert changed or complete == int(after)  # only the last rename makes it complete


def test_two_packings_at_a_time(images: ImageList, folder: Path) -> None:
    with pack_module._locked(folder), pytest.raises(ValueError, match="another `fastget data pack`"):
        pack(images, folder, RAW)


def test_a_place_without_room(images: ImageList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot write the packed cache"):
        pack(images, tmp_path / "file" / "cache", RAW)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        with pytest.raises(ValueError, match="use --format jpeg"):
            pack(images, tmp_path / "cache", RAW)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFailed, match=r"No space left on device\). The finished shards are kept: make room"):
            pack(images, tmp_path / "cache", RAW)
    assert pack(images, tmp_path / "cache", RAW).images == 36


def test_bad_files_are_left_out(tmp_path: Path, folder: Path) -> None:
    damage = write_damage(tmp_path)
    files = image_list(tmp_path, ["good.jpg", "half.jpg", "good.png", "text.jpg", "gone.jpg"])
    for _ in range(2):  # when it is made, and when it is found finished
        made = pack(files, folder, RAW)
        assert kinds(made.bad) == {n: damage[n] for n in ("half.jpg", "text.jpg", "gone.jpg")}
    packed = Packed(opened(folder), opened(folder).find(files)[0])
    assert [packed.read(i) is not None for i in range(5)] == [True, False, True, False, False]


# --- freshness -----------------------------------------------------------------------------------


def test_a_fresh_cache_is_used_and_a_stale_one_is_not(images: ImageList) -> None:
    root = images.root
    folder = cache_folder(root, "auto", RAW)
    both = merged(domains_from_folders(root, "photo", "sketch"))

    def found(**fields: Any) -> Domains:
        size = {"resize": 32, "crop": 28, "interpolation": "bilinear"}
        return load_domains(on_folders(root, **{**size, **fields}))

    assert found().packed == {}
    pack(both, folder, RAW)
    assert set(found().packed) == {"source", "target"}
    assert set(found(setting="ssda", shots=3).packed) == {"source", "target", "labelled_target"}
    assert found(cache="off").packed == found(resize=40).packed == {}
    os.utime(images.file(3), (0, Path(images.file(3)).stat().st_mtime + 10))  # changed, whatever the clock counts in
    stale = found()
    assert set(stale.packed) == {"target"}
    assert any("1 of 36 files are new or changed" in note for note in stale.notes)
    assert pack(both, folder, RAW).images == 72
    assert set(found().packed) == {"source", "target"}
    (root / "photo" / "ant" / "new.jpg").write_bytes(Path(images.file(1)).read_bytes())  # added
    assert set(found().packed) == {"target"}


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


def test_a_shorter_list_drops_the_shards_that_it_no_longer_needs(images: ImageList, folder: Path) -> None:
    pack(images, folder, RAW, shard_bytes=SMALL)
    pack(images.take(np.arange(7)), folder, RAW, shard_bytes=SMALL)
    assert sorted(p.name for p in folder.glob("*.tar")) == ["shard-00000.tar", "shard-00001.tar"]
    assert len(opened(folder).records) == 7

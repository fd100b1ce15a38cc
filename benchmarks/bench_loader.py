"""What an image costs to load, in CPU-seconds: ATDOC's loader, torchvision's v2, DALI, and the packed cache.

    python -m benchmarks.bench_loader            one interleaved run, all sizes, a table
    pytest benchmarks/bench_loader.py            the same loaders under pytest-benchmark

Photographs that ship with scikit-learn and matplotlib, cut and scaled to 224, 500 and 700 px, as JPEG and PNG. Every
loader makes the same training batches (resize 256, random crop 224, flip, normalise to float32, batches of 36), on one
thread. A block of batches is timed from a loader's making to the end of its stream, so that nothing works ahead
unpaid; blocks of all loaders take turns, and the best of the rounds counts.

CPU-seconds are those of the whole process, and are what to compare: wall time depends on who else uses the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset
from torchvision import io, transforms
from torchvision.transforms import v2

from benchmarks.report import Row
from benchmarks.results import write
from fastget.common.preprocessing import MEAN, STD, Preprocessing
from fastget.data.lists import ImageList
from fastget.data.packed.read import Cache, Encoding, Packed
from fastget.data.packed.write import pack
from fastget.loading.loader import Loader
from fastget.loading.sampling import Draw, TrainSampler
from fastget.loading.stream import Stream

RESIZE, CROP, BATCH = 256, 224, 36
SIZES = (224, 500, 700)
BASELINE = "PIL + DataLoader (ATDOC)"
DALI = "fastget DALI from files"
NEEDED = {  # images per CPU-second, as a multiple of ATDOC's
    ("jpeg", 500): {"packed raw": 12.0, "packed JPEG": 5.0, DALI: 1.0},
    ("png", 500): {"packed raw": 8.0},
    ("jpeg", 224): {"packed raw": 4.0, "packed JPEG": 1.5, DALI: 1.0},
    ("jpeg", 700): {DALI: 1.0},
}


# --- photographs ---------------------------------------------------------------------------------


def make_photographs(folder: Path, size: int, encoding: str, count: int) -> ImageList:
    """Real photographs, cut at random and scaled to size x size."""
    grace = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    originals = [Image.fromarray(image) for image in load_sample_images().images] + [Image.open(grace)]
    random = np.random.Generator(np.random.Philox(key=size))
    paths = []
    for i in range(count):
        photo = originals[i % len(originals)]
        side = int(random.integers(300, min(photo.size) + 1))
        x, y = (int(random.integers(0, edge - side + 1)) for edge in photo.size)
        cut = photo.crop((x, y, x + side, y + side)).resize((size, size), Image.Resampling.LANCZOS)
        paths.append(f"{i:05d}.{'jpg' if encoding == 'jpeg' else 'png'}")
        cut.save(folder / paths[-1], quality=90)  # which PNG ignores
    return ImageList(f"{encoding} {size}", folder, paths, np.zeros(count, dtype=np.int64), ("photo",))


# --- loaders -------------------------------------------------------------------------------------


class Some(TrainSampler):
    """Training batches with an end."""

    def __init__(self, length: int, steps: int) -> None:
        super().__init__(length, BATCH, seed=0, stream="bench", margin=RESIZE - CROP, flip=True)
        self.steps = steps

    def __call__(self, step: int) -> Draw:
        if step >= self.steps:
            raise StopIteration
        return super().__call__(step)


class Files(Dataset[Any]):
    """A list of files, each made by `make`."""

    def __init__(self, images: ImageList, count: int, make: Callable[[str], torch.Tensor]) -> None:
        self.images, self.count, self.make = images, count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.make(self.images.file(index % len(self.images))), 0


def atdoc(images: ImageList, steps: int) -> Iterator[Any]:
    """As ATDOC's data_list.py and its transforms do it; in this process, which spares it the workers' own cost."""
    transform = transforms.Compose(
        [
            transforms.Resize((RESIZE, RESIZE)),
            transforms.RandomCrop(CROP),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def make(file: str) -> torch.Tensor:
        with open(file, "rb") as opened, Image.open(opened) as image:
            made: torch.Tensor = transform(image.convert("RGB"))
            return made

    yield from DataLoader(Files(images, steps * BATCH, make), batch_size=BATCH, shuffle=True, drop_last=True)


def torchvision_v2(images: ImageList, steps: int) -> Iterator[Any]:
    """Decoded to a tensor, transformed by v2."""
    transform = v2.Compose(
        [
            v2.Resize((RESIZE, RESIZE), antialias=True),
            v2.RandomCrop(CROP),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def make(file: str) -> torch.Tensor:
        made: torch.Tensor = transform(io.decode_image(io.read_file(file), io.ImageReadMode.RGB))
        return made

    yield from DataLoader(Files(images, steps * BATCH, make), batch_size=BATCH, shuffle=True, drop_last=True)


def fastget_loader(
    images: ImageList, steps: int, backend: Any, packed: Packed | None = None, edges: Any = "plain"
) -> Iterator[Any]:
    stream = Stream(images, Some(len(images), steps), Preprocessing(RESIZE, CROP), packed, edges=edges)
    yield from Loader(stream, torch.device("cpu"), backend, workers=1).batches()


def webdataset(cache: Cache, steps: int) -> Iterator[Any]:
    """The same shards by DALI's own reader: in tar order, with no way to go to a step."""
    from nvidia.dali import Pipeline, fn, types

    raw = cache.encoding.format == "raw"
    pipeline = Pipeline(batch_size=BATCH, num_threads=1, device_id=None)
    with pipeline:
        data = fn.readers.webdataset(
            paths=[str(cache.folder / name) for name in cache.shards], ext="raw" if raw else "jpg"
        )
        square = fn.reshape(data, shape=[RESIZE, RESIZE, 3], layout="HWC") if raw else fn.decoders.image(data)
        pipeline.set_outputs(
            fn.crop_mirror_normalize(
                square,
                crop=(CROP, CROP),
                crop_pos_x=fn.random.uniform(range=(0, 1)),
                crop_pos_y=fn.random.uniform(range=(0, 1)),
                mirror=fn.random.coin_flip(),
                dtype=types.FLOAT,
                output_layout="HWC",
                mean=[255 * m for m in MEAN],
                std=[255 * s for s in STD],
            )
        )
    for _ in range(steps):
        yield pipeline.run()


def loaders(images: ImageList, caches: Path) -> dict[str, Callable[[int], Iterator[Any]]]:
    """name -> the batches of so many steps."""
    packed = {}
    for format in ("raw", "jpeg"):
        encoding = Encoding(format, RESIZE)
        folder = pack(images, caches / encoding.folder_name, encoding).folder
        cache = Cache.open(folder)
        assert cache
        packed[format] = Packed(cache, cache.find(images)[0])
    return {
        BASELINE: partial(atdoc, images),
        "torchvision decode + v2": partial(torchvision_v2, images),
        "fastget torchvision from files": partial(fastget_loader, images, backend="torchvision"),
        DALI: partial(fastget_loader, images, backend="dali"),
        "fastget DALI, exact edges": partial(fastget_loader, images, backend="dali", edges="exact"),
        "packed JPEG": partial(fastget_loader, images, backend="torchvision", packed=packed["jpeg"]),
        "packed raw": partial(fastget_loader, images, backend="torchvision", packed=packed["raw"]),
        "DALI webdataset reader, JPEG": partial(webdataset, packed["jpeg"].cache),
        "DALI webdataset reader, raw": partial(webdataset, packed["raw"].cache),
    }


# --- measuring -----------------------------------------------------------------------------------


def walk(make: Callable[[int], Iterator[Any]], steps: int) -> int:
    """How many batches there were."""
    return sum(1 for _ in make(steps))


def measure(
    makers: dict[str, Callable[[int], Iterator[Any]]], steps: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """name -> (CPU-seconds, seconds) an image; the best of interleaved rounds, after one to warm up."""
    best = {name: (float("inf"), float("inf")) for name in makers}
    for turn in range(rounds + 1):
        for name, make in makers.items():
            cpu, wall = time.process_time(), time.perf_counter()
            assert walk(make, steps) == steps
            spent = (time.process_time() - cpu) / (steps * BATCH), (time.perf_counter() - wall) / (steps * BATCH)
            if turn:
                best[name] = min(best[name][0], spent[0]), min(best[name][1], spent[1])
    return best


def report(encoding: str, size: int, results: dict[str, tuple[float, float]]) -> list[str]:
    """Prints the rows of a table; returns the figures that fell short."""
    base, short = results[BASELINE][0], []
    needed = NEEDED.get((encoding, size), {})
    for name, (cpu, wall) in results.items():
        ratio = base / cpu
        wanted = f"needs {needed[name]:g}" if name in needed else ""
        figures = f"{1e3 * cpu:.2f} | {1 / cpu:,.0f} | {1 / wall:,.0f} | {ratio:.1f}x"
        print(f"| {encoding} {size} | {name} | {figures} | {wanted} |")
        if name in needed and ratio < needed[name]:
            short.append(f"{encoding} {size} {name}: {ratio:.1f}x, needs {needed[name]:g}x")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=72, help="photographs of each size")
    parser.add_argument("--steps", type=int, default=8, help=f"batches of {BATCH} in a block")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each loader")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sides of the photographs, in pixels")
    parser.add_argument("--encodings", nargs="+", default=("jpeg", "png"), choices=("jpeg", "png"))
    parser.add_argument("--json", type=Path, help="also write the figures there, for `benchmarks.report`")
    args = parser.parse_args()
    torch.set_num_threads(1)
    short, rows = [], []
    print("| images | loader | CPU-ms an image | images per CPU-second | images per second | against ATDOC | |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for encoding in args.encodings:
        for size in args.sizes:
            with tempfile.TemporaryDirectory() as folder:
                images = make_photographs(Path(folder), size, encoding, args.images)
                makers = loaders(images, Path(folder) / "caches")
                results = measure(makers, args.steps, args.rounds)
                short += report(encoding, size, results)
                rows += [
                    Row("loader", f"{encoding} {size}", name, {"CPU-ms an image": 1e3 * cpu, "images/s": 1 / wall})
                    for name, (cpu, wall) in results.items()
                ]
    if args.json:
        write(rows, args.json)
    for line in short:
        print(f"short of what is needed: {line}")
    return 1 if short else 0


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[int], Iterator[Any]]]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("photographs")
    return loaders(make_photographs(folder, 500, "jpeg", 36), folder / "caches")


@pytest.mark.parametrize(
    "name", [BASELINE, "torchvision decode + v2", "fastget DALI from files", "packed JPEG", "packed raw"]
)
def test_loader(benchmark: Any, photographs: dict[str, Callable[[int], Iterator[Any]]], name: str) -> None:
    assert benchmark.pedantic(walk, args=(photographs[name], 2), rounds=3, warmup_rounds=1) == 2


if __name__ == "__main__":
    raise SystemExit(main())

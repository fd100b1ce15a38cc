"""Loaders: the same pixels from all, batches as a pure function, and bad files that do not end a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from fastget.common.choices import Decoder, Edges
from fastget.common.preprocessing import MEAN, STD, Preprocessing
from fastget.config import Config, make_config
from fastget.data.domains import load_domains
from fastget.data.folders import domains_from_folders
from fastget.data.lists import ImageList
from fastget.data.packed.read import Cache, Encoding, Packed
from fastget.data.packed.write import pack
from fastget.loading import dali
from fastget.loading.dali import ExternalSource, dali_batches, define
from fastget.loading.loader import Loader, choose_loader
from fastget.loading.pixels import normalise
from fastget.loading.sampling import EvalSampler, TrainSampler
from fastget.loading.stream import BadFiles, Stream, TooManyBadImages
from tests.pictures import image_list, photograph, write_domains, write_encodings

CPU = torch.device("cpu")
DECODERS: list[Decoder] = ["torchvision", "dali"]
RESIZE, CROP = 64, 56
CUBIC = Preprocessing(48, 40, "bicubic", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def stream(
    images: ImageList, batch: int = 8, *, train: bool = True, rank: int = 0, world: int = 1, **fields: Any
) -> Stream:
    margin = RESIZE - CROP
    views = fields.pop("views", 1)
    sampler: TrainSampler | EvalSampler
    if train:
        sampler = TrainSampler(
            len(images), batch, seed=3, stream="source", margin=margin, flip=True, rank=rank, world=world, views=views
        )
    else:
        sampler = EvalSampler(len(images), batch, margin=margin, rank=rank, world=world)
    return Stream(images, sampler, Preprocessing(RESIZE, CROP), **fields)


def take(loader: Loader, count: int, start: int = 0) -> list[Any]:
    batches = loader.batches(start)
    return [next(batches) for _ in range(count)]


def same(one: Any, other: Any) -> bool:
    """The same images, drawn and labelled alike, whoever made them: to a level."""
    drawn = np.array_equal(one.index, other.index) and torch.equal(one.labels, other.labels)
    return drawn and bool((levels(one.images) - levels(other.images)).abs().max() <= 1.001)


def levels(images: Tensor, wanted: Preprocessing = Preprocessing()) -> Tensor:  # noqa: B008  # it is frozen
    """Undo the normalisation: (b, 3, H, W) in levels of 0 to 255."""
    mean, std = (torch.tensor(values).view(3, 1, 1) * 255 for values in (wanted.mean, wanted.std))
    return images * std + mean


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageList:
    return domains_from_folders(write_domains(tmp_path_factory.mktemp("domains")), "photo", "sketch")[0]


@pytest.fixture
def mortal(tmp_path: Path) -> ImageList:
    """A list whose files a test may damage."""
    return domains_from_folders(write_domains(tmp_path), "photo", "sketch")[0]


# --- pixels --------------------------------------------------------------------------------------


def by_torchvision(files: list[str], wanted: Preprocessing) -> Tensor:
    """v2's transforms of PIL images, not normalised."""
    mode = v2.InterpolationMode(wanted.interpolation)
    oracle = v2.Compose([v2.Resize([wanted.resize] * 2, mode), v2.CenterCrop(wanted.crop), v2.PILToTensor()])
    return torch.stack([oracle(Image.open(file).convert("RGB")) for file in files]).float()


@pytest.mark.parametrize("wanted", [Preprocessing(RESIZE, CROP), CUBIC], ids=["bilinear", "bicubic"])
def test_the_host_gives_torchvision_s_own_pixels(tmp_path: Path, wanted: Preprocessing) -> None:
    """To the bit before normalisation."""
    names = [name for name in write_encodings(tmp_path) if name != "sixteen_bit.png"]  # which PIL saturates
    images = image_list(tmp_path, names)
    sampler = EvalSampler(len(images), 32, margin=wanted.margin)
    (batch,) = Loader(Stream(images, sampler, wanted), CPU, "torchvision", 2).batches()
    for name, found, pixels in zip(
        names, levels(batch.images, wanted), by_torchvision(images.files(), wanted), strict=True
    ):
        assert (found - pixels).abs().max() < 1e-3, name


def test_dali_is_bicubic_too(source: ImageList) -> None:
    """To a level, but where a cubic filter goes beyond black or white, which PIL clips between its two passes."""
    expected = by_torchvision(source.files(), CUBIC)
    for wanted, alike in ((CUBIC, True), (replace(CUBIC, interpolation="bilinear"), False)):
        sampler = EvalSampler(len(source), len(source), margin=wanted.margin)
        (batch,) = Loader(Stream(source, sampler, wanted), CPU, "dali", 1).batches()
        apart = (levels(batch.images, wanted) - expected).abs()
        assert bool(apart.quantile(0.99) <= 1.01) is bool(apart.mean() <= 0.35) is alike  # another one would be seen


@pytest.mark.parametrize("edges", ["plain", "exact"])
@pytest.mark.parametrize("size", [(RESIZE, CROP), (256, 224), (256, 256)])
def test_dali_and_torchvision_agree_to_a_level(tmp_path: Path, size: tuple[int, int], edges: Edges) -> None:
    """Every encoding; the outermost row and column of the image with exact edges alone, and to 12 levels without."""
    images = image_list(tmp_path, write_encodings(tmp_path))
    sampler = EvalSampler(len(images), 32, margin=size[0] - size[1])
    one, other = (
        next(Loader(Stream(images, sampler, Preprocessing(*size), edges=edges), CPU, decoder, 2).batches()).images
        for decoder in DECODERS
    )
    apart = (levels(one) - levels(other)).abs()
    most = apart.amax(dim=(1, 2, 3))
    if edges == "plain" and size[0] == size[1]:  # the crop reaches the edge
        assert 1.001 < most.max() <= 12.001
        most = apart[..., 1:-1, 1:-1].amax(dim=(1, 2, 3))
    assert {name: float(d) for name, d in zip(images.paths, most, strict=True) if d > 1.001} == {}


@pytest.mark.parametrize("views", [1, 2])
def test_random_crops_agree(source: ImageList, views: int) -> None:
    """One view is cut while it is resized, two from one square; both show the same pixels, but at the very edge."""
    margin = RESIZE - CROP
    one, other = (take(Loader(stream(source, views=views), CPU, decoder, 2), 6) for decoder in DECODERS)
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a.index, b.index)
        assert torch.equal(a.labels, b.labels)
        for first, second in ((a.images, b.images), (a.second, b.second))[:views]:
            apart = (levels(first) - levels(second)).abs()
            assert apart[..., 1:-1, 1:-1].max() <= 1.001
            assert apart.max() <= 12.001
    draws = [stream(source, views=views).sampler(step) for step in range(6)]
    places = np.concatenate([np.stack([draw.x, draw.y]) for draw in draws], axis=1)
    assert places.min() == 0, "no crop that reaches the edge"
    assert places.max() == margin, "no crop that reaches the edge"
    if views == 2:
        assert not torch.equal(one[0].images, one[0].second)


def test_exact_edges_of_random_crops(source: ImageList) -> None:
    what = stream(source, views=2, edges="exact")
    one, other = (take(Loader(what, CPU, decoder, 2), 6) for decoder in DECODERS)
    for a, b in zip(one, other, strict=True):
        for first, second in ((a.images, b.images), (a.second, b.second)):
            assert (levels(first) - levels(second)).abs().max() <= 1.001


def test_an_old_run_keeps_its_edges(tmp_path: Path) -> None:
    stored = Config().to_dict()
    del stored["data"]["dali_edges"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored), encoding="utf-8")
    assert Config().data.dali_edges == "plain"
    assert make_config(file=tmp_path / "config.yaml").data.dali_edges == "exact"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_normalising_into_a_half_type_is_what_autocast_would_make(dtype: torch.dtype) -> None:
    levels_of_all = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)
    found = normalise(levels_of_all, Preprocessing(), dtype)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found.float(), normalise(levels_of_all, Preprocessing()), rtol=2**-8, atol=1e-6)
    apart = found.float() - normalise(levels_of_all, Preprocessing()).to(dtype).float()
    assert (apart != 0).float().mean() < 0.01  # a last bit of float32 may round the other way


def test_half_types_leave_dali_as_bytes_on_a_gpu_alone(source: ImageList) -> None:
    half = stream(source, dtype=torch.bfloat16)
    exact = stream(source, dtype=torch.bfloat16, edges="exact")  # as an old run was
    for what, gpu, normalised in (
        (half, True, False),
        (half, False, True),
        (stream(source), True, True),
        (exact, True, True),
    ):
        _, decoder, *_, crop = operators(what, gpu)
        assert ("mean" in crop.options) == normalised
        assert {"hw_decoder_load", "device_memory_padding", "host_memory_padding"} <= decoder.options.keys()
    assert take(Loader(half, CPU, "dali", 1), 1)[0].images.dtype == torch.float32


def test_normalise_is_torchvision_s() -> None:
    image = torch.randint(0, 256, (2, 9, 9, 3), dtype=torch.uint8)
    oracle = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])(image.permute(0, 3, 1, 2))
    assert torch.allclose(normalise(image, Preprocessing()), oracle, atol=1e-5)


@pytest.mark.parametrize("decoder", DECODERS)
def test_channels_last_and_held_batches_stay_as_they_are(source: ImageList, decoder: Decoder) -> None:
    batches = Loader(stream(source), CPU, decoder, 2).batches()
    held = [next(batches) for _ in range(6)]
    copies = [batch.images.clone() for batch in held]
    for _ in range(4):
        next(batches)
    for batch, copy in zip(held, copies, strict=True):
        assert torch.equal(batch.images, copy)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert batch.images.dtype == torch.float32


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", DECODERS)
def test_seeking_and_ranks(source: ImageList, decoder: Decoder) -> None:
    walked = take(Loader(stream(source), CPU, decoder, 2), 7)
    sought = take(Loader(stream(source), CPU, decoder, 1), 2, start=5)
    for a, b in zip(walked[5:], sought, strict=True):
        assert torch.equal(a.images, b.images)
        assert np.array_equal(a.index, b.index)
    ranks = [take(Loader(stream(source, rank=r, world=4), CPU, decoder, 1), 1, start=5)[0] for r in range(4)]
    assert torch.equal(torch.cat([batch.images for batch in ranks]), walked[5].images)
    assert torch.equal(torch.cat([batch.labels for batch in ranks]), walked[5].labels)


@pytest.mark.parametrize("decoder", [*DECODERS, "synthetic"])
@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_sees_every_image_once(source: ImageList, decoder: Decoder, world: int) -> None:
    seen: list[int] = []
    for rank in range(world):
        for batch in Loader(stream(source, 7, train=False, rank=rank, world=world), CPU, decoder, 2).batches():
            seen += batch.index.tolist()
            assert batch.images.shape == (len(batch.index), 3, CROP, CROP)
            assert len(batch.index) == len(batch.labels)
    assert seen == list(range(len(source)))


def test_choose_loader() -> None:
    assert choose_loader("auto", CPU) == "torchvision"
    assert choose_loader("dali", CPU) == "dali"
    assert choose_loader("auto", torch.device("cuda")) == "dali"


# --- bad files -----------------------------------------------------------------------------------


def spoil(file: str, how: str) -> None:
    path = Path(file)
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "gif":
        photograph().save(path, format="GIF")
    else:
        path.write_bytes({"text": b"no image", "cut": data[: len(data) // 2], "empty": b""}[how])


@pytest.mark.parametrize("how", ["gone", "text", "gif", "cut", "empty"])
def test_a_file_that_turns_bad_is_replaced_and_named(mortal: ImageList, how: str) -> None:
    clean = take(Loader(stream(mortal), CPU, "torchvision", 2), 12)
    victim = int(clean[6].index[3])
    made = {}
    for decoder in DECODERS:
        loader = Loader(stream(mortal), CPU, decoder, 2)
        batches = loader.batches()
        before = next(batches)
        if decoder == DECODERS[0]:
            spoil(mortal.file(victim), how)  # while the loader runs, some batches ahead of the one in use
        made[decoder] = [before, *(next(batches) for _ in range(11))]
        (bad,) = [bad for batch in made[decoder] for bad in batch.bad]
        assert bad.path == mortal.file(victim)
        assert bad.reason
        assert len(loader.bad) == 1
    assert all(victim not in batch.index for batch in made["dali"])
    assert all(map(same, made["torchvision"][3:], made["dali"][3:]))  # the first may have been made in time
    assert all(torch.equal(a.labels, torch.from_numpy(mortal.labels[a.index])) for a in made["dali"])
    for a, b in zip(clean, made["dali"], strict=True):  # nothing else changed
        others = a.index != victim
        assert np.array_equal(a.index[others], b.index[others])
    # A run that is resumed draws the same stand-ins.
    again = take(Loader(stream(mortal), CPU, "torchvision", 2), 1, start=6)[0]
    assert np.array_equal(again.index, made["dali"][6].index)


def test_ranks_agree_on_stand_ins(mortal: ImageList) -> None:
    victim = int(stream(mortal).sampler(2).index[5])
    spoil(mortal.file(victim), "gone")
    whole = take(Loader(stream(mortal), CPU, "torchvision", 1), 1, start=2)[0]
    parts = [take(Loader(stream(mortal, rank=r, world=2), CPU, "torchvision", 1), 1, start=2)[0] for r in range(2)]
    assert np.array_equal(np.concatenate([part.index for part in parts]), whole.index)
    assert victim not in whole.index


@pytest.mark.parametrize("decoder", DECODERS)
def test_evaluation_leaves_bad_files_out(mortal: ImageList, decoder: Decoder) -> None:
    for index in (0, 1, 2, 20):  # a whole batch, and one in the middle
        spoil(mortal.file(index), "text" if index else "gone")
    loader = Loader(stream(mortal, 3, train=False, bad_threshold=0.5), CPU, decoder, 2)
    seen = [i for batch in loader.batches() for i in batch.index.tolist()]
    assert seen == [i for i in range(len(mortal)) if i not in (0, 1, 2, 20)]
    assert sorted(bad.path for bad in loader.bad.files) == sorted(mortal.file(i) for i in (0, 1, 2, 20))


@pytest.mark.parametrize("decoder", DECODERS)
def test_too_many_bad_files_end_it(mortal: ImageList, decoder: Decoder) -> None:
    spoil(mortal.file(0), "gone")
    with pytest.raises(TooManyBadImages):
        take(Loader(stream(mortal, bad_threshold=0), CPU, decoder, 2), 10)
    for index in range(3, 36, 3):
        spoil(mortal.file(index), "gone")
    with pytest.raises(TooManyBadImages, match=r"of the 36 images of photo .*bad_threshold=0\.1") as error:
        take(Loader(stream(mortal, bad_threshold=0.1), CPU, decoder, 2), 10)
    assert len(error.value.files) == 4  # a tenth of 36, and one more
    assert take(Loader(stream(mortal, bad_threshold=0.4), CPU, decoder, 2), 10)[-1].images.shape[0] == 8


def test_a_pipeline_that_fails_is_started_again(mortal: ImageList, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PNG whose damage only shows in decoding: DALI's pipeline is lost, the run is not."""
    draw = stream(mortal).sampler(4)
    victim = next(i for i in draw.index.tolist() if mortal.paths[i].endswith("png"))
    data = bytearray(Path(mortal.file(victim)).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    Path(mortal.file(victim)).write_bytes(data)
    started: list[int] = []
    define_one = dali.define

    def counted(*args: Any, **kwargs: Any) -> Any:
        started.append(1)
        return define_one(*args, **kwargs)

    monkeypatch.setattr(dali, "define", counted)
    one, other = (take(Loader(stream(mortal), CPU, decoder, 2), 9) for decoder in DECODERS)
    assert len(started) == 2
    assert all(map(same, one, other))
    for batches in (one, other):
        assert [bad.path for batch in batches for bad in batch.bad] == [mortal.file(victim)]


class Moody:
    """A pipeline that fails for no reason that a file could give: at one run, or at every one."""

    def __init__(self, pipeline: Any, always: bool) -> None:
        self.pipeline, self.always, self.runs = pipeline, always, 0

    def build(self) -> None:
        self.pipeline.build()

    def run(self) -> Any:
        self.runs += 1
        outputs = self.pipeline.run()
        if self.always or self.runs == 3:
            raise RuntimeError("out of some memory")
        return outputs


@pytest.mark.parametrize("always", [False, True])
def test_a_failure_that_no_file_explains(source: ImageList, monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
    clean = take(Loader(stream(source), CPU, "dali", 2), 7)
    define_one = dali.define
    monkeypatch.setattr(dali, "define", lambda *args, **kwargs: Moody(define_one(*args, **kwargs), always))
    if always:
        with pytest.raises(RuntimeError, match=r"out of some memory\. Use data\.loader=torchvision"):
            take(Loader(stream(source), CPU, "dali", 2), 7)
    else:
        assert all(map(same, clean, take(Loader(stream(source), CPU, "dali", 2), 7)))


# --- the GPU's pipeline, without a GPU -----------------------------------------------------------


class Operator(NamedTuple):
    """As it was asked for."""

    name: str
    device: str  # that its output is on
    options: dict[str, Any]  # but those that other operators make
    inputs: list[str]  # the devices of what it works on


def operators(what: Stream, gpu: bool) -> list[Operator]:
    """What a stream's pipeline is made of. No GPU is needed for that, nor to serialise it."""
    from nvidia.dali import fn
    from nvidia.dali.data_node import DataNode

    found: list[Operator] = []

    def note(real: Any) -> Any:
        def called(*inputs: Any, **options: Any) -> Any:
            out = real(*inputs, **options)
            device = (out[0] if isinstance(out, list) else out).device
            plain = {key: value for key, value in options.items() if not isinstance(value, (DataNode, ExternalSource))}
            found.append(Operator(real.__name__, device, plain, [part.device for part in inputs]))
            return out

        return called

    source = ExternalSource(what, BadFiles(what.images, 0.01), 0, 1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fn.decoders, "image", note(fn.decoders.image))
            for name in ("external_source", "resize", "crop_mirror_normalize"):
                patch.setattr(fn, name, note(getattr(fn, name)))
            assert define(what, source, gpu=gpu, device_id=None, workers=1).serialize()
    finally:
        source.close()
    return found


def test_the_gpu_pipeline_is_the_cpu_one_on_another_device(source: ImageList) -> None:
    cpu, gpu = (operators(stream(source, views=2), gpu) for gpu in (False, True))
    names = [op.name for op in cpu]
    assert names == ["external_source", "image", "resize", "crop_mirror_normalize", "crop_mirror_normalize"]
    for one, other in zip(cpu, gpu, strict=True):
        assert (one.name, one.options | {"device": ""}) == (other.name, other.options | {"device": ""})
    assert {op.device for op in cpu} == {"cpu"}
    assert gpu[1].options["device"] == "mixed"
    assert [op.device for op in gpu[1:]] == ["gpu"] * 4  # whatever touches pixels after the decoder
    assert all(op.inputs[0] == "gpu" for op in gpu[2:])
    assert all(op.options["output_layout"] == "HWC" for op in gpu[3:])  # channels last


def test_the_packed_pipeline_decodes_on_the_gpu(source: ImageList, tmp_path: Path) -> None:
    encoding = Encoding("jpeg", RESIZE)
    cache = Cache.open(pack(source, tmp_path / "cache", encoding).folder)
    assert cache
    what = stream(source, packed=Packed(cache, cache.find(source)[0]))
    names = ["external_source", "image", "crop_mirror_normalize"]
    assert [(op.name, op.device) for op in operators(what, gpu=True)] == list(
        zip(names, ("cpu", "gpu", "gpu"), strict=True)
    )
    # The same pipeline on the CPU gives what the host decodes from the same records.
    device_free = dali_batches(what, BadFiles(source, 0.01), CPU, 2, 0)
    for (draw, (images,)), batch in zip(device_free, take(Loader(what, CPU, "dali", 2), 3), strict=False):
        assert np.array_equal(draw.index, batch.index)
        assert (levels(images) - levels(batch.images)).abs().max() <= 1.001


def test_load_domains_of_ssda_has_three_streams(tmp_path: Path) -> None:
    fields = {"root": str(write_domains(tmp_path)), "source": "photo", "target": "sketch", "setting": "ssda"}
    found = load_domains(make_config({"data.name": "folder", **{f"data.{k}": v for k, v in fields.items()}}).data)
    assert found.labelled_target
    assert found.labelled_target.counts().tolist() == [3, 3, 3]
    assert len(found.target) == 27
    for images in found.lists().values():
        assert len(take(Loader(stream(images, 3), CPU, "torchvision", 1), 1)[0].index) == 3

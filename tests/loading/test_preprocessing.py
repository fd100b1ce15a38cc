"""Size, interpolation, mean and std of a backbone reach the batches, whoever makes them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from fastget.common.choices import Decoder
from fastget.common.preprocessing import Preprocessing
from fastget.data.folders import domains_from_folders
from fastget.data.lists import ImageList
from fastget.data.packed.read import Cache, Encoding, Packed
from fastget.data.packed.write import pack
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler
from fastget.loading.stream import Stream
from tests.pictures import write_domains

CPU = torch.device("cpu")
CUBIC = Preprocessing(48, 40, "bicubic", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
LINEAR = Preprocessing(48, 40, "bilinear", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


@pytest.fixture
def images(tmp_path: Path) -> ImageList:
    return domains_from_folders(write_domains(tmp_path, per_class=2), "photo", "sketch")[0]


def by_torchvision(images: ImageList, made: Preprocessing) -> torch.Tensor:
    mode = transforms.InterpolationMode(made.interpolation)
    steps = transforms.Compose(
        [
            transforms.Resize((made.resize, made.resize), mode),
            transforms.CenterCrop(made.crop),
            transforms.ToTensor(),
            transforms.Normalize(made.mean, made.std),
        ]
    )
    return torch.stack([steps(Image.open(file).convert("RGB")) for file in images.files()])


def batch(images: ImageList, made: Preprocessing, decoder: Decoder, packed: Packed | None = None) -> torch.Tensor:
    stream = Stream(images, EvalSampler(len(images), len(images), margin=made.margin), made, packed)
    (found,) = Loader(stream, CPU, decoder, 1).batches()
    return found.images


@pytest.mark.parametrize("made", [CUBIC, LINEAR], ids=["bicubic", "bilinear"])
def test_batches_are_torchvisions_by_hand(images: ImageList, made: Preprocessing) -> None:
    found = batch(images, made, "torchvision")
    assert torch.allclose(found, by_torchvision(images, made), atol=1e-5)
    assert not torch.allclose(found, batch(images, LINEAR if made is CUBIC else CUBIC, "torchvision"), atol=0.05)


def test_dali_is_bicubic_too(images: ImageList) -> None:
    """To a level, but where a cubic filter goes beyond black or white, which PIL clips between its two passes."""
    expected = by_torchvision(images, CUBIC)
    levels = torch.tensor(CUBIC.std).view(3, 1, 1) * 255
    apart = ((batch(images, CUBIC, "dali") - expected) * levels).abs()
    assert apart.quantile(0.99) <= 1.01
    assert apart.mean() <= 0.35
    linear = ((batch(images, LINEAR, "dali") - expected) * levels).abs()
    assert linear.mean() > 1  # another interpolation would be seen


def test_a_packed_cache_of_the_same_size_and_interpolation(images: ImageList, tmp_path: Path) -> None:
    encoding = Encoding("raw", 48, interpolation="bicubic")
    cache = Cache.open(pack(images, tmp_path / "cache", encoding).folder)
    assert cache is not None
    packed = Packed(cache, cache.find(images)[0])
    assert torch.equal(batch(images, CUBIC, "torchvision", packed), batch(images, CUBIC, "torchvision"))


def test_synthetic_images_follow_the_crop(images: ImageList) -> None:
    assert batch(images, CUBIC, "synthetic").shape == (len(images), 3, 40, 40)
    assert np.isfinite(batch(images, CUBIC, "synthetic").numpy()).all()

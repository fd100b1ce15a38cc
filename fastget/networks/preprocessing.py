"""What a backbone wants of its images, known by its name, without building it.

    small        256 pixels, of which 224, bilinear, ImageNet's mean and std
    torchvision  crop, interpolation, mean and std of its weights; the square that is cropped is 8/7 as wide, as the
                 benchmarks of domain adaptation have it (256 for 224), whatever the weights were evaluated by
    timm         all of it from the pretrained configuration of the tag

An image is resized to a square, not cropped to one: that, too, is the benchmarks'.
"""

from __future__ import annotations

import dataclasses

from fastget.common.preprocessing import CROP, RESIZE, Preprocessing
from fastget.config import Config, NetworkConfig


def preprocessing_of(network: NetworkConfig) -> Preprocessing:
    """What the backbone was trained with. ValueError for a name that nobody knows."""
    if network.name == "small":
        return Preprocessing()
    from fastget.networks import backbones, timm_backbones  # here, since they load torch

    if network.name.startswith(timm_backbones.PREFIX):
        return timm_backbones.timm_preprocessing(network.name)
    transforms = backbones.torchvision_weights(network.name, network.weights).transforms()
    (crop,) = transforms.crop_size
    return Preprocessing(
        round(crop * RESIZE / CROP),
        crop,
        transforms.interpolation.value,
        tuple(transforms.mean),
        tuple(transforms.std),
    )


def filled(config: Config) -> Config:
    """The configuration with the backbone's own values where none is set; those that are set stay.

    With another crop the square keeps its ratio to it. Of features nothing is filled in: they have been made."""
    data = config.data
    if data.name == "features":
        return config
    own = preprocessing_of(config.network)
    if data.crop is not None and data.resize is None:
        own = dataclasses.replace(own, resize=round(data.crop * own.resize / own.crop))
    wanted = {name: value for name, value in dataclasses.asdict(own).items() if getattr(data, name) is None}
    return dataclasses.replace(config, data=dataclasses.replace(data, **wanted)) if wanted else config

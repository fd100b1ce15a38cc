"""What `network.name=timm/NAME` means: what the tag wants of its images, and timm's model without its head.

timm is an extra of its own, imported when a name asks for it. A name is an architecture, or an architecture and a tag
(`resnet50.a1_in1k`) that says which weights; of an architecture alone timm's default tag is meant.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, get_args

from torch import nn

from fastget.common.choices import Interpolation
from fastget.common.preprocessing import Preprocessing
from fastget.common.text import close_matches, first_line
from fastget.networks.weights import State

PREFIX = "timm/"


def _timm(name: str) -> Any:
    try:
        import timm
    except ImportError as error:
        raise ValueError(
            f"network.name={name} needs timm, which cannot be imported ({error}): pip install 'fastget[timm]'"
        ) from error
    return timm


def _configuration(name: str) -> Any:
    """timm's pretrained configuration of a name with its prefix. ValueError offers the nearest ones."""
    timm, tag = _timm(name), name.removeprefix(PREFIX)
    known = [*timm.list_models(), *timm.list_pretrained()]
    if tag in known:
        return timm.get_pretrained_cfg(tag)
    architecture = tag.partition(".")[0]
    tags = timm.list_pretrained(f"{architecture}.*") if architecture in known else []
    close = close_matches(tag, tags, most=5, cutoff=0.0) or close_matches(tag, known, most=3)
    hint = f"did you mean {', '.join(PREFIX + one for one in close)}?" if close else "see timm.list_pretrained()"
    raise ValueError(f"unknown network.name {name!r}: {hint}")


def timm_tag(name: str) -> str:
    """Architecture and tag in full: `resnet50.a1_in1k` of timm/resnet50."""
    found = _configuration(name)
    return f"{found.architecture}.{found.tag}" if found.tag else str(found.architecture)


def timm_preprocessing(name: str) -> Preprocessing:
    """As the pretrained configuration has it; the square that is cropped is 1 / crop_pct as wide as the crop."""
    found = _configuration(name)
    channels, height, width = found.input_size
    if channels != 3 or height != width or found.interpolation not in get_args(Interpolation):
        raise ValueError(
            f"network.name={name} wants images of {channels} channels and {height} x {width} pixels, resized by "
            f"{found.interpolation}: expected 3 channels, a square, and {' or '.join(get_args(Interpolation))}; choose "
            "another backbone"
        )
    return Preprocessing(
        math.floor(width / (found.crop_pct or 1)), width, found.interpolation, tuple(found.mean), tuple(found.std)
    )


def timm_backbone(name: str, pretrained: bool, side: int) -> tuple[nn.Module, int]:
    """The model without its head, pooled as timm pools it, for images of `side` pixels; and the width of its output."""
    timm, found = _timm(name), _configuration(name)
    options: dict[str, Any] = {}
    if found.fixed_input_size and side != found.input_size[1]:
        options["img_size"] = side  # timm resizes the position embedding of its weights
    try:
        model = timm.create_model(timm_tag(name), pretrained=pretrained, num_classes=0, **options)
    except (TypeError, AssertionError) as error:
        if not options:
            raise
        raise ValueError(
            f"network.name={name} cannot be built for data.crop={side} ({first_line(error)}): leave data.resize and "
            f"data.crop to the backbone, which wants {found.input_size[1]} (--set data.resize=none data.crop=none)"
        ) from error
    except Exception as error:  # of the hub's many kinds
        if not pretrained:
            raise
        where = f"huggingface.co/{found.hf_hub_id}" if found.hf_hub_id else found.url or "the model's authors"
        raise ValueError(
            f"cannot load the weights {timm_tag(name)} ({first_line(error)}). On a machine without internet fetch "
            f"them elsewhere, from {where}, and give the file (.safetensors, .pt or .pth): --set network.weights=FILE; "
            "or start from random weights: --set network.weights=none"
        ) from error
    _refuse_cut_patches(model, name, side)
    return model, int(getattr(model, "head_hidden_size", None) or model.num_features)


def _refuse_cut_patches(model: nn.Module, name: str, side: int) -> None:
    """A transformer would leave out the pixels at the edge that fill no patch, unless it pads them."""
    embed = getattr(model, "patch_embed", None)
    cut = getattr(embed, "proj", None)
    if not isinstance(cut, nn.Conv2d) or cut.stride != cut.kernel_size or getattr(embed, "dynamic_img_pad", False):
        return
    patch = cut.kernel_size[0]
    if side % patch:
        near = max(1, round(side / patch)) * patch
        raise ValueError(
            f"network.name={name} cuts images into patches of {patch} pixels, and data.crop={side} is no multiple "
            f"of that: use data.crop={near}, or leave both sizes to the backbone (--set data.resize=none "
            "data.crop=none)"
        )


def timm_reader(model: nn.Module) -> Callable[[State], State]:
    """What brings a state dict, as a model's authors published it or of another image size, to the model's names and
    shapes: timm's own, in the module of the model, where it has one."""
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return lambda state: state
    return lambda state: convert(dict(state), model)

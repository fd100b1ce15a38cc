"""torchvision's JPEG decoder, which is faster than PIL's on small images and lets libjpeg's warnings through.

torchvision 0.29 has announced that its decoders will move to another package. Where they are gone, PIL decodes, and
the check misses damage in mid-stream that PIL is silent about.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

try:
    from torchvision.io import decode_jpeg as _decode
except ImportError:
    _decode = None

decoder: Callable[[Tensor], Tensor] | None = _decode  # (n,) uint8 -> (3, H, W) uint8
warnings.filterwarnings("ignore", message="The image decoding and encoding capabilities of TorchVision")


def decode_jpeg(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 3): the pixels of an encoded image in RGB."""
    if decoder is None:
        with Image.open(io.BytesIO(data.data)) as image:
            return np.array(image)
    return np.asarray(decoder(torch.from_numpy(data)).permute(1, 2, 0).numpy())

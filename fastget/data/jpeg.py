"""JPEG by libjpeg-turbo's own interface: faster than PIL on small images, and libjpeg's warnings are heard.

libjpeg goes on after damage in mid-stream and only warns of it, which PIL and DALI swallow. simplejpeg raises.
"""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image


def decode_jpeg(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 3): the pixels of an encoded image in RGB. What simplejpeg does not take, PIL decodes."""
    try:
        return _decode(data)
    except ValueError:
        with Image.open(io.BytesIO(data.data)) as image:
            return np.array(image.convert("RGB"))


def jpeg_warning(data: bytes) -> str | None:
    """What libjpeg warns of in an image that it decodes all the same; none if nothing, empty if it cannot decode it."""
    try:
        _decode(data)
    except ValueError as error:
        words = str(error)
    else:
        return None
    try:
        simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # a kind of JPEG that it does not take, or one it has no name for
        return ""
    return words


def _decode(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """By libjpeg's exact methods: the pixels are PIL's. Raises ValueError for what libjpeg only warns of, too."""
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False, strict=True)
    return pixels

"""How an image reaches a backbone. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from fastget.common.choices import Interpolation

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
RESIZE, CROP = 256, 224  # of the benchmarks' protocol


@dataclass(frozen=True)
class Preprocessing:
    """Resized to a square, cropped, normalised. It belongs to the backbone: `fastget.networks.preprocessing` knows it.

    The defaults are what every backbone got up to fastget 0.1, whose runs do not tell.
    """

    resize: int = RESIZE  # pixels of both sides
    crop: int = CROP  # of both sides too: at random in training, the centre in evaluation
    interpolation: Interpolation = "bilinear"  # of the resizing, antialiased
    mean: tuple[float, ...] = MEAN  # of the three channels, between 0 and 1
    std: tuple[float, ...] = STD

    @property
    def resizing(self) -> tuple[int, Interpolation]:
        """To how many pixels, and how: what a packed cache must have done."""
        return self.resize, self.interpolation

    @property
    def margin(self) -> int:
        """Pixels by which a crop can move."""
        return self.resize - self.crop

"""How far two labellers of the target agree."""

from __future__ import annotations

from typing import NamedTuple


class Agreement(NamedTuple):
    """Of a method that has two labellers. No label of the target is in it."""

    share: float  # of the images on which both say the same class
    kappa: float  # the same beyond chance
    trust: float  # 0 to 1: how far this makes the method believe what it counts
    effect: str  # what the method does about it, in words

    def numbers(self) -> dict[str, float]:
        """As summary.json and TensorBoard have them."""
        return {"agreement": self.share, "kappa": self.kappa, "trust": self.trust}

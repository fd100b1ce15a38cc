"""Choices that a configuration offers and a module makes: their names, once. No torch here."""

from __future__ import annotations

from typing import Literal

Precision = Literal["auto", "float32", "bfloat16", "float16"]  # of the network
Backend = Literal["auto", "reference", "triton"]  # who computes a step
Interpolation = Literal["bilinear", "bicubic"]  # of an image that is resized
Edges = Literal["plain", "exact"]  # of an image that DALI resizes: DALI's own, or PIL's
Decoder = Literal["auto", "dali", "torchvision", "synthetic"]  # who makes a batch
# what a checkpoint is chosen by: all but `validation`, SSDA's own list for it, need no target labels
Criterion = Literal["entropy", "mutual_information", "neighbourhood_density", "validation"]

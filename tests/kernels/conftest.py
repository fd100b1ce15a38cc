"""The kernels' tests need the interpreter where there is no GPU: it is chosen in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fastget.selftest.interpreter import mend

mend()


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Fixed inputs; the interpreter's numpy may meet inf - inf in lanes that a mask then drops."""
    torch.manual_seed(0)
    with np.errstate(all="ignore"):
        yield

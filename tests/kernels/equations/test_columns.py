"""Column sums against PyTorch's."""

from __future__ import annotations

import pytest
import torch

from fastget.kernels.equations.columns import launch_column_sums
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import error, nan_filled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (65, 17), (130, 1030)], ids=str)
def test_matches_torch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    with nan_filled():
        found = launch_column_sums(x)
    assert found.dtype == torch.float32
    assert error(found, x.double().sum(0)) < 2e-5
    assert torch.equal(launch_column_sums(x.T.contiguous().T), found)


def test_addresses_and_order() -> None:
    x = torch.randn(67, 35)
    with check_addresses():
        launch_column_sums(x[::2, 1:])
    assert_order_free(lambda: (launch_column_sums(x),))

"""The launcher: hooks, the record, bytes, dry runs."""

from __future__ import annotations

import pytest
import torch

from fastget import kernels
from fastget.kernels.launch import HOOKS, Launch, compile_options, record
from tests.kernels.support import empty_prior


def test_record_counts_bytes_and_leaves_no_hook() -> None:
    prior, pi = empty_prior(10), torch.full((10,), 0.1)
    with record() as launches:
        kernels.renew_prior_(prior, pi)
    (launch,) = launches
    assert isinstance(launch, Launch)
    assert (launch.name, launch.grid) == ("prior_kernel", (1,))
    assert launch.bytes == 40 + 48
    assert not HOOKS
    kernels.renew_prior_(prior, pi)
    assert len(launches) == 1


def test_a_dry_run_launches_nothing() -> None:
    mu, pi, health = torch.ones(3, 2), torch.full((3,), 1 / 3), torch.tensor([0, -1])
    e = kernels.expectation(torch.randn(4, 2), mu, mu, mu, pi.log(), 0.1)
    with record(dry=True) as launches:
        kernels.update_memory_(mu, pi, health, e, 0.5, 0.5)
    assert len(launches) == 1
    assert health.tolist() == [0, -1]


def test_hooks_are_removed_after_an_error() -> None:
    with pytest.raises(ValueError, match="tau"), record():
        kernels.posterior(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(4), -1.0)
    assert not HOOKS


def test_options_say_how_to_fuse() -> None:
    assert compile_options(8, 2)["enable_fp_fusion"] is False
    assert compile_options(8, 2, "hip")["enable_fp_fusion"] is False
    assert compile_options(8, 2)["maxnreg"] * 8 * 32 <= 65536
    assert "maxnreg" not in compile_options(4, 2, "hip")

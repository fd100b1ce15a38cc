"""The loader benchmark runs, and its loaders make the batches that they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_loader


def test_every_loader_walks(tmp_path: Path) -> None:
    images = bench_loader.make_photographs(tmp_path, 224, "jpeg", 36)
    makers = bench_loader.loaders(images, tmp_path / "caches")
    results = bench_loader.measure(makers, steps=1, rounds=1)
    assert set(results) == set(makers)
    assert all(cpu > 0 and wall > 0 for cpu, wall in results.values())


def test_what_falls_short_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    results = {bench_loader.BASELINE: (1.0, 1.0), "packed raw": (0.05, 0.05), "packed JPEG": (0.5, 0.5)}
    assert bench_loader.report("jpeg", 500, results) == ["jpeg 500 packed JPEG: 2.0x, needs 5x"]
    assert "20.0x" in capsys.readouterr().out

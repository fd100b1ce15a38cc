"""The self-test's rows about the loaders pass here, and would not if the pixels differed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fastget.loading import dali
from fastget.loading.stream import Stream
from fastget.selftest import loaders as selftest_loaders


def test_rows_pass_on_the_processor() -> None:
    rows = selftest_loaders.checks(torch.device("cpu"))
    assert [name for name, _, _ in rows] == [
        "DALI's jpeg pixels on the processor",
        "DALI's png pixels on the processor",
        "speed on cpu",
    ]
    assert all(passed for _, passed, _ in rows)
    assert "levels of torchvision's" in rows[0][2]


def test_a_pipeline_that_is_off_by_two_levels_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    define = dali.define

    def off(stream: Stream, *args: Any, **options: Any) -> Any:
        mean = tuple(value + 2 / 255 for value in stream.preprocessing.mean)
        made = dataclasses.replace(stream.preprocessing, mean=mean)
        return define(dataclasses.replace(stream, preprocessing=made), *args, **options)

    monkeypatch.setattr(dali, "define", off)
    monkeypatch.setattr(selftest_loaders, "_speed", lambda *_: ("speed", True, ""))
    rows = selftest_loaders.checks(torch.device("cpu"))
    assert [passed for _, passed, _ in rows] == [False, False, True]

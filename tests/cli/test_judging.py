"""Where a comparison of two recordings belongs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from joymigrate.cli._judging import where


@pytest.mark.parametrize(
    ("to", "devices", "chip"),
    [("cpu", {}, "cpu"), ("cpu", {"npu": 1}, "cpu"), ("ascend", {}, "cpu"),
     ("ascend", {"npu": 1}, "ascend"), (None, {"npu": 1}, "ascend")],
)  # fmt: skip
def test_what_ran_on_the_cpu_or_is_asked_for_it_is_about_the_cpu(
    to: str | None, devices: dict[str, int], chip: str
) -> None:
    rank = SimpleNamespace(program={"environment": {"devices": devices}})
    made: Any = SimpleNamespace(ranks=[rank])
    assert where(to, None, None, made, False).chip == chip

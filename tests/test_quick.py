"""What `make quick` leaves out: files that start programs, themselves or by their helpers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import (
    QUICK_EXAMPLES,
    draw_fewer,
    helpers,
    starts_programs,
    take_out_dear,
)

TESTS = Path(__file__).parent
drawn: list[int] = []


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("test_base_install.py", True),  # by its own text
        ("run/serve/engine/test_launch.py", True),  # a helper that is imported by dots
        ("verify/test_faults.py", True),  # a helper's helper
        ("run/serve/evidence/test_rollout.py", False),
        ("test_stats.py", False),
    ],
)
def test_a_file_is_left_out_when_it_or_a_helper_starts_programs(name: str, starts: bool) -> None:
    assert starts_programs(TESTS / name) is starts


def test_helpers_are_found_however_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "near.py").touch()
    file = tmp_path / "inner" / "test_a.py"
    file.write_text(
        "from ..near import thing\nfrom .. import (\n    far,\n    near,\n)\n"
        "from tests.forked import run\nfrom tests import pages\n"
    )
    found = [path.resolve() for path in helpers(file)]
    assert found == [
        (tmp_path / "inner" / ".." / "near.py").resolve(),
        TESTS / "forked.py",
        TESTS / "pages.py",
    ]


@settings(max_examples=400)
@given(st.integers())
def count_up(number: int) -> None:
    drawn.append(number)


class Item:
    """As much of a test as is looked at."""

    obj, cls = staticmethod(count_up), None

    def __init__(self, *marks: str) -> None:
        self.marks = marks

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


def test_a_dear_test_is_taken_out() -> None:
    items: list[Any] = [Item("dear"), Item("gpu")]
    assert [item.marks for item in take_out_dear(items)] == [("dear",)]
    assert [item.marks for item in items] == [("gpu",)]


def test_a_drawn_test_tries_a_few() -> None:
    draw_fewer(Item())  # type: ignore[arg-type]
    count_up()
    assert 0 < len(drawn) <= QUICK_EXAMPLES

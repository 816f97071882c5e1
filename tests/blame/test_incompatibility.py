"""Known incompatibilities: each row has a source and knows its recorded message."""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet

from joymigrate.blame.exceptions import Frame, Raised
from joymigrate.blame.vendor import load
from joymigrate.chips.incompatible import Incompatibility, fits

EVERY = {row.name: row for row in load("ascend").rows}
ROWS = {name: row for name, row in EVERY.items() if row.symptom}  # the others: by versions alone


def recorded(row: Incompatibility) -> Raised:
    """The exception that a row's source reports."""
    kind, _, message = row.says.partition(": ")
    return Raised(kind, message, (Frame(f"/v/site-packages/{row.frame or 'x'}", 1),))


def explains(row: Incompatibility, one: Raised, versions: dict[str, str]) -> bool:
    """Whether an exception is a row's."""
    return row.explains(one.said, [frame.file for frame in one.frames], versions)


def lowest(wanted: str) -> str:
    """A version of a range: the bound that it names and includes."""
    bounds = {one.operator: one.version for one in SpecifierSet(wanted)}
    version = bounds.get(">=") or bounds.get("<=") or bounds.get("==")
    return version or ("4.51.0" if ">" in bounds else "0.1")


def test_there_are_rows() -> None:
    assert len(ROWS) >= 12


@pytest.mark.parametrize("name", EVERY.keys() - ROWS.keys())
def test_versions_alone_tell_where_there_is_no_symptom(name: str) -> None:
    row = EVERY[name]
    versions = {package: lowest(wanted) for package, wanted in row.packages.items()}
    assert row.holds(versions)
    assert not row.holds({**versions, next(iter(row.packages)): "999"}) or not row.sure
    assert not explains(row, Raised("E", "anything", ()), versions)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_knows_its_recorded_message_and_says_where_it_is_from(name: str) -> None:
    row = ROWS[name]
    versions = {package: lowest(wanted) for package, wanted in row.packages.items()}
    assert explains(row, recorded(row), versions), versions
    assert re.match(r"https://|[\w-]+ \d", row.source)
    assert row.why
    assert row.do


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_nothing_where_its_packages_are_not(name: str) -> None:
    row = ROWS[name]
    assert not explains(row, recorded(row), {})
    versions = dict.fromkeys(row.packages, "999")
    bounded = any("<" in wanted for wanted in row.packages.values())
    assert explains(row, recorded(row), versions) is not bounded


@pytest.mark.parametrize("name", ROWS)
def test_no_two_rows_explain_the_same_message(name: str) -> None:
    row = ROWS[name]
    versions = {p: lowest(w) for one in ROWS.values() for p, w in one.packages.items()}
    versions |= {package: lowest(wanted) for package, wanted in row.packages.items()}
    assert [one.name for one in ROWS.values() if explains(one, recorded(row), versions)] == [name]


def test_another_error_of_the_same_file_is_not_explained() -> None:
    frame = Frame("/v/site-packages/torch_npu/npu/amp/grad_scaler.py", 380)
    other = Raised("RuntimeError", "step() has already been called", (frame,))
    assert not explains(ROWS["grad-scaler-fused"], other, {"torch-npu": "2.13.0"})


def test_an_odd_version_is_in_no_range() -> None:
    assert not fits("unknown", ">=1")

"""The package of examples/chip_plugin: what its tutorial makes, and true of the installed torch."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch

from joymigrate.chips.validate import validate
from joymigrate.cli import _chip_files
from tests import pages

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "chip_plugin"
RULES = PLUGIN / "joymigrate_intel" / "rules"
TUTORIAL = ROOT / "docs" / "tutorials" / "add-a-chip.md"


def test_its_folder_is_valid() -> None:
    assert [*validate(RULES), *_chip_files.problems(RULES)] == []


def test_the_tutorial_shows_its_files() -> None:
    shown = [part for part in pages.read(TUTORIAL.read_text()) if isinstance(part, pages.File)]
    ours = [file for file in shown if file.path.startswith("joymigrate-intel/")]
    assert len(ours) == 2
    for file in ours:
        assert (PLUGIN / file.path.removeprefix("joymigrate-intel/")).read_text() == file.text


def test_no_file_of_the_core_knows_the_chip() -> None:
    words = re.compile(r"joymigrate[-_]intel|\bxccl\b|XPUGraph|ZE_AFFINITY_MASK")
    told = [
        str(path)
        for folder in ("joymigrate", "rules/common")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".txt", ".csv")
        and words.search(path.read_text(encoding="utf-8"))
    ]
    assert told == []


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the list is of torch 2.13")
def test_public_names_of_its_list_are_in_torch() -> None:
    names = (RULES / "names.txt").read_text().partition("[torch.xpu]")[2].split()
    public = {name for name in names if not name.startswith("_") and "." not in name}
    # Read from the sources, which define some names for builds with the device alone.
    assert len(public & {*dir(torch.xpu)}) / len(public) > 0.9
    assert {name for name in torch.xpu.__all__ if name not in public} == set()


def test_operators_of_its_list_are_operators_of_torch() -> None:
    known = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()}
    with (RULES / "ops" / "operators.csv").open(encoding="utf-8", newline="") as file:
        listed = [row["op"] for row in csv.DictReader(file)]
    unknown = {name for name in listed if name not in known}
    assert len(listed) > 800
    assert len(unknown) / len(listed) < 0.02, sorted(unknown)

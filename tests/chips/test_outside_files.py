"""`chips validate` reads every file of the folder with the function that uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.cli._chip_files import READERS, problems

CHIP = "name: acme\ntitle: Acme\ndevice: acm\nbackend: accl\n"
WRONG = {
    "ops/operators.yaml": ("ops: {aten::mm: {dtypez: [float32]}}", "dtypez"),
    "ops/operators.csv": ("op,colour\naten::mm,red\n", "colour"),
    "tolerance.yaml": ("schema: joymigrate.tolerance/1\noperatorz: {}", "operatorz"),
    "topology.yaml": ("kinds: [{name: a-8, cardz: 8}]", "cardz"),
    "monitor.yaml": ("command: [acm-smi]\nrow: '(?P<index>.)'", "(?P<util>…)"),
    "kernels.yaml": (
        "schema: joymigrate.chip-kernels/1\nimplementations: [{op: rms_norm}]",
        "'function' is missing",
    ),
    "advice.yaml": ("rulez: []", "rules"),
    "serve.yaml": (
        "schema: joymigrate.chip-serve/1\nengines: {own: {program: own}}",
        "'module' is missing",
    ),
    "image.yaml": ("schema: joymigrate.image/1\nbse: acme/base:1", "bse"),
}


def test_there_is_a_mistake_for_every_reader() -> None:
    assert {*WRONG} == {*READERS}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_mistake_is_named_with_its_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "chip.yaml").write_text(CHIP)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    text, word = WRONG[name]
    (tmp_path / name).write_text(text)
    (found,) = problems(tmp_path)
    assert found.path == str(tmp_path / name)
    assert word in f"{found.key} {found.what}"


def test_a_row_that_is_no_pattern_is_named(tmp_path: Path) -> None:
    (tmp_path / "monitor.yaml").write_text("command: [acm-smi]\nrow: '(?P<index>'")
    (found,) = problems(tmp_path)
    assert "is no pattern" in found.what

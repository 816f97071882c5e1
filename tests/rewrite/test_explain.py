"""`scan --why`: the lines that decided about a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.cli._why import explain_place
from joymigrate.errors import JoyError
from joymigrate.model import Scan
from joymigrate.rewrite import scan
from tests.rewrite.projects import write

FILES = {
    "conf.py": 'DEVICE = "cuda"  # joymigrate: ignore\n',
    "main.py": 'import torch\nfrom conf import DEVICE\nif DEVICE == "cuda":\n    print(1)\n',
    "own.py": 'import torch\nWHERE = "cuda"\nx = torch.ones(1).to(WHERE)\n',
}


def look(root: Path) -> Scan:
    return scan([write(root, FILES)], chip=chips.target(None), origin=chips.origin())


def test_what_holds_a_place_is_told_line_by_line(tmp_path: Path) -> None:
    lines = explain_place(look(tmp_path), str(tmp_path / "main.py:3"), "en").splitlines()
    assert lines[0] == 'main.py:3:14: JM111 `"cuda"` stays'
    assert [each.split()[0] for each in lines[2:]] == ["conf.py:1", "main.py:2", "main.py:3"]
    assert lines[3].endswith("from conf import DEVICE    [imported]")


def test_what_moves_a_place_ends_where_it_is_taken(tmp_path: Path) -> None:
    lines = explain_place(look(tmp_path), "own.py:2", "en").splitlines()
    assert lines[0].endswith("moves")
    assert lines[-1].strip().startswith("own.py:3")
    assert "taken as a device" in lines[-1]


def test_a_line_without_a_finding_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="nothing was found in this line"):
        explain_place(look(tmp_path), "own.py:1000", "en")
    with pytest.raises(JoyError, match="no place"):
        explain_place(look(tmp_path), "own.py", "en")

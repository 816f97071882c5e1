"""Mentions that stay are listed with their kind, in every kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.rewrite.project import scan


def kept(root: Path, name: str, text: str) -> list[tuple[int, str, str]]:
    (root / name).write_text(text)
    found = scan(
        [root], chip=chips.get("ascend"), origin=chips.get("nvidia"), jobs=1, want_kept=True
    )
    return [(each.line, each.text, each.kind) for each in found.kept]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.sh", "# cuda\npython a.py --no-cuda\n", [(1, "cuda", "comment"), (2, "cuda", "text")]),
        ("a.yaml", "device: cuda  # cuda\n", [(1, "cuda", "comment")]),
        ("a.py", '"""cuda"""\nuse_cuda = 1\n', [(1, "cuda", "docstring"), (2, "use_cuda", "name")]),
    ],
)
def test_what_stays_has_a_kind(
    tmp_path: Path, name: str, text: str, expected: list[tuple[int, str, str]]
) -> None:
    assert kept(tmp_path, name, text) == expected


def test_lines_with_a_finding_in_a_notebook_are_no_mentions(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": ["import torch\n", "torch.zeros(1).cuda()"]}]
    cells.append({"cell_type": "markdown", "source": ["on cuda"]})
    found = kept(tmp_path, "a.ipynb", json.dumps({"cells": cells}, indent=1))
    assert [text for _, text, _ in found] == ["cuda"]

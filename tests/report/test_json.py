"""The contract joymigrate.scan/1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.model import KeptMention, Skipped, Tier
from joymigrate.report import json_
from tests.report.build import result_of, site, write


def test_the_document_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a.cuda()\nb.cuda(1)\n"})
    found = result_of(
        root,
        site(root, "a.py", "a.cuda()", "a.npu()"),
        site(root, "a.py", "b.cuda(1)", reason="unknown"),
        skipped=(Skipped("big.py", "too large"),),
    )
    document = json.loads(json_.render(found))
    assert document["schema"] == "joymigrate.scan/1"
    assert document["to"] == "chip"
    assert document["root"] == root.as_posix()
    assert document["files"]["scanned"] == 1
    assert document["files"]["skipped"] == [{"path": "big.py", "reason": "too large"}]
    assert document["summary"]["by_rule"] == {"JM101": 2}
    assert [document["summary"][tier.value] for tier in Tier] == [1, 0, 1]
    first, second = document["findings"]
    expected = {
        "rule": "JM101", "name": "device-module", "tier": "safe", "path": "a.py", "line": 1,
        "column": 1, "end_line": 1, "end_column": 9, "message": "the origin's device",
        "before": "a.cuda()", "after": "a.npu()", "reason": None,
    }  # fmt: skip
    assert {key: first[key] for key in expected} == expected
    assert (second["after"], second["reason"]) == (None, "unknown")
    assert "cell" not in first


def test_a_notebook_finding_has_its_cell(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a.cuda()\n"})
    one = replace(site(root, "a.py", "a.cuda()"), cell=0, file_line=7)
    (finding,) = json.loads(json_.render(result_of(root, one)))["findings"]
    assert (finding["cell"], finding["line"], finding["file_line"]) == (0, 1, 7)


def test_text_stays_readable(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "模型.cuda()\n"})
    assert "模型.cuda()" in json_.render(result_of(root, site(root, "a.py", "模型.cuda()")))


def test_a_scan_survives_writing_and_reading(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a.cuda()\nb.cuda(1)\n"})
    found = result_of(
        root,
        site(root, "a.py", "a.cuda()", "a.npu()"),
        replace(site(root, "a.py", "b.cuda(1)"), cell=3, file_line=9, area="amp", weight=5.0),
        skipped=(Skipped("big.py", "too large"),),
        kept=(KeptMention("a.py", 1, 1, "cuda", "comment"),),
        unused_ignores=(("a.py", 2, "# joymigrate: ignore"),),
        suppressed=4,
        lines=2,
        show_kept=True,
    )
    assert json_.read(json.loads(json_.render(found)), "a.json") == found.scan


@pytest.mark.parametrize("document", [{}, {"files": 3}, {"files": {}, "findings": [{}]}])
def test_another_document_is_one_clear_error(document: dict[str, object]) -> None:
    with pytest.raises(JoyError, match=r"not a joymigrate\.scan/1 document"):
        json_.read(document, "a.json")

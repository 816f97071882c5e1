"""SARIF: valid, with fixes that write what the edits write and fingerprints that stay."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from joymigrate.model import Edit, Skipped, Tier
from joymigrate.report import sarif
from joymigrate.report.result import ScanResult
from joymigrate.rewrite.source import NEWLINE
from tests.report.build import result_of, site, write
from tests.report.sarif_schema import LOG

OFFICIAL = os.environ.get("JOYMIGRATE_SARIF_SCHEMA")
SCHEMAS: dict[str, dict[str, Any]] = {"reduced": LOG}
if OFFICIAL:
    SCHEMAS["official"] = json.loads(Path(OFFICIAL).read_text(encoding="utf-8"))


def sample(root: Path, head: str = "") -> ScanResult:
    """One result of each kind, below `head`."""
    lines = f"{head}import torch\n模型 = x.cuda()\ny = torch.cuda.nccl\nf(\n  'cuda')\n"
    write(root, {"a b/数 据.py": lines, "n.ipynb": '{"cells": []}\n'})
    path = "a b/数 据.py"
    return result_of(
        root,
        site(root, path, ".cuda()", ".npu()"),
        site(root, path, "torch.cuda.nccl", reason="use a[0](x)"),
        site(root, path, "f(\n  'cuda')", "f('npu')", tier=Tier.UNSAFE),
        replace(site(root, "n.ipynb", "cells", "c"), cell=0, line=1, end_line=2, file_line=4),
        site(root, "n.ipynb", "{", rule="JM000", name="unreadable", message="not read"),
        skipped=(Skipped("a b/c.bin", "binary"),),
    )


def run_of(found: ScanResult) -> dict[str, Any]:
    return dict(json.loads(sarif.render(found))["runs"][0])


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_log_is_valid(tmp_path: Path, name: str) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.validators.validator_for(schema)(schema)
    log = json.loads(sarif.render(sample(tmp_path)))
    assert [error.message for error in validator.iter_errors(log)] == []


def test_a_log_that_is_not_valid_is_refused() -> None:
    broken = {"version": "2.1.0", "runs": [{"tool": {"driver": {}}}]}
    with pytest.raises(jsonschema.ValidationError, match="'name' is a required property"):
        jsonschema.validate(broken, LOG)


def test_a_fix_writes_what_the_edits_write(tmp_path: Path) -> None:
    found = sample(tmp_path)
    text = (tmp_path / "a b/数 据.py").read_text(encoding="utf-8")
    results = run_of(found)["results"]
    fixes = [r["fixes"][0] for r in results if "fixes" in r and "cell" not in r["properties"]]
    written = [fixed(text, fix) for fix in fixes]
    assert written == [text.replace(".cuda()", ".npu()"), text.replace("f(\n  'cuda')", "f('npu')")]


def fixed(text: str, fix: dict[str, Any]) -> str:
    """The text after one fix, by lines and columns as a viewer applies it."""
    starts = [0, *(match.end() for match in NEWLINE.finditer(text))]
    (change,) = fix["artifactChanges"]
    for one in sorted(change["replacements"], key=lambda r: -r["deletedRegion"]["startLine"]):
        region = one["deletedRegion"]
        start = starts[region["startLine"] - 1] + region["startColumn"] - 1
        end = starts[region["endLine"] - 1] + region["endColumn"] - 1
        text = text[:start] + one["insertedContent"]["text"] + text[end:]
    return text


def test_a_fix_with_several_edits_is_one_fix(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a\nb\n"})
    one = replace(site(root, "a.py", "a", "A"), edits=(Edit(0, 1, b"A"), Edit(2, 3, b"B")))
    (result,) = run_of(result_of(root, one))["results"]
    assert fixed("a\nb\n", result["fixes"][0]) == "A\nB\n"


def test_fingerprints_survive_line_shifts(tmp_path: Path) -> None:
    def marks(root: Path, head: str) -> list[str]:
        results = run_of(sample(root, head))["results"]
        return [one["partialFingerprints"]["joymigrate/v1"] for one in results]

    before = marks(tmp_path / "one", "")
    assert marks(tmp_path / "two", "# new\n\n\n") == before
    assert len(set(before)) == len(before)


def test_uris_are_encoded_and_relative_to_the_working_folder(tmp_path: Path) -> None:
    found = replace(sample(tmp_path / "src"), folder=tmp_path)
    run = run_of(found)
    location = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "src/a%20b/%E6%95%B0%20%E6%8D%AE.py", "uriBaseId": "SRCROOT"}
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == tmp_path.as_uri() + "/"


def test_rules_carry_their_help(tmp_path: Path) -> None:
    driver = run_of(sample(tmp_path))["tool"]["driver"]
    rule = next(one for one in driver["rules"] if one["id"] == "JM101")
    assert "Every device has a module." in rule["help"]["text"]
    assert "https://example.org/rule" in rule["help"]["markdown"]
    results = run_of(sample(tmp_path))["results"]
    assert all(driver["rules"][one["ruleIndex"]]["id"] == one["ruleId"] for one in results)


def test_levels_tell_what_a_tool_does_from_what_people_do(tmp_path: Path) -> None:
    results = run_of(sample(tmp_path))["results"]
    assert [one["level"] for one in results] == ["note", "warning", "warning", "error", "note"]


def test_brackets_in_a_message_are_no_link(tmp_path: Path) -> None:
    texts = [one["message"]["text"] for one in run_of(sample(tmp_path))["results"]]
    assert texts[1] == r"the origin's device (use a\[0\](x))"


def test_a_notebook_result_stands_on_its_line_in_the_file(tmp_path: Path) -> None:
    one = next(r for r in run_of(sample(tmp_path))["results"] if "cell" in r["properties"])
    region = one["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 4, "endLine": 5}
    assert fixed('{"cells": []}', one["fixes"][0]) == '{"c": []}'

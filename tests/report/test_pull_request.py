"""The page for a reviewer: what changed, what ran where, what was not looked at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate.ledger import Ledger, Step
from joymigrate.ledger.tree import Change
from joymigrate.report import pull_request
from tests.agent.test_next import journey, passed
from tests.cli.joy import Joy, joy_with

PROGRAM = "import torch\n\nx = torch.zeros(3).cuda()\ny = torch.cuda.get_device_capability()\n"


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str]) -> Joy:
    return joy_with(capsys)


@pytest.fixture
def project(tmp_path: Path, joy: Joy) -> Path:
    (tmp_path / "joymigrate.toml").write_text("")
    (tmp_path / "a.py").write_text(PROGRAM)
    assert joy("rewrite", str(tmp_path), "--style", "agnostic").code == 0
    return tmp_path


def test_rules_and_patches_and_hand_edits_stand_side_by_side(project: Path, joy: Joy) -> None:
    ledger = Ledger.of(project)
    before = (project / "a.py").read_bytes()
    details = {"author": "agent | x", "item": "a.py:5", "judges": ["the check of the tree"]}
    ledger.apply([Change("a.py", before, before + b"z = 1\n")], Step("patch", details=details))
    page = joy("report", str(project), "--pull-request").out
    assert "| `a.py` | 1 × `.cuda()` → `.to(jm.device())` | JM110: " in page
    assert "| `joymigrate_device.py` | written as a whole |  |" in page
    assert "| `a.py` | a.py:5 (agent \\| x) | the check of the tree |" in page
    (project / "a.py").write_bytes(before)
    page = joy("report", str(project), "--pull-request").out
    assert "| `a.py` | edited by hand behind the last step |  |" in page
    assert "Nothing was run" in page
    assert "- Nothing was measured on the chip itself." in page


def test_a_journey_says_what_ran_where_and_what_nobody_looked_at(project: Path, joy: Joy) -> None:
    site = {"path": "a.py", "line": 4, "rule": "JM107", "message": "capability"}
    made = passed(sites=[site], not_run=["a.py:9"])
    missed = [{"what": "steps", "count": 3, "reason": "after the recorded steps"}]
    verify = replace(made[2], figures={**made[2].figures, "uncovered": missed})
    page = pull_request.write(Ledger.of(project), to_document(made[0], made[1], verify))
    assert "| rehearse | the simulated chip: the vendor's package, no hardware | pass |" in page
    assert "Run it again: `joymigrate migrate . --entry 'python train.py' --to ascend`" in page
    gaps = page.partition("## What was not looked at")[2]
    assert "- `a.py:4`: JM107, left to people: capability" in gaps
    assert "- `a.py:9`: rewritten, and no run reached it" in gaps
    assert "- 3 × steps: after the recorded steps" in gaps


def to_document(*outcomes: object) -> dict[str, object]:
    from joymigrate.journey.model import to_json

    return json.loads(json.dumps(to_json(journey(*outcomes))))  # type: ignore[arg-type]


def test_a_rolled_back_step_is_no_change(project: Path, joy: Joy) -> None:
    assert joy("rollback", "--path", str(project)).code in (0, 2)
    ledger = Ledger.of(project)
    if ledger.latest():
        ledger.rollback()
    assert "Nothing was changed." in joy("report", str(project), "--pull-request").out


def test_the_page_is_chinese_on_request_and_short(project: Path, joy: Joy) -> None:
    page = joy("report", str(project), "--pull-request", "--lang", "zh").out
    assert "## 未检查的内容" in page
    assert len(page) < 4_000


def test_a_file_has_no_page_for_a_reviewer(project: Path, joy: Joy) -> None:
    told = joy("report", str(project / "a.py"), "--pull-request")
    assert (told.code, "name its folder" in told.err) == (2, True)

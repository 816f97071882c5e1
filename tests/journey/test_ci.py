"""What `migrate --ci` writes for a pull request: SARIF, JUnit, and Markdown that fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from joymigrate.cli.migrate import MOST_COMMENT
from joymigrate.report.journey_sarif import merge
from joymigrate.report.journey_text import junit, markdown
from joymigrate.report.renderers.md import shorten
from tests.report.sarif_schema import LOG

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was scanned and rewritten in CI."""
    folder = tmp_path_factory.mktemp("ci") / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\nx = torch.ones(2).cuda()\n")
    (folder / "pyproject.toml").write_text("[tool.joymigrate]\n")
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "migrate", str(folder), "--ci", "--ci-output",
         str(folder.parent / "ci")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\n  " not in done.stderr  # no progress
    return folder


def the_journey(project: Path) -> Any:
    return json.loads((project / ".joymigrate/journey/journey.json").read_text())


def test_junit_has_a_case_for_every_step_with_its_time(project: Path) -> None:
    suite = ET.parse(project.parent / "ci" / "junit.xml").getroot()
    cases = suite.findall("testcase")
    assert [case.attrib["name"] for case in cases] == [
        *("scan", "baseline", "rewrite", "rehearse", "coverage", "advice", "verify", "train"),
        "serve",
    ]
    times = {case.attrib["name"]: float(case.attrib["time"]) for case in cases}
    assert times["scan"] > 0
    assert times["rewrite"] > 0
    assert float(suite.attrib["time"]) == pytest.approx(sum(times.values()), abs=0.05)


def test_sarif_is_valid_and_holds_the_findings_of_the_scan(project: Path) -> None:
    log = json.loads((project.parent / "ci" / "scan.sarif").read_text())
    jsonschema.validate(log, LOG)
    assert [one["ruleId"] for one in log["runs"][0]["results"]] == ["JM001", "JM110"]


def found(document: Any) -> Any:
    """The journey as if the program had been run on the chip as well."""
    steps = {one["name"]: one for one in document["journey"]}
    steps["rehearse"]["figures"] = {
        "found_traps": [
            {"where": "train.py:3", "message": "refused", "remedy": "drop it", "count": 2},
            {"where": "?", "message": "float64", "remedy": "", "count": 1},
        ],
        "fallback_ops": ["aten::a", "aten::b"],
    }
    steps["rehearse"] |= {"status": "stopped", "summary": "ended with exit code 1"}
    steps["coverage"]["figures"] = {
        "lacking": [{"op": "aten::b", "status": "missing", "calls": 3, "where": "train.py:2 x"}]
    }
    steps["verify"] |= {"verdict": "fail"}
    first = {"module": "m", "phase": "forward", "metric": "l2", "value": 1.0, "limit": 0.1}
    steps["verify"]["figures"] = {"first_divergence": first}
    return document


def test_sarif_tells_what_only_running_the_program_could_tell(project: Path) -> None:
    scan = json.loads((project.parent / "ci" / "scan.sarif").read_text())
    log = merge(scan, found(the_journey(project)), lambda path, line: line - 1, "train.py")
    jsonschema.validate(log, LOG)
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    found_by_scan = len(scan["runs"][0]["results"])
    results = log["runs"][0]["results"][found_by_scan:]
    assert all(rules[one["ruleIndex"]]["id"] == one["ruleId"] for one in results)
    told = [
        (
            one["ruleId"].removeprefix("migrate."),
            one["locations"][0]["physicalLocation"]["region"]["startLine"],
            one["message"]["text"],
        )
        for one in results
    ]
    assert told == [
        ("trap", 2, "refused. Help: drop it"),
        ("trap", 1, "float64."),
        ("uncovered", 1, "aten::b is missing on ascend, 3 calls"),
        ("fallback", 1, "aten::a runs on the CPU"),
        ("divergence", 1, "m (forward): l2 1.0, the limit is 0.1"),
        ("held", 1, "rehearse: ended with exit code 1"),
    ]


def test_a_comment_fits_whatever_a_step_had_to_say(project: Path) -> None:
    document = the_journey(project)
    assert markdown(document).startswith("## ")
    for one in document["journey"]:
        one["help"], one["status"] = "a line of a long log\n" * 2000, "stopped"
    text = shorten(markdown(document), MOST_COMMENT)
    assert MOST_COMMENT - 200 < len(text) <= MOST_COMMENT
    assert text.count("```") % 2 == 0
    assert text.index("| rehearse") < text.index("a line of a long log") or "| " in text[:2000]


def test_junit_survives_what_programs_print(project: Path) -> None:
    document = the_journey(project)
    document["journey"][0] |= {
        "status": "failed",
        "summary": 'a "b" <c> \x00\x1b[1m',
        "help": "]]>",
    }
    case = ET.fromstring(junit(document)).find("testcase")
    assert case is not None
    failure = case.find("failure")
    assert failure is not None
    assert failure.text == "]]>"

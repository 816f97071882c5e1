"""A journey as a page, as Markdown and as JUnit."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate.journey.model import (
    Journey,
    JourneyRequest,
    StepOutcome,
    StepStatus,
    outcomes_from,
    to_json,
)
from joymigrate.language import Language, speaking
from joymigrate.report import journey_html, journey_text


@pytest.fixture
def journey(tmp_path: Path) -> Journey:
    folder = tmp_path / "journey"
    (folder / "train").mkdir(parents=True)
    for name, scale in (("baseline", 1.0), ("chip", 1.001)):
        rows = [json.dumps({"step": n, "loss": scale * (3 - n)}) for n in range(3)]
        (folder / f"train/{name}.jsonl").write_text("\n".join(rows) + "\n")
    request = JourneyRequest(tmp_path / "p<roject", ("python", "train.py"), "ascend")
    outcomes = (
        StepOutcome(
            "scan",
            StepStatus.DONE,
            "3 sites",
            {"sites": 3, "safe": 2, "unsafe": 1, "by_hand": 0, "automatic_pct": 66.7},
            ("scan/scan.json",),
            ("joymigrate scan .",),
            "pass",
        ),
        StepOutcome(
            "rehearse",
            StepStatus.STOPPED,
            "ended with 1 \x00 | <b>",
            help="drop it",
            verdict="fail",
        ),
        StepOutcome("train", StepStatus.DONE, "3 losses", verdict="pass"),
        StepOutcome("serve", StepStatus.SKIPPED, "no model"),
    )
    return Journey(request, folder, "rehearsed", outcomes, rewrite_step="0002")


def test_json_reads_back(journey: Journey) -> None:
    document = json.loads(json.dumps(to_json(journey)))
    assert document["schema"] == "joymigrate.journey/1"
    assert document["verdict"] == "fail"
    assert document["rehearsal"] is True
    assert outcomes_from(document) == journey.outcomes


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_escapes_links_and_draws(journey: Journey, lang: str) -> None:
    with speaking(Language(lang)):
        text = journey_html.render(to_json(journey), journey.folder, link="journey/")
    assert "<b>" not in text.split("ended with 1")[1][:40]
    assert 'href="journey/scan/scan.json"' in text
    assert "<svg" in text
    assert "joymigrate rollback 0002" in text
    assert ("迁移过程" in text) == (lang == "zh")


@pytest.mark.parametrize("whose", ["environment", "program"])
def test_what_this_machine_lacks_is_said_in_the_first_line(journey: Journey, whose: str) -> None:
    stop = {
        "line": "a.py:2",
        "message": "No such file",
        "whose": whose,
        "how_known": "",
        "next": "",
    }
    held = StepOutcome("baseline", StepStatus.STOPPED, "", {"stop": stop}, verdict="fail")
    pending = StepOutcome("rewrite", StepStatus.PENDING, "not reached")
    first, *_ = journey_text.text(to_json(replace(journey, outcomes=(held, pending)))).splitlines()
    assert "stopped before anything was changed" in first
    assert ("something is missing on this machine" in first) == (whose == "environment")


def test_a_journey_that_was_to_end_early_did_not_stop(journey: Journey) -> None:
    figures = {"of": "original", "stand_ins": True, "device": "CPU", "losses": 3}
    done = StepOutcome("baseline", StepStatus.DONE, "", figures, verdict="pass")
    pending = StepOutcome("rewrite", StepStatus.PENDING, "not reached")
    said = journey_text.text(to_json(replace(journey, outcomes=(done, pending))))
    assert said.splitlines()[0].endswith(": nothing was changed so far")
    assert "the original runs here by stand-ins for its GPU" in said


def test_junit_has_one_case_per_step(journey: Journey) -> None:
    suite = ET.fromstring(journey_text.junit(to_json(journey)))
    assert suite.attrib["tests"] == "4"
    assert suite.attrib["failures"] == "1"
    assert suite.attrib["skipped"] == "1"
    failure = suite.find("./testcase[@name='rehearse']/failure")
    assert failure is not None
    assert failure.text == "drop it"


def test_markdown_keeps_its_table(journey: Journey) -> None:
    text = journey_text.markdown(to_json(journey))
    rows = [line for line in text.splitlines() if line.startswith("| rehearse")]
    assert len(rows) == 1
    assert "\\|" in rows[0]


def test_text_says_what_to_do_and_the_way_back(journey: Journey) -> None:
    text = journey_text.text(to_json(journey))
    assert "drop it" in text
    assert "rollback 0002" in text
    assert "simulated" in text


def test_what_the_last_run_left_is_said(journey: Journey) -> None:
    left = tuple(f"run{number}" for number in range(5))
    text = journey_text.text(to_json(replace(journey, left=left)))
    assert "The last run left run0, run1, run2, run3, … in the project" in " ".join(text.split())
    assert "run left" not in journey_text.text(to_json(journey))

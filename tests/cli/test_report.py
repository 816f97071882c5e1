"""The command `report`: a JSON result in another format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.joy import Joy, joy_with

SAMPLE = Path(__file__).parents[1] / "samples" / "trainer"


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Joy:
    shutil.copytree(SAMPLE, tmp_path / "trainer")
    monkeypatch.chdir(tmp_path / "trainer")
    monkeypatch.setattr("joymigrate.cli.scan.now", lambda: "TODAY")
    return joy_with(capsys)


@pytest.mark.parametrize("format", ["text", "md", "sarif", "github", "html"])
def test_a_written_scan_shows_as_the_scan_itself(joy: Joy, format: str) -> None:
    joy("scan", ".", "--format", "json", "-o", "../scan.json")
    told = joy("report", "../scan.json", "--format", format)
    direct = joy("scan", ".", "--format", format, "-q")
    assert told.code == 0
    assert told.out == direct.out


def test_without_a_format_the_files_ending_or_the_terminal_decides(
    joy: Joy, monkeypatch: pytest.MonkeyPatch
) -> None:
    joy("scan", ".", "--format", "json", "-o", "scan.json", "--exclude", "scan.json")
    assert joy("report", "scan.json").out.startswith("<!doctype html>")
    joy("report", "scan.json", "-o", "scan.md")
    assert Path("scan.md").read_text().startswith("# Migration readiness")
    joy("report", "scan.json", "-o", "scan.sarif.json")
    assert "runs" in json.loads(Path("scan.sarif.json").read_text())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "<" not in joy("report", "scan.json").out.splitlines()[0]


def test_a_baseline_and_statistics_are_remembered(joy: Joy) -> None:
    joy("scan", ".", "--write-baseline", "known.json")
    joy("scan", ".", "--baseline", "known.json", "--format", "json", "-o", "scan.json")
    assert joy("report", "scan.json", "--format", "text").out.startswith("Nothing new: ")


def test_sources_may_have_moved(joy: Joy) -> None:
    joy("scan", ".", "--format", "json", "-o", "../scan.json")
    document = json.loads(Path("../scan.json").read_text())
    Path("../scan.json").write_text(json.dumps({**document, "root": "/nowhere"}))
    without = joy("report", "../scan.json", "--format", "md").out
    assert "```diff" not in without
    assert "```diff" in joy("report", "../scan.json", "--format", "md", "--root", ".").out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a document"),
        ('{"schema": "joymigrate.scn/1"}', "Did you mean 'joymigrate.scan/1'?"),
        ('{"schema": "joymigrate.scan/1"}', "not a joymigrate.scan/1 document"),
        (None, "cannot read"),
    ],
)
def test_a_mistake_is_one_clear_error(joy: Joy, text: str | None, message: str) -> None:
    if text is not None:
        Path("r.json").write_text(text)
    told = joy("report", "r.json")
    assert (told.code, told.out) == (2, "")
    assert message in told.err


def journey(root: Path) -> Path:
    """A project with a journey on disk."""
    folder = root / ".joymigrate" / "journey"
    folder.mkdir(parents=True)
    step = {"name": "scan", "status": "done", "summary": "3 sites", "figures": {},
            "evidence": ["scan/scan.json"], "commands": [], "verdict": "pass", "help": "",
            "seconds": 1.0}  # fmt: skip
    document = {"schema": "joymigrate.journey/1", "verdict": "pass", "grade": "rehearsed",
                "chip": "ascend", "project": str(root), "entry": [], "style": "agnostic",
                "steps": "0-2", "rewrite_step": None, "rehearsal": True,
                "journey": [step]}  # fmt: skip
    (folder / "journey.json").write_text(json.dumps(document))
    return folder


def test_a_project_shows_its_journey_with_links_that_lead_there(joy: Joy, tmp_path: Path) -> None:
    journey(tmp_path / "trainer")
    assert joy("report", ".", "-o", "../out.html").code == 0
    text = (tmp_path / "out.html").read_text()
    assert 'href="trainer/.joymigrate/journey/scan/scan.json"' in text
    assert "3 sites" in joy("report", "--format", "text").out
    file = ".joymigrate/journey/journey.json"
    assert joy("report", file, "--format", "md").out == joy("report", "--format", "md").out
    told = joy("report", "--format", "sarif")
    assert told.code == 2
    assert "does not know 'sarif'" in told.err


def test_a_project_without_a_journey_is_one_clear_error(joy: Joy) -> None:
    told = joy("report", ".")
    assert told.code == 2
    assert "no journey was made" in told.err

"""What a user sees of a journey while it goes, and at its end on a terminal."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from joymigrate.cli._progress import JourneyProgress, last_words
from joymigrate.journey.model import Journey, JourneyRequest, StepOutcome, StepStatus, to_json
from joymigrate.journey.plan import plan
from joymigrate.report.journey_closing import closing

REQUEST = JourneyRequest(Path("/p"), ("python", "train.py"), "ascend")
SCAN, BASELINE = plan(REQUEST)[:2]
DONE = StepOutcome("scan", StepStatus.DONE, "3 sites", seconds=1.25)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_a_step_is_one_line_when_it_ended() -> None:
    out = io.StringIO()
    going = JourneyProgress(quiet=False, stream=out)
    going("begin", SCAN, None)
    assert out.getvalue() == ""
    going("end", SCAN, DONE)
    going("kept", BASELINE, StepOutcome("baseline", StepStatus.DONE, "ran", seconds=9))
    assert out.getvalue() == "  ok    scan       3 sites  (1.2 s)\n  kept  baseline   ran\n"


def test_on_a_terminal_the_running_step_is_written_over_by_its_result() -> None:
    out = Terminal()
    going = JourneyProgress(quiet=False, stream=out)
    going("begin", SCAN, None)
    going("end", SCAN, DONE)
    first, *_, last = out.getvalue().split("\r\033[K")[1:]
    assert first == "  …     scan       find what depends on the current accelerator  0 s"
    assert last == "  ok    scan       3 sites  (1.2 s)\n"


def begun(out: io.StringIO, lines: int, **options: bool) -> str:
    """What is written while a step runs, until so many lines are there."""
    written = threading.Event()
    write = out.write

    def heard(text: str) -> int:
        done = write(text)
        if out.getvalue().count("\n") >= lines:
            written.set()
        return done

    out.write = heard  # type: ignore[method-assign]
    going = JourneyProgress(stream=out, patience_seconds=0.01, **{"quiet": False, **options})
    going("begin", BASELINE, None)
    assert written.wait(30)
    going.rest()
    return out.getvalue()


def test_a_program_that_may_never_end_is_told_how_to_bound_it() -> None:
    first, second = begun(io.StringIO(), 2).splitlines()[:2]
    assert first.startswith("  …     'baseline' still runs after 0 min. A program that never ends")
    assert "--entry" in first
    assert "--once leaves out the baseline's further runs" in first
    assert "Ctrl-C" in first
    assert second == first


@pytest.mark.dear
def test_on_a_terminal_the_warning_stays_above_the_running_line() -> None:
    said = begun(Terminal(), 1)
    warning = next(line for line in said.split("\r\033[K") if "still runs" in line)
    assert warning.endswith("\n")


def test_in_ci_the_warning_is_the_only_line() -> None:
    assert begun(io.StringIO(), 1, quiet=True, warns=True).startswith("  …     'baseline' still")


def test_a_step_that_runs_no_program_warns_of_nothing() -> None:
    out = io.StringIO()
    going = JourneyProgress(quiet=False, stream=out, patience_seconds=0)
    going("begin", SCAN, None)
    going.rest()
    assert out.getvalue() == ""


def test_quiet_says_nothing_and_still_knows_what_is_kept() -> None:
    out = Terminal()
    going = JourneyProgress(quiet=True, stream=out)
    going("end", SCAN, DONE)
    going("begin", BASELINE, None)
    said = going.interrupted()
    assert out.getvalue() == ""
    assert said.splitlines() == [
        "interrupted in 'baseline'; done and kept: scan",
        "  help: the same command goes on from there",
    ]


def test_the_closing_block_says_what_to_do_and_repeats_no_step() -> None:
    site = {"path": "train.py", "line": 7, "rule": "JM107", "message": "capability " * 20}
    outcomes = (
        DONE,
        StepOutcome(
            "rewrite", StepStatus.DONE, "4 edits", {"left": 9, "sites": [site] * 9}, verdict="pass"
        ),
        StepOutcome(
            "rehearse", StepStatus.STOPPED, "ran", held="ended with 1", help="drop it\n" * 30,
            verdict="fail",
        ),
    )  # fmt: skip
    journey = Journey(REQUEST, Path("/p/j"), "rehearsed", outcomes, rewrite_step="0003")
    text = closing(to_json(journey), "j/report.html")
    lines = text.splitlines()
    assert "3 sites" not in text
    assert lines.count("  drop it") == 14
    assert "  …" in lines
    assert "Left to you: 9 sites" in text
    assert text.count("train.py:7  JM107") == 5
    assert "joymigrate rollback 0003" in text
    assert lines[-1] == "Report: j/report.html"
    assert len(lines) < 40
    commands = [line for line in lines if "joymigrate " in line]  # whole, to be copied
    assert max(len(line) for line in lines if line not in commands) <= 88


def test_the_running_step_shows_what_its_command_printed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "scan").mkdir()
    (tmp_path / "scan" / "log.txt").write_text("step 1\n 10%|#\r step 4 loss 2.1\n\n")
    out = Terminal()
    going = JourneyProgress(quiet=False, stream=out, folder=tmp_path)
    going("begin", SCAN, None)
    going.rest()
    assert "0 s  step 4 loss 2.1" in out.getvalue()


def test_a_warning_says_what_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "log.txt").write_text("listening on 127.0.0.1:80\n")
    going = JourneyProgress(quiet=False, stream=io.StringIO(), folder=tmp_path)
    assert going.warning("baseline", 240).endswith("it printed last: listening on 127.0.0.1:80")


def test_no_log_is_no_words(tmp_path: Path) -> None:
    assert last_words(tmp_path, "scan") == ""
    assert last_words(None, "scan") == ""

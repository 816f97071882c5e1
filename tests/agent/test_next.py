"""`joymigrate next`: the one next step of every state, within 2 kB."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joymigrate.agent.migration_state import Standing, read_standing
from joymigrate.agent.next_step import MOST_ANSWER, MOST_BYTES, MigrationState, decide, document
from joymigrate.journey.entries import EntryCandidate
from joymigrate.journey.model import Journey, JourneyRequest, StepOutcome, StepStatus, to_json
from joymigrate.journey.resume import document as on_disk
from joymigrate.journey.tree import snapshot
from joymigrate.language import restore_texts
from joymigrate.ledger import Step
from tests.cli.joy import Joy, joy_with

STOP = {
    "line": "train.py:14",
    "message": "AssertionError: Torch not compiled with CUDA enabled",
    "whose": "rewrite",
    "how_known": "the line is one that the rewriting left",
    "next": "write what the chip has in place of the capability",
    "frames": [],
    "edits": {},
}
JUDGE = "joymigrate migrate . --entry 'python train.py' --to ascend"


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str]) -> Joy:
    return joy_with(capsys)


def journey(*outcomes: StepOutcome, folder: Path = Path("p")) -> Journey:
    request = JourneyRequest(folder, ("python", "train.py"), "ascend")
    return Journey(request, folder / ".joymigrate/journey", "rehearsed", outcomes)


def standing(*outcomes: StepOutcome, **more: Any) -> Standing:
    return Standing(Path("/p"), journey=restore_texts(to_json(journey(*outcomes))), **more)


def done(name: str, verdict: str | None = "pass", **figures: Any) -> StepOutcome:
    return StepOutcome(name, StepStatus.DONE, f"{name} ended", figures, verdict=verdict)


def passed(**figures: Any) -> tuple[StepOutcome, ...]:
    reached = {"reached_pct": 100.0, "not_run": [], **figures}
    compared: dict[str, Any] = {"coverage": {"compared": 9, "recorded": 9}}
    sites = figures.get("sites", [])
    return (
        done("rewrite", sites=sites), done("rehearse", **reached), done("verify", **compared),
    )  # fmt: skip


def test_nothing_begun_asks_for_the_journey_of_the_first_program() -> None:
    step = decide(
        Standing(Path("/p")), [EntryCandidate("python train.py --steps 3", "README.md:4")]
    )
    assert step.state is MigrationState.UNTOUCHED
    assert step.place == "README.md:4"
    assert step.judge == "joymigrate migrate . --entry 'python train.py --steps 3'"


def test_without_a_program_one_has_to_be_named() -> None:
    assert "--entry" in decide(Standing(Path("/p")), []).do


def test_a_stop_of_the_rehearsal_has_its_line_and_whose_it_is() -> None:
    stopped = replace(
        done("rehearse", "fail", stop=STOP),
        status=StepStatus.STOPPED,
        evidence=("rehearse/log.txt",),
    )
    step = decide(standing(stopped), [])
    assert (step.state, step.place, step.do) == (
        MigrationState.STOPPED,
        "train.py:14",
        STOP["next"],
    )
    assert step.evidence == f"{STOP['message']} (whose: rewrite)"
    assert (step.file, step.judge) == (".joymigrate/journey/rehearse/log.txt", JUDGE)


def test_a_failed_comparison_has_its_first_divergence() -> None:
    apart = {"line": None, "module": "net.norm", "metric": "relative", "value": 0.3, "limit": 0.01}
    sides = {"baseline": "train.py:7", "target": "train.py:8"}  # by an import of the rewrite
    failed = replace(
        done("verify", "fail", first_divergence=apart),
        status=StepStatus.STOPPED,
        help="look at eps",
    )
    step = decide(standing(failed), [])
    assert (step.place, step.do) == ("net.norm", "find why the values part there: look at eps")
    assert "value 0.3" in step.evidence
    figures = {**failed.figures, "first_divergence": {**apart, "line": sides}}
    assert decide(standing(replace(failed, figures=figures)), []).place == "train.py:8"


def test_a_gate_is_said_as_it_held() -> None:
    held = StepOutcome(
        "coverage", StepStatus.STOPPED, "s", held="70 % is below coverage = 90", help="h"
    )
    step = decide(standing(held), [])
    assert (step.do, step.evidence) == ("h", "70 % is below coverage = 90")


def test_what_nobody_decided_is_no_pass() -> None:
    step = decide(standing(*passed(), done("train", "inconclusive")), [])
    assert step.state is MigrationState.UNDECIDED
    assert step.do.startswith("decide the step train")


def test_files_that_changed_behind_it_are_judged_anew() -> None:
    step = decide(standing(*passed(), changed=("a.py", "b.py")), [])
    assert (step.state, step.place, step.judge) == (MigrationState.EDITED, "a.py", JUDGE)


def test_behind_a_pass_come_places_that_did_not_run_then_sites_then_the_chip() -> None:
    site = {"path": "a.py", "line": 3, "rule": "JM107", "message": "capability"}
    missed = decide(standing(*passed(not_run=["a.py:9"], sites=[site])), [])
    left = decide(standing(*passed(sites=[site])), [])
    last = decide(standing(*passed()), [])
    assert [one.place for one in (missed, left, last)] == ["a.py:9", "a.py:3", ""]
    assert "nothing was measured" in last.do
    assert last.covers == "100.0 % of the rewritten places ran; 9 of 9 values compared"
    assert missed.judge == JUDGE


def test_a_pass_says_what_was_not_compared() -> None:
    early = "the baseline's other runs were ended before: the program is long"
    verify = done(
        "verify",
        coverage={"compared": 93, "recorded": 93},
        covered={"steps": {"compared": 3, "of": 3}, "printed": {"compared": 1, "of": 13}},
        uncovered=[{"what": w, "count": 7, "reason": early} for w in ("run", "printed")],
        stages=[
            {"stage": "S3", "verdict": "skipped", "reason": "no tensors"},
            {"stage": "S4", "verdict": "skipped", "reason": "no tensors"},
            {"stage": "S5", "verdict": "pass", "reason": None},
        ],
    )
    run = done("rehearse", reached_pct=100 / 3, not_run=[])
    at = standing(done("rewrite", sites=[]), run, verify)
    told = decide(at, []).covers
    assert told == (
        "33.3 % of the rewritten places ran; 93 of 93 values compared; 3 of 3 steps in full; "
        "1 of 13 printed numbers compared; skipped: S3, S4 (no tensors); "
        f"not compared: {early}"
    )
    assert document(at, decide(at, []))["covers"] == told


def test_a_run_that_used_no_chip_is_no_pass_and_its_question_comes_first() -> None:
    idle = {"line": "net.py:23", "message": "m", "said": "net.py:23: is_available() is False"}
    verify = done("verify", "inconclusive", idle=idle)
    step = decide(standing(done("rewrite", "inconclusive"), done("rehearse"), verify), [])
    assert (step.state, step.place) == (MigrationState.UNDECIDED, "net.py:23")
    assert step.do == "bring the program onto the chip: net.py:23: is_available() is False"


def test_without_a_run_there_is_no_grade() -> None:
    broken = replace(done("baseline", "fail"), status=StepStatus.STOPPED)
    at = standing(broken)
    assert document(at, decide(at, []))["grade"] is None
    at = standing(*passed())
    assert document(at, decide(at, []))["grade"] == "rehearsed"


def test_a_failed_comparison_says_which_stages_passed() -> None:
    apart = {"line": None, "module": "net.norm", "cause": None}
    stages = [{"stage": s, "verdict": v} for s, v in (("S1", "pass"), ("S5", "fail"))]
    failed = replace(
        done("verify", "fail", first_divergence=apart, stages=stages), status=StepStatus.STOPPED
    )
    assert decide(standing(failed), []).evidence == "failed: S5, passed: S1, module net.norm"


def test_a_patch_that_cures_a_stop_is_the_next_step() -> None:
    cured = done("rehearse", "fail", stop=STOP, patch="rounds/mend.patch")
    step = decide(standing(replace(cured, status=StepStatus.STOPPED)), [])
    assert step.judge.endswith(" --yes")
    assert (step.place, step.file) == (STOP["line"], "rounds/mend.patch")


def test_what_the_deciding_step_says_is_whole_where_there_is_room() -> None:
    said = "tried on a copy: a.py:3 `x.cuda()` → `x.npu()`\n" * 99 + "the last line"
    stopped = replace(done("rehearse", "fail", stop=STOP), status=StepStatus.STOPPED, help=said)
    at = standing(stopped)
    for most in (MOST_BYTES, MOST_ANSWER):
        found = document(at, decide(at, []), most)
        assert len(json.dumps(found, indent=2, ensure_ascii=False).encode()) <= most
        assert said.startswith(found["told"].removesuffix("…"))
        assert len(found["told"].encode()) > most / 7
        assert ("found" in found) == (most > MOST_BYTES)


def test_a_running_journey_is_waited_for() -> None:
    step = decide(standing(running={"step": "verify", "since": "10:00"}), [])
    assert (step.state, step.judge) == (MigrationState.RUNNING, "joymigrate next")


def test_the_document_is_small_whatever_was_said() -> None:
    long = {**STOP, "message": "x" * 200_000, "next": "y" * 9_000, "line": "z" * 4_000 + ":1"}
    stopped = replace(done("rehearse", "fail", stop=long), status=StepStatus.STOPPED)
    at = standing(stopped, steps=(Step("rewrite", id="0001"),))
    found = document(at, decide(at, []))
    assert found["schema"] == "joymigrate.next/1"
    assert len(json.dumps(found, indent=2, ensure_ascii=False).encode()) <= MOST_BYTES
    names = ("scan", "baseline", "rewrite", "coverage", "advice")
    wordy = [replace(done(name), summary="数" * 900) for name in names]
    at = standing(*wordy, replace(stopped, help="数" * 900))
    found = document(at, decide(at, []), MOST_ANSWER)
    assert len(json.dumps(found, indent=2, ensure_ascii=False).encode()) <= MOST_ANSWER
    assert len(found["told"]) > 500
    assert len(found["found"]) == len(names) + 1


def test_a_project_is_read_from_disk_and_an_edit_is_seen(tmp_path: Path, joy: Joy) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    folder = tmp_path / ".joymigrate/journey"
    folder.mkdir(parents=True)
    made = replace(journey(*passed(), folder=tmp_path), files=snapshot(tmp_path))
    (folder / "journey.json").write_text(json.dumps(on_disk(made)))
    assert joy("next", str(tmp_path)).lines[0] == "state: passed"
    (tmp_path / "train.py").write_text("print(2)\n")
    assert read_standing(tmp_path).changed == ("train.py",)
    told = json.loads(joy("next", str(tmp_path), "--format", "json").out)
    assert (told["state"], told["step"]["place"]) == ("edited", "train.py")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "other/1"}'])
def test_a_broken_journey_is_no_journey(tmp_path: Path, joy: Joy, text: str) -> None:
    (tmp_path / "train.py").write_text("if __name__ == '__main__':\n    print(1)\n")
    folder = tmp_path / ".joymigrate/journey"
    folder.mkdir(parents=True)
    (folder / "journey.json").write_text(text)
    told = joy("next", str(tmp_path))
    assert (told.code, told.lines[0]) == (0, "state: not started")
    assert "状态：" in joy("next", str(tmp_path), "--lang", "zh").out


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path, joy: Joy) -> None:
    assert joy("next", str(tmp_path / "none")).code == 2

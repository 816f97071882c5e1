"""The gate: which verdicts open it for a chip."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.evidence import Grade
from joymigrate.ledger import Change, Ledger, Step, Subject

MODEL = Subject("model", "aa" * 32)


def judged(ledger: Ledger, verdict: str, grade: str, stage: str = "S8", **more: object) -> None:
    subject = more.pop("subject", MODEL)
    ledger.record(
        Step(  # type: ignore[arg-type]
            kind="verify", chip="chip", subject=subject, verdict=verdict, stage=stage, grade=grade
        )
    )


@pytest.mark.parametrize("grade", list(Grade))
def test_only_the_grade_that_opens_gates_opens_the_gate_of_a_chip(
    tmp_path: Path, grade: Grade
) -> None:
    ledger = Ledger(tmp_path)
    judged(ledger, "pass", grade.value)
    standing = ledger.verdict(MODEL, "chip")
    assert (standing.refusal() is None) == grade.opens_gate
    assert standing.verdict == "pass"
    assert standing.grade == grade.value


def test_a_rehearsed_pass_opens_a_rehearsal(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    judged(ledger, "pass", "rehearsed")
    standing = ledger.verdict(MODEL, "chip")
    assert standing.refusal(rehearsal=True) is None
    assert standing.refusal() == (
        "'model' has a rehearsed verdict only (step 0001); "
        "the gate of a real chip opens on a measured one"
    )


def test_no_verdict_says_so(tmp_path: Path) -> None:
    standing = Ledger(tmp_path).verdict(MODEL, "chip")
    assert standing.verdict == "none"
    assert standing.refusal() == "'model' has no verdict on chip"


def test_a_failed_stage_shuts_the_gate_until_it_passes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    judged(ledger, "pass", "measured", "S3")
    judged(ledger, "fail", "measured", "S7")
    refusal = ledger.verdict(MODEL, "chip").refusal()
    assert refusal == "'model' did not pass on chip: fail at S7"
    judged(ledger, "pass", "measured", "S7")
    assert ledger.verdict(MODEL, "chip").refusal() is None


def test_inconclusive_is_not_a_pass(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    judged(ledger, "inconclusive", "measured")
    assert ledger.verdict(MODEL, "chip").refusal() is not None


def test_a_changed_subject_and_another_chip_have_no_verdict(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    judged(ledger, "pass", "measured")
    changed = ledger.verdict(Subject("model", "bb" * 32), "chip")
    assert changed.refusal() == "'model' has changed since its last verdict on chip (step 0001)"
    assert ledger.verdict(MODEL, "other").refusal() is not None


def test_a_verdict_on_a_change_that_was_taken_back_does_not_count(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    (tmp_path / "a.py").write_bytes(b"cuda")
    ledger.apply([Change("a.py", b"cuda", b"npu")], Step(kind="rewrite"))
    judged(ledger, "pass", "measured")
    assert ledger.verdict(MODEL, "chip").refusal() is None
    ledger.rollback()
    assert ledger.verdict(MODEL, "chip").refusal() == "'model' has no verdict on chip"

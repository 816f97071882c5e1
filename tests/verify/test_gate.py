"""Verdicts in the ledger: what train and serve see, and the way back from a stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate.device import Device
from joymigrate.evidence import Grade
from joymigrate.ledger import Change, Ledger, Step, Subject
from joymigrate.verify.gate import TargetOrigin, chip_of, grade_of, record
from joymigrate.verify.model import Outcome, RecordCoverage, StageResult, Verdict

SUBJECT = Subject("tiny", "ab" * 32)


def verdict(*stages: tuple[str, Outcome]) -> Verdict:
    results = tuple(StageResult(name, outcome, 3, 3) for name, outcome in stages)
    last = results[-1]
    return Verdict(last.verdict, last.stage, None, RecordCoverage(1.0, 3, 3), (), results)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text("device = 'cuda'\n")
    (tmp_path / "job.yaml").write_text("lr: 1.0\n")
    changes = [
        Change("train.py", b"device = 'cuda'\n", b"device = 'npu'\n"),
        Change("job.yaml", b"lr: 1.0\n", b"lr: 0.5\n"),
    ]
    assert Ledger.of(tmp_path).apply(changes, Step("rewrite", chip="ascend")) is not None
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-100.pt").write_bytes(b"weights")
    return tmp_path


def note(project: Path, grade: Grade, *stages: tuple[str, Outcome]) -> list[Step]:
    origin = TargetOrigin(
        configuration=(project / "job.yaml",), bundle="b" * 64, checkpoint="ckpt/step-100.pt"
    )
    return record(
        verdict(*stages), SUBJECT, chip="ascend", grade=grade, where=project, origin=origin
    )


def refusal(project: Path, rehearsal: bool = False) -> str | None:
    return Ledger.of(project).verdict(SUBJECT, "ascend").refusal(rehearsal=rehearsal)


def test_every_judged_stage_is_one_step_with_its_ids(project: Path) -> None:
    stages = [("S1", Outcome.PASS), ("S2", Outcome.SKIPPED), ("S4", Outcome.FAIL)]
    steps = note(project, Grade.MEASURED, *stages)
    assert [(s.stage, s.verdict, s.judges) for s in steps] == [
        ("S1", "pass", "0001"),
        ("S4", "fail", "0001"),
    ]
    details = steps[-1].details
    assert details["patch"] == "0001"
    assert details["bundle"] == "b" * 64
    assert details["checkpoint"] == "ckpt/step-100.pt"
    assert details["configuration"][0]["path"] == "job.yaml"
    assert (Ledger.of(project).folder(steps[-1].id) / "verdict.json").is_file()


def test_a_measured_pass_opens_the_gate_and_a_failure_shuts_it(project: Path) -> None:
    assert "no verdict" in str(refusal(project))
    note(project, Grade.MEASURED, ("S4", Outcome.PASS))
    assert refusal(project) is None
    note(project, Grade.MEASURED, ("S8", Outcome.FAIL))
    assert "fail at S8" in str(refusal(project))
    note(project, Grade.MEASURED, ("S8", Outcome.PASS))
    assert refusal(project) is None


def test_a_rehearsed_pass_opens_only_a_rehearsal(project: Path) -> None:
    note(project, Grade.REHEARSED, ("S4", Outcome.PASS))
    assert "rehearsed verdict only" in str(refusal(project))
    assert refusal(project, rehearsal=True) is None


def test_a_verdict_of_the_cpu_says_nothing_about_a_chip(project: Path) -> None:
    record(verdict(("S4", Outcome.PASS)), SUBJECT, chip="cpu", grade=Grade.MEASURED, where=project)
    assert "no verdict" in str(refusal(project))


def test_rollback_of_a_stage_returns_code_and_configuration(project: Path) -> None:
    note(project, Grade.MEASURED, ("S4", Outcome.FAIL))
    done = Ledger.of(project).rollback("S4")
    assert (project / "train.py").read_text() == "device = 'cuda'\n"
    assert (project / "job.yaml").read_text() == "lr: 1.0\n"
    assert done.target is not None
    assert done.target.details["checkpoint"] == "ckpt/step-100.pt"
    assert (project / "ckpt" / "step-100.pt").read_bytes() == b"weights"
    assert refusal(project) == "'tiny' has no verdict on ascend"  # it was about that change


def test_the_device_decides_grade_and_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = Device("npu", "ascend")
    assert (grade_of(npu), chip_of(npu)) == (Grade.MEASURED, "ascend")
    monkeypatch.setenv("JOYMIGRATE_REHEARSE", "1")
    assert grade_of(npu) is Grade.REHEARSED
    assert chip_of(Device("cpu")) == "cpu"
    assert chip_of(replace(npu, type="cuda", chip=None)) == "cuda"

"""When a failed comparison with a CPU says nothing about the chip, and when it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joymigrate.journey.context import CompletedCommand, StepContext
from joymigrate.journey.gates import Gates
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.steps import baseline
from joymigrate.journey.steps.train import tell_compared
from joymigrate.journey.steps.verify import (
    OPERATORS,
    broke_off,
    idle_chip,
    loss_scale,
    other_path,
)


@pytest.mark.parametrize(
    ("ratio", "scale"),
    [
        (65536.0, 65536),
        (65528.66, 65536),  # as float16 rounds it
        (1024.0, 1024),
        (512.0, None),  # a mean over 512 samples would do that
        (60000.0, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_a_loss_scale_is_a_large_power_of_two(ratio: float, scale: int | None) -> None:
    assert loss_scale(ratio) == scale


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("scaler = torch.amp.GradScaler()\n")
    return tmp_path


def verdict(devices: dict[str, str], **first: Any) -> dict[str, Any]:
    return {"baseline": {"devices": devices}, "first_divergence": first}


SCALED = {"cause": "gradient scale", "value": 65535.0, "stage": "S5"}


def test_mixed_precision_on_a_device_only_is_another_program(project: Path) -> None:
    said = other_path(project, verdict({}, **SCALED))
    assert said is not None
    assert "scales its loss by 65536" in said


def test_against_a_gpu_the_same_is_a_failure(project: Path) -> None:
    assert other_path(project, verdict({"cuda": "NVIDIA H200"}, **SCALED)) is None


def test_a_program_that_scales_no_loss_has_no_excuse(project: Path) -> None:
    (project / "train.py").write_text("loss.sum().backward()\n")
    assert other_path(project, verdict({}, **SCALED)) is None


NARROW = {"stage": "S5", "details": {"narrowed": {"bfloat16": 12, "float16": 1}}}
ROUNDED = {
    "cause": None,
    "evidence": "relative error 1.0e-03, as of bfloat16 rounding",
    "value": 3010.9,
    "stage": "S3",
}


def test_sixteen_bits_on_the_chip_alone_are_another_program(project: Path) -> None:
    said = other_path(project, {**verdict({}, **ROUNDED), "stages": [NARROW]})
    assert said is not None
    assert "compute in bfloat16 on the chip and in float32 on a CPU" in said


def test_rounding_without_sixteen_bits_is_a_failure(project: Path) -> None:
    found = verdict({}, **ROUNDED)
    assert other_path(project, {**found, "stages": [{"stage": "S5", "details": {}}]}) is None
    assert other_path(project, found) is None


def test_a_wrong_result_in_sixteen_bits_is_a_failure(project: Path) -> None:
    wrong = verdict({}, cause="permutation", value=1.0, stage="S3")
    assert other_path(project, {**wrong, "stages": [NARROW]}) is None


def test_any_other_divergence_is_a_failure(project: Path) -> None:
    assert other_path(project, verdict({}, cause="permutation", value=1.0, stage="S3")) is None
    assert other_path(project, {"baseline": {}, "first_divergence": None}) is None


def test_a_crash_is_what_to_say_unless_something_differed_before_it() -> None:
    crash = {"step": 1, "exception": "RuntimeError", "message": "no kernel", "where": "train.py:7"}
    found: dict[str, Any] = {"target": {"crash": crash}, "first_divergence": None}
    assert broke_off(found)
    assert not broke_off({**found, "first_divergence": {"module": "net"}})
    assert not broke_off({"target": {}, "first_divergence": None})


def test_a_recording_that_is_only_held_against_another_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        StepContext, "joymigrate", lambda at, log, *words, **more: asked.append(words)
    )
    request = JourneyRequest(tmp_path, ("python", "train.py"), "ascend")
    at = StepContext(request, Gates(), tmp_path / "journey")
    baseline.record_again(at, tmp_path / "again.jmb", "log.txt")
    (words,) = asked
    assert "--once" in words[: words.index("--")]


@pytest.mark.parametrize(
    ("chip", "card_calls", "idle"),
    [("ascend", 5, False), ("cpu", 5, True), ("cpu", None, True), ("cpu", 0, False)],
)
def test_a_chip_without_work_is_said_unless_the_original_used_no_card(
    tmp_path: Path, chip: str, card_calls: int | None, idle: bool
) -> None:
    trap = {"trap": "cuda_is_available", "where": "net.py:23", "message": "m", "remedy": "r"}
    before = {
        "baseline": StepOutcome("baseline", StepStatus.DONE, "", {"card_calls": card_calls}),
        "rehearse": StepOutcome("rehearse", StepStatus.DONE, "", {"found_traps": [trap]}),
    }
    request = JourneyRequest(tmp_path, ("python", "train.py"), "ascend")
    at = StepContext(request, Gates(), tmp_path, before=before)
    found = idle_chip(at, {"target": {"chip": chip}})
    said = {"line": "net.py:23", "message": "m", "said": "net.py:23: m; r"}
    assert found == (said if idle else None)


@pytest.mark.parametrize(
    ("printed", "verdict", "reads_back", "told"),
    [
        ("L=64 took 90.2 ms", "pass", False, True),  # a time is another one everywhere
        ("L=64 took 90.2 ms", "pass", True, False),  # what it read back was seen by nobody
        ("L=64 took 12.5 ms\nmean 0.25", "pass", True, True),
        ("L=64 took 12.5 ms\nmean 0.75", "pass", False, False),
        ("L=64 took 90.2 ms", "inconclusive", False, False),
    ],
)
def test_operators_stand_for_losses_where_all_that_is_printed_agrees(
    tmp_path: Path, printed: str, verdict: str, reads_back: bool, told: bool
) -> None:
    runs = []
    for name, text in (("here", "L=64 took 12.5 ms\nmean 0.25"), ("chip", printed)):
        log = tmp_path / name
        log.write_text(f"{text}\nbaseline: computed on this CPU\n  ended with exit code 2\n")
        runs.append(CompletedCommand("", 0, log))
    runs[0].log.write_text("\n".join(runs[0].lines()[: len(printed.splitlines())]))
    figures = {"baseline": OPERATORS, "reads_back": reads_back}
    judged = StepOutcome("verify", StepStatus.DONE, "", figures, verdict=verdict)
    request = JourneyRequest(tmp_path, ("python", "bench.py"), "ascend")
    at = StepContext(request, Gates(), tmp_path, before={"verify": judged})
    assert (tell_compared(at, *runs) is not None) is told

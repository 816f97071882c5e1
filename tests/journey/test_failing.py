"""What a journey knows of a run that stopped, and how the unchanged program failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate.blame.stop import FrameOwner
from joymigrate.journey.context import CompletedCommand, StepContext
from joymigrate.journey.gates import Gates
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.run_failure import FailureReason, explain, reason
from joymigrate.journey.steps.rehearse import advice

HEAD = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
CUDA = f"{HEAD}    net.cuda()\nAssertionError: Torch not compiled with CUDA enabled\n"
KEY = f"{HEAD}    rows['b']\nKeyError: 'b'\n"
RECORDER = "error: the program ended with exit code 1; nothing was recorded\n  at: a.jmb\n"


@pytest.fixture
def at(tmp_path: Path) -> StepContext:
    (tmp_path / "train.py").write_text("")
    folder = tmp_path / ".joymigrate" / "journey"
    folder.mkdir(parents=True)
    return StepContext(JourneyRequest(tmp_path, ("python", "train.py"), "ascend"), Gates(), folder)


def ended(at: StepContext, log: str, code: int = 2) -> CompletedCommand:
    at.path("log.txt").write_text(log)
    return CompletedCommand("", code, at.path("log.txt"))


def test_a_pass_names_the_lines_that_passed_translated(tmp_path: Path) -> None:
    row = {"what": "load", "line": f"{tmp_path}/main.py:4", "calls": 2}
    found = {"fallbacks": [], "only_seen_while_running": [row]}
    told = advice([], found, None, "log.txt", project=tmp_path).splitlines()
    assert told[0] == "only seen while running: main.py:4"
    assert "not tried without" in told[1]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            f"{HEAD}    import deepspeed\nModuleNotFoundError: No module named 'deepspeed'\n",
            "broken",
        ),
        (KEY, "broken"),
        ("train.py: error: unrecognized arguments: --stps 3\n", "broken"),
        (CUDA, "needs a GPU"),
        (f"{HEAD}    assert torch.cuda.is_available()\nAssertionError\n", "needs a GPU"),
        ("no GPU found, stopping\n", "needs a GPU"),
        (f"{HEAD}    import apex\nImportError: libcudart.so.12: cannot open\n", "needs a GPU"),
        ("", "unclear"),
        ("something odd\n", "unclear"),
    ],
)
def test_how_the_unchanged_program_failed(at: StepContext, log: str, expected: str) -> None:
    done = ended(at, log + RECORDER)
    assert reason(at, done, explain(at, done, on_chip=False)).value == expected


def test_with_a_gpu_in_the_machine_nothing_fails_for_want_of_one(at: StepContext) -> None:
    here = replace(at, gpu_here=True)
    done = ended(here, CUDA)
    assert reason(here, done, explain(here, done, on_chip=False)) is FailureReason.BROKEN


def with_baseline(at: StepContext, **figures: object) -> StepContext:
    outcome = StepOutcome("baseline", StepStatus.DONE, "", figures)
    return replace(at, before={"baseline": outcome})


def test_the_same_error_before_is_the_programs_own(at: StepContext) -> None:
    stop = explain(at, ended(at, KEY, 1), on_chip=False)
    told = with_baseline(at, failure="broken", stop=stop.document())
    assert explain(told, ended(told, KEY, 1), on_chip=True).whose is FrameOwner.PROGRAM


def test_another_error_before_accuses_nobody(at: StepContext) -> None:
    stop = explain(at, ended(at, f"{HEAD}    x\nValueError: 1\n", 1), on_chip=False)
    told = with_baseline(at, failure="broken", stop=stop.document())
    assert explain(told, ended(told, KEY, 1), on_chip=True).whose is FrameOwner.UNKNOWN


def test_a_recording_from_elsewhere_says_nothing_of_the_end(at: StepContext) -> None:
    told = with_baseline(at, of="given")
    stop = explain(told, ended(told, KEY, 1), on_chip=True)
    assert "how the unchanged program ends is not known" in stop.how_known


def test_a_word_on_the_command_line_is_named(at: StepContext) -> None:
    request = replace(at.request, entry=("python", "train.py", "--device", "cuda:0"))
    told = with_baseline(replace(at, request=request), of="original", exit_code=0)
    stop = explain(told, ended(told, CUDA, 1), on_chip=True)
    assert stop.whose is FrameOwner.REWRITE
    assert "--entry, `cuda:0`" in stop.how_known

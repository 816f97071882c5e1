"""What a journey knows of a run that stopped, and how the unchanged program failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate.blame.stop import FrameOwner
from joymigrate.journey.context import CompletedCommand, StepContext
from joymigrate.journey.gates import Gates, find_violation
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.run_failure import FailureReason, explain, reason
from joymigrate.journey.steps import baseline
from joymigrate.journey.steps.rehearse import advice
from joymigrate.launching import NOT_STARTED

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


IMPORT = (
    f"{HEAD}    import vision\n"
    '  File "/env/site-packages/vision/__init__.py", line 2, in <module>\n'
    "    check()\n"
    '  File "/env/site-packages/vision/extension.py", line 9, in check\n'
    "    raise RuntimeError(text)\n"
    "RuntimeError: compiled with different CUDA versions\n"
)
DATA = f"{HEAD}    open(path)\nFileNotFoundError: [Errno 2] No such file: 'a.csv'\n"


def run_both(
    at: StepContext, monkeypatch: pytest.MonkeyPatch, by_stand_ins: str, plain: str
) -> StepOutcome:
    """The step, where its two ways to run the original print these; an empty log ends well."""

    def record(at: StepContext, folder: Path, stand_ins: bool, log: str = "") -> CompletedCommand:
        path = at.path("by-stand-ins.txt" if stand_ins else "plain.txt")
        path.write_text(by_stand_ins if stand_ins else plain)
        at.path("baseline/stand-ins.json").write_text('{"words": []}')
        return CompletedCommand("", int(bool(path.read_text())), path)

    monkeypatch.setattr(baseline, "record_original", record)
    monkeypatch.setattr(baseline, "ends_well_alone", lambda *known: False)
    return baseline.run(at)


def test_a_run_without_the_stand_ins_is_said_with_what_stopped_them(
    at: StepContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run_both(at, monkeypatch, KEY, "")
    assert made.summary.endswith("by stand-ins for its GPU it stopped at train.py:3: KeyError: 'b'")
    assert made.figures["stand_ins"] is False
    assert made.figures["stand_ins_stop"] == {"line": "train.py:3", "message": "KeyError: 'b'"}


@pytest.mark.parametrize(
    ("by_stand_ins", "plain", "whose"),
    [
        (IMPORT, DATA, "environment"),  # what it lacks without stand-ins it lacks with them
        (IMPORT, CUDA, "simulation"),
        (IMPORT, KEY, "simulation"),
        (IMPORT, IMPORT, "program"),
        (KEY, CUDA, "program"),
    ],
)
def test_an_import_that_fails_by_stand_ins_alone_is_ours(
    at: StepContext, monkeypatch: pytest.MonkeyPatch, by_stand_ins: str, plain: str, whose: str
) -> None:
    made = run_both(at, monkeypatch, by_stand_ins, plain)
    assert made.figures["stop"]["whose"] == whose
    held = find_violation("baseline", made.figures, made.verdict, Gates()) is not None
    assert held == (whose != "simulation")


def test_nothing_is_changed_where_the_original_stops_by_stand_ins_and_nobody_knows_why(
    at: StepContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run_both(at, monkeypatch, "something odd\n", "something odd\n")
    assert made.figures["stop"]["whose"] == "unknown"
    assert find_violation("baseline", made.figures, made.verdict, Gates())


def test_a_program_that_ran_without_our_hooks_is_not_blamed(at: StepContext) -> None:
    done = ended(at, f"{CUDA}error: {NOT_STARTED}\n{RECORDER}", 1)
    stop = explain(at, done, on_chip=False)
    assert (stop.whose, stop.message) == (FrameOwner.ENVIRONMENT, NOT_STARTED)
    assert reason(at, done, stop) is FailureReason.BROKEN


def test_what_an_error_says_behind_its_first_line_is_told(at: StepContext) -> None:
    said = (
        "Weights only load failed. You have two options, \x1b[1mif you trust it\x1b[0m.\n"
        "\t(1) Re-running `torch.load` with `weights_only` set to `False` will likely succeed.\n"
    )
    stop = explain(
        at, ended(at, f"{HEAD}    torch.load(f)\nUnpicklingError: {said}", 1), on_chip=False
    )
    assert stop.message.endswith("two options, if you trust it.")
    assert stop.next.startswith("mend it first; the error goes on: (1) Re-running `torch.load`")

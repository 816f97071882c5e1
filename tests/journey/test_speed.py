"""Speed is read out of what a program prints, and when."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from joymigrate.journey import timed_process
from joymigrate.journey.speed import rate, speed


def test_steps_per_second_come_from_the_times_of_the_losses() -> None:
    lines = [(5.0, "step 0 loss 3"), (5.5, "step 1 loss 2"), (6.0, "step 2 loss 1")]
    found = speed(lines)
    assert found is not None
    assert found["steps_per_s"] == 2.0
    assert [one["step"] for one in found["points"]] == [1, 2]
    assert found["printed"] is None


def test_steps_that_are_not_printed_count_too() -> None:
    found = speed([(1.0, "step 0 loss 3"), (3.0, "step 10 loss 2")])
    assert found is not None
    assert found["steps_per_s"] == 5.0


def test_losses_without_a_step_are_counted() -> None:
    found = speed([(1.0, "loss 3"), (1.5, "loss 2"), (2.0, "loss 1")])
    assert found is not None
    assert [one["step"] for one in found["points"]] == [1, 2]


@pytest.mark.parametrize("lines", [[], [(1.0, "step 0 loss 3")], [(1.0, "a"), (2.0, "b")]])
def test_too_little_says_nothing(lines: list[tuple[float, str]]) -> None:
    assert speed(lines) is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 0 loss 2.6 tokens_per_s 2498 peak_mib 13", ("tokens/s", 2498.0)),
        ("loss 2.2, 123.4 tokens/s, 5.0 MiB", ("tokens/s", 123.4)),
        ("samples/sec: 12.5 loss 1", ("samples/s", 12.5)),
        ("3.2it/s, loss=4", ("steps/s", 3.2)),
        ("loss 2.6 at step 3", None),
    ],
)
def test_rates_that_programs_print(line: str, found: tuple[str, float] | None) -> None:
    assert rate(line) == found


def test_the_programs_own_rate_is_kept_without_its_first_line() -> None:
    lines = [(n + 1.0, f"step {n} loss 1 tokens_per_s {100 * n}") for n in range(4)]
    found = speed(lines)
    assert found is not None
    assert found["printed"] == {"unit": "tokens/s", "median": 200.0}


def test_a_command_leaves_its_output_and_the_times_of_its_lines(tmp_path: Path) -> None:
    program = "import sys; print('hello'); print('loss 1'); sys.stderr.write('bad\\n'); sys.exit(3)"
    log = tmp_path / "log.txt"
    code, lines = timed_process.run(
        [sys.executable, "-u", "-c", program], log, tmp_path, os.environ, lambda t: "loss" in t
    )
    assert code == 3
    assert [text for _, text in lines] == ["loss 1"]
    assert lines[0][0] > 0
    assert log.read_text().split() == ["hello", "loss", "1", "bad"]


def test_a_child_that_outlives_the_command_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_process, "DRAIN_SECONDS", 0.1)
    program = (
        "import subprocess, sys; print('loss 1', flush=True); "
        "p = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], "
        "stdin=subprocess.PIPE); import os; os._exit(0)"
    )
    code, lines = timed_process.run(
        [sys.executable, "-c", program], tmp_path / "log", tmp_path, os.environ, lambda t: True
    )
    assert code == 0
    assert len(lines) == 1

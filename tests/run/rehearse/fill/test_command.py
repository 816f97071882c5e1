"""`--fill` on the simulated chip: every overload, and one program that needs many of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import joymigrate.run.rehearse.fill as fill
from joymigrate.cli._fill import fill_environment
from joymigrate.errors import JoyError

PROGRAMS = Path(__file__).parent / "programs"


def joymigrate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    environment.pop("JOYMIGRATE_CALLER_AUTOLOAD", None)
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )


def rehearsed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return joymigrate("-m", "joymigrate", "rehearse", "-q", "--policy", "error", *arguments)


@pytest.fixture(scope="module")
def every() -> Any:
    done = rehearsed("--", "python", str(PROGRAMS / "every.py"))
    # At its end the program takes the fills away and catches the refusal of one call: 1, not 0.
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.compiler
def test_every_overload_computes_on_the_chip_without_falling_back(every: Any) -> None:
    # torch itself does not resize the `out` of _int_mm
    assert set(every["errors"]) <= {"_int_mm"}
    assert every["uncalled"] == []
    assert every["not_installed"] == []
    assert {name: worst for name, worst in every["forward"].items() if worst > 1} == {}


@pytest.mark.compiler
def test_gradients_through_torchs_formulas_equal_the_cpus(every: Any) -> None:
    assert len(every["backward"]) >= 40
    assert {name: worst for name, worst in every["backward"].items() if worst > 1} == {}


@pytest.mark.compiler
def test_removing_the_fills_gives_the_operators_back(every: Any) -> None:
    assert every["removed"]


@pytest.mark.compiler
@pytest.mark.slow
def test_a_program_fails_without_fill_and_gives_the_cpus_numbers_with_it() -> None:
    program = str(PROGRAMS / "twenty.py")
    without = rehearsed("--", "python", program, "npu:0")
    assert without.returncode != 0
    assert "falls back to the CPU" in without.stderr
    done = rehearsed("--fill", "--", "python", program, "npu:0")
    assert done.returncode == 0, done.stderr
    expected = json.loads(joymigrate(program, "cpu").stdout)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 30
    for name, values in expected.items():
        for a, b in zip(found[name], values, strict=True):
            # sums of float32 results; the least well-conditioned here are inverse and its gradient
            assert math.isclose(a, b, rel_tol=2e-4, abs_tol=2e-4), (name, found[name], values)


def test_a_name_that_is_not_filled_is_one_clear_error() -> None:
    with pytest.raises(JoyError, match="no fill for 'matmul'"):
        fill.install("ascend", only=["matmul"])


def test_the_hook_comes_behind_those_that_are_there() -> None:
    made = fill_environment({"JOYMIGRATE_SWITCH": "a:b"}, "ascend", rehearsed=True)
    assert made["JOYMIGRATE_SWITCH"].startswith("a:b,joymigrate.run.rehearse")
    assert made["JOYMIGRATE_SWITCH"].endswith("run.rehearse.fill.start:start")
    assert made["JOYMIGRATE_FILL"] == "ascend"

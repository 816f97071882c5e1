"""The check finds what is wrong, and says what it could not try."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.cli._main import run
from joymigrate.run import kernels
from joymigrate.run.kernels.check import CheckRow, check_kernel
from joymigrate.run.kernels.operator import Implementation
from joymigrate.run.kernels.registry import Kernel

TRITON = ("add_rms_norm", "attention", "matmul_add_fp32", "rotary", "sub_mul_concat")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`kernels check` in a process of its own: Triton's interpreter has to be on from the start."""
    path = tmp_path_factory.mktemp("check") / "check.json"
    command = ["kernels", "check", "--device", "cpu", "--dtype", "float32,bfloat16"]
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", *command, "--format", "json", "-o", str(path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_contract_holds(checked: dict[str, Any]) -> None:
    assert checked["schema"] == "joymigrate.kernels/1"
    assert checked["rehearsal"] is False
    for row in checked["kernels"]:
        assert {"op", "implementation", "status", "max_error", "limit", "phase", "reason"} <= {*row}
        assert row["status"] in ("pass", "fail", "skipped")
        assert (row["status"] == "pass") == (row["reason"] is None)
        if row["status"] == "pass":
            assert 0 <= row["max_error"] <= row["limit"]
            assert row["phase"] in ("forward", "backward")


def test_every_operator_is_checked(checked: dict[str, Any]) -> None:
    passed = {row["op"] for row in checked["kernels"] if row["status"] == "pass"}
    assert passed == {*kernels.operators()}


@pytest.mark.parametrize("op", TRITON)
def test_our_triton_kernels_pass_in_the_interpreter(checked: dict[str, Any], op: str) -> None:
    rows = [r for r in checked["kernels"] if (r["op"], r["implementation"]) == (op, "triton")]
    by_dtype = {(row["dtype"], row["phase"]): row for row in rows}
    assert by_dtype["float32", "forward"]["status"] == "pass"
    narrow = by_dtype["bfloat16", "forward"]
    assert narrow["status"] == "skipped"
    assert "bfloat16 wrongly" in narrow["reason"]
    if op != "matmul_add_fp32":
        assert by_dtype["float32", "backward"]["status"] == "pass"


def test_what_cannot_run_says_why(checked: dict[str, Any]) -> None:
    rows = [row for row in checked["kernels"] if row["implementation"] == "vendor"]
    assert rows
    assert {row["reason"] for row in rows} == {"runs on ascend"}


def rows_with(name: str, wrong: Callable[..., Any], op: str = "swiglu") -> list[CheckRow]:
    """The rows of one made-up implementation of an operator."""
    base = kernels.op(op).operator
    made = Implementation(name, wrong)
    kernel = Kernel(dataclasses.replace(base, implementations=(made,)))
    return [r for r in check_kernel(kernel, "cpu", ["float32"]) if r.implementation == name]


def statuses(rows: list[CheckRow]) -> dict[str | None, str]:
    return {row.phase: row.status for row in rows}


def silu(gate: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate)


def halves(gate: torch.Tensor, up: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return (gate, up) if up is not None else gate.chunk(2, -1)


def test_a_wrong_value_is_found() -> None:
    def wrong(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        a, b = halves(gate, up)
        return silu(a) * b * (1 + 1e-5)

    assert statuses(rows_with("wrong", wrong)) == {"forward": "fail", "backward": "fail"}


def test_a_right_one_passes() -> None:
    def right(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        a, b = halves(gate, up)
        return a * torch.sigmoid(a) * b

    assert statuses(rows_with("right", right)) == {"forward": "pass", "backward": "pass"}


def test_a_wrong_gradient_is_found() -> None:
    def wrong(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        a, b = halves(gate, up)
        return silu(a) * b + (b.detach() - b)  # adds nothing, takes 1 from the gradient

    assert statuses(rows_with("wrong", wrong)) == {"forward": "pass", "backward": "fail"}


def test_not_a_number_is_found() -> None:
    def wrong(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        a, b = halves(gate, up)
        return silu(a) * b * torch.tensor(float("nan"))

    (forward, *_) = rows_with("wrong", wrong)
    assert (forward.status, forward.max_error) == ("fail", None)


def test_a_changed_input_is_found() -> None:
    def wrong(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        a, b = halves(gate, up)
        y = silu(a) * b
        gate.detach().mul_(2)
        return y

    (forward, *_) = rows_with("wrong", wrong)
    assert forward.status == "fail"
    assert "changed its input" in (forward.reason or "")


def test_a_wrong_shape_is_found() -> None:
    def wrong(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        a, b = halves(gate, up)
        return (silu(a) * b).unsqueeze(0)

    (forward, *_) = rows_with("wrong", wrong)
    assert "shape" in (forward.reason or "")


def test_what_fails_on_strided_input_only_is_found() -> None:
    def wrong(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        a, b = halves(gate, up)
        return silu(a) * b if gate.is_contiguous() else silu(a)

    (forward, *_) = rows_with("wrong", wrong)
    assert (forward.status, forward.worst is not None) == ("fail", True)
    assert "strided" in (forward.worst or "")


def test_an_exception_is_a_failure_with_the_case() -> None:
    def wrong(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        raise ValueError("no kernel image")

    (forward, *_) = rows_with("wrong", wrong)
    assert forward.reason == "case 'usual' raised ValueError: no kernel image"


def test_a_wrong_result_makes_the_command_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base = kernels.op("swiglu").operator
    wrong = Implementation("wrong", lambda gate, up=None: base.reference(gate, up) + 1)
    made = Kernel(dataclasses.replace(base, implementations=(wrong,)))
    monkeypatch.setitem(kernels.operators(), "swiglu", made)
    options = ["--op", "swiglu", "--device", "cpu", "--dtype", "float32"]
    assert run(["kernels", "check", *options]) == 1
    assert "FAILED swiglu wrong float32: wrong result in case" in capsys.readouterr().out

"""`profile diff`: pairs by name and module, ranked by lost time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.profile.diff import diff


def line(op: str, us: float, **more: Any) -> dict[str, Any]:
    tensor = {"dtype": "float32", "shape": [4, 4], "stride": [4, 1], "device": "cpu"}
    base = {"kind": "op", "op": op, "overload": "", "args": [tensor], "calls": 2, "self_us": us}
    return {**base, "phase": "forward", "where": "train.py:3", **more}


def trace(path: Path, device: str, *operators: dict[str, Any], **header: Any) -> Path:
    head = {"schema": "joymigrate.trace/1", "device": device, "steps": 1, **header}
    numbered = [{**each, "id": number} for number, each in enumerate(operators)]
    path.write_text("\n".join(map(json.dumps, (head, *numbered))) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    gpu = trace(
        tmp_path / "gpu.jsonl",
        "cuda",
        line("aten::cudnn_convolution", 100, module="module.stem"),
        line("aten::mm", 300, module="module.head"),
        line("aten::mm", 100, phase="backward", module="module.head"),
        line("aten::relu_", 10, module="module.stem"),
    )
    npu = trace(
        tmp_path / "npu.jsonl",
        "npu",
        line("aten::convolution", 500, module="stem"),
        line("aten::mm", 200, module="head"),
        line("aten::mm", 150, phase="backward", module="head"),
        line("aten::relu", 10, module="stem"),
        line("aten::transpose", 40, module="stem"),
    )
    return gpu, npu


def test_operators_are_paired_behind_their_aliases(pair: tuple[Path, Path]) -> None:
    found = {p.name: p for p in diff(*pair).pairs["operators"]}
    assert found["aten::convolution"].us == (100, 500)
    assert found["aten::relu"].calls == (2, 2)
    assert found["aten::transpose"].ratio is None


def test_the_largest_loss_comes_first(pair: tuple[Path, Path]) -> None:
    found = diff(*pair)
    assert [p.name for p in found.pairs["operators"]][:2] == [
        "aten::convolution",
        "aten::transpose",
    ]
    assert found.pairs["operators"][-1].name == "aten::mm"
    assert found.pairs["operators"][-1].lost_us == -50


def test_modules_are_aligned_without_the_wrapper_s_name(pair: tuple[Path, Path]) -> None:
    found = {p.name: p for p in diff(*pair).pairs["modules"]}
    assert set(found) == {"stem", "head"}
    assert found["stem"].us == (110, 550)


def test_phases_are_compared(pair: tuple[Path, Path]) -> None:
    found = {p.name: p.lost_us for p in diff(*pair).pairs["phases"]}
    assert found == {"forward": 340, "backward": 50}


def test_a_rehearsal_is_said_to_have_no_times(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    simulated = trace(tmp_path / "r.jsonl", "npu", line("aten::mm", 0), rehearsal=True)
    found = diff(pair[0], simulated)
    assert "no times" in found.notes[0]


def test_a_missing_file_is_one_error(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    with pytest.raises(JoyError, match="no such file"):
        diff(pair[0], tmp_path / "none.jsonl")


def test_a_trace_with_itself_loses_nothing(pair: tuple[Path, Path]) -> None:
    found = diff(pair[0], pair[0])
    assert all(p.lost_us == 0 for pairs in found.pairs.values() for p in pairs)


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_the_command_writes_every_format(
    form: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "joymigrate", "profile", "diff", *map(str, pair)]
    subprocess.run([*command, "--format", form, "-o", str(out)], check=True)
    text = out.read_text(encoding="utf-8")
    assert "aten::convolution" in text
    if form == "json":
        document = json.loads(text)
        assert document["schema"] == "joymigrate.profile-diff/1"
        assert document["operators"][0]["lost_us"] == 400

"""Triton kernels against the chip's documented limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.cli._main import run as joymigrate
from joymigrate.profile import port

HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n){cast}
    {store}
"""
STORE = "tl.store(out + at, value, mask=at < n)"


def judge(source: str) -> port.Checked:
    known = port.load(chips.target("ascend"))
    (found,) = port.check_source((HEAD + source).encode(), "own.py", known)
    return found


def said(found: port.Checked, level: str) -> str:
    return "\n".join(note.message for note in found.notes if note.level == level)


def test_a_plain_kernel_works() -> None:
    found = judge(KERNEL.format(cast="", store=STORE) + "kernel[(40,)](x, out, n, BLOCK=1024)\n")
    assert found.verdict == "works"
    assert not found.notes


def test_a_tile_above_the_cores_memory_needs_changes() -> None:
    found = judge(KERNEL.format(cast="", store=STORE) + "kernel[(4,)](x, out, n, BLOCK=65536)\n")
    assert found.verdict == "needs changes"
    assert "BLOCK=65536" in said(found, "changes")


def test_a_tile_of_an_autotuned_configuration_counts() -> None:
    tuned = "@triton.autotune([triton.Config({'BLOCK': 65536}, num_warps=8)], key=['n'])"
    found = judge(tuned + KERNEL.format(cast="", store=STORE))
    assert "BLOCK=65536" in said(found, "changes")
    assert "num_warps" in said(found, "note")


def test_a_grid_above_the_limit_needs_changes() -> None:
    found = judge(KERNEL.format(cast="", store=STORE) + "kernel[(70000,)](x, out, n, BLOCK=64)\n")
    assert "70000 programs" in said(found, "changes")


@pytest.mark.parametrize(
    ("cast", "store", "part"),
    [
        (".to(tl.float64)", STORE, "float64"),
        ("", "tl.atomic_add(out + at, value, sem='relaxed')", "sem='relaxed'"),
        ("", "tl.inline_asm_elementwise('add', '=r,r', [value], tl.int32, True, 1)", "inline_asm"),
    ],
)
def test_what_the_chips_triton_does_not_take_is_named(cast: str, store: str, part: str) -> None:
    found = judge(KERNEL.format(cast=cast, store=store))
    assert found.verdict == "needs changes"
    assert part in said(found, "changes")


def test_gpu_only_parts_of_the_language_fail() -> None:
    found = judge(KERNEL.format(cast="", store="tl.extra.cuda.globaltimer()"))
    assert found.verdict == "does not work"


def test_a_function_of_another_jit_is_no_kernel() -> None:
    known = port.load(chips.target("ascend"))
    source = b"import numba\n@numba.jit\ndef f(x):\n    return x\n"
    assert port.check_source(source, "own.py", known) == []


def test_the_example_is_judged_through_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples/diffusion/kernels.py"
    assert joymigrate(["profile", "port", str(path), "--to", "ascend", "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    (kernel,) = made["kernels"]
    assert made["schema"] == "joymigrate.port/1"
    assert kernel["kernel"] == "gated_silu_kernel"
    assert kernel["verdict"] == "needs changes"
    assert any("65536" in note["message"] for note in kernel["notes"])
    assert joymigrate(["profile", "port", str(path)]) == 0
    assert "nothing was compiled or run" in capsys.readouterr().out


def test_bad_input_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert joymigrate(["profile", "port", str(broken)]) == 2
    assert "not valid Python" in capsys.readouterr().err
    assert joymigrate(["profile", "port", str(tmp_path / "none")]) == 2
    assert joymigrate(["profile", "port", str(broken), "--to", "musa"]) == 2
    assert "nothing is known about Triton" in capsys.readouterr().err

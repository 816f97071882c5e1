"""Our Triton kernels compile for a GPU, in bfloat16, and fit into its shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "programs" / "compile.py"
SMALL = ("add_rms_norm", "rotary", "sub_mul_concat", "matmul_add_fp32", "attention 3")


def compiled(folder: Path, *names: str) -> dict[str, dict[str, bool]]:
    """Compile in a process of its own, where the interpreter is off."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    path = folder / "found.json"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), *names],
        capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, bool]] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_the_kernels_compile_for_compute_capability_9(tmp_path: Path) -> None:
    found = compiled(tmp_path, *SMALL)
    assert len(found) == 7
    assert all(result == {"ptx": True, "fits": True} for result in found.values())


@pytest.mark.slow
def test_attention_compiles_in_every_mode_forward_and_backward(tmp_path: Path) -> None:
    found = compiled(tmp_path, "attention")
    assert len(found) == 15
    assert all(result == {"ptx": True, "fits": True} for result in found.values())

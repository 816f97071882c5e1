"""Planted faults are named, and clean runs with another chip's rounding pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.faults import FAULTS, PROGRAMS, Fault
from tests.verify.harness import record, replay

FAST = (
    "eps 1e-5", "rope interleaved", "mask off by one", "dropout on", "backward times 1.02",
    "no bias correction", "loss scaled", "shuffled", "other initial weights",
)  # fmt: skip
SOME = [fault for fault in FAULTS if fault.name in FAST]


@pytest.fixture(scope="module")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Baselines of this module, made when they are first asked for."""
    return tmp_path_factory.mktemp("baselines")


def baseline(folder: Path, program: str, environment: dict[str, str]) -> Path:
    path = folder / f"{program}-{'-'.join(environment.values())}.jmb"
    if not path.exists():
        record(PROGRAMS / f"{program}.py", path, environment)
    return path


def check(fault: Fault, baselines: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    program = tmp_path / "target.py"
    program.write_text(fault.source())
    base = baseline(baselines, fault.program, environment)
    found = replay(base, program, tmp_path / "target.jmb", environment)
    first = found.first_divergence
    assert first is not None, found.reason
    assert (first.module, first.phase) == (fault.module, fault.phase), first
    assert [r.module for r in found.records if r.status.failed] == [fault.module]


@pytest.mark.parametrize("fault", SOME, ids=lambda fault: fault.name)
def test_a_fault_in_float32_is_named(fault: Fault, baselines: Path, tmp_path: Path) -> None:
    check(fault, baselines, tmp_path, {"SEED": "0", "DTYPE": "float32"})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", ["0", "1", "2"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_named(
    fault: Fault, seed: str, dtype: str, baselines: Path, tmp_path: Path
) -> None:
    check(fault, baselines, tmp_path, {"SEED": seed, "DTYPE": dtype})


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        ("transformer", "float32"),
        ("ranking", "bfloat16"),
        pytest.param("transformer", "bfloat16", marks=pytest.mark.slow),
        pytest.param("convnet", "float32", marks=pytest.mark.slow),
        pytest.param("convnet", "bfloat16", marks=pytest.mark.slow),
        pytest.param("ranking", "float32", marks=pytest.mark.slow),
    ],
)
def test_a_clean_run_with_other_rounding_and_threads_passes(
    program: str, dtype: str, baselines: Path, tmp_path: Path
) -> None:
    environment = {"SEED": "3", "DTYPE": dtype}
    base = baseline(baselines, program, environment)
    found = replay(
        base,
        PROGRAMS / f"{program}.py",
        tmp_path / "t.jmb",
        {**environment, "THREADS": "2"},
        noise=1.0,
    )
    assert found.verdict.value == "pass", (found.reason, found.first_divergence)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["transformer", "convnet", "ranking"])
def test_the_same_program_in_bfloat16_passes_a_float32_baseline(
    program: str, baselines: Path, tmp_path: Path
) -> None:
    base = baseline(baselines, program, {"SEED": "0", "DTYPE": "float32"})
    environment = {"SEED": "0", "DTYPE": "bfloat16"}
    found = replay(base, PROGRAMS / f"{program}.py", tmp_path / "t.jmb", environment)
    assert found.verdict.value == "pass", (found.reason, found.first_divergence)

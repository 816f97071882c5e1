"""Every layout computes the same: losses over 20 steps against one process, within 1e-5."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_ranks
from tests.run.train import jobs

PROGRAM = Path(__file__).parent / "programs" / "layouts.py"
NEAR = 1e-5


def several(count: int, *arguments: object, front: tuple[str, ...] = ()) -> None:
    """Run the program in several processes; with `front`, under torchrun below that command."""
    if not front:
        ended = run_ranks(PROGRAM, count, *map(str, arguments), limit=400)
        assert [one.code for one in ended] == [0] * count, [one.err[-4000:] for one in ended]
        return
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    command = [
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"),
        *(str(PROGRAM), *map(str, arguments)),
    ]
    start = [sys.executable, *front, "python", *command]
    done = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def alone(path: Path, run: Path, *sets: str) -> list[float]:
    """The losses of one process."""
    from joymigrate.run.train import job, launch

    code = launch.launch(
        job.load(path, [f"run={run}", *sets]), launch.LaunchOptions(quiet=True), lambda line: None
    )
    assert code == 0
    return jobs.losses(run)


def worst(one: list[float], other: list[float]) -> float:
    """The largest difference."""
    assert len(one) == len(other) == 20
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """Runs on two processes, and the losses of one."""
    folder = tmp_path_factory.mktemp("layouts")
    path = jobs.write(folder)
    several(
        2, "cpu", path, folder,
        "ddp=dp:2", "fsdp=fsdp:2", "tp=tp:2", "pp=pp:2",
        "moved=fsdp:2+fsdp:1,tp:2", "staged=tp:2+tp:1,pp:2",
    )  # fmt: skip
    return folder, alone(path, folder / "single")


@pytest.mark.parametrize("name", ["ddp", "fsdp", "tp", "pp"])
def test_two_processes_lose_as_one_does(two: tuple[Path, list[float]], name: str) -> None:
    folder, expected = two
    assert worst(jobs.losses(folder / name), expected) < NEAR


@pytest.mark.parametrize("name", ["moved", "staged"])
def test_a_checkpoint_opens_on_another_layout(two: tuple[Path, list[float]], name: str) -> None:
    folder, expected = two
    assert worst(jobs.losses(folder / name), expected) < NEAR


def test_the_loss_falls(two: tuple[Path, list[float]]) -> None:
    _, expected = two
    assert expected[-1] < expected[0] - 0.3


@pytest.mark.slow
def test_four_processes_lose_as_one_does(tmp_path: Path) -> None:
    path = jobs.write(tmp_path)
    names = ("fsdp:2,tp:2", "dp:2,fsdp:2", "dp:2,tp:2", "pp:2,dp:2", "pp:2,tp:2")
    several(4, "cpu", path, tmp_path, *(f"four{i}={name}" for i, name in enumerate(names)))
    expected = alone(path, tmp_path / "single")
    for index, name in enumerate(names):
        assert worst(jobs.losses(tmp_path / f"four{index}"), expected) < NEAR, name


@pytest.mark.slow
def test_a_tied_head_is_split_with_its_embedding(tmp_path: Path) -> None:
    model = {"from_config": {**jobs.TINY, "tie_word_embeddings": True}}
    path = jobs.write(tmp_path, model=model)
    several(2, "cpu", path, tmp_path, "fsdp=fsdp:2", "tp=tp:2", "pp=pp:2")
    expected = alone(path, tmp_path / "single")
    for name in ("fsdp", "tp", "pp"):
        assert worst(jobs.losses(tmp_path / name), expected) < NEAR, name


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"dora": True}, {"rslora": True}])
def test_adapters_and_small_passes_lose_as_one_process_does(
    tmp_path: Path, form: dict[str, Any]
) -> None:
    path = jobs.write(
        tmp_path, data={"train": "chat.jsonl", "max_length": 128}, task="sft",
        method={"name": "lora", **form}, batch={"size": 8, "micro": 2},
    )  # fmt: skip
    several(2, "cpu", path, tmp_path, "ddp=dp:2", "fsdp=fsdp:2")
    expected = alone(path, tmp_path / "single", "batch.micro=8")
    for name in ("ddp", "fsdp"):
        assert worst(jobs.losses(tmp_path / name), expected) < NEAR, name


@pytest.mark.slow
@pytest.mark.skipif(PathFinder.find_spec("torch_npu") is None, reason="pip install torch-npu")
def test_the_rehearsed_chip_loses_as_the_cpu_does(tmp_path: Path) -> None:
    path = jobs.write(tmp_path)
    front = ("-m", "joymigrate", "rehearse", "-q", "--devices", "2", "--")
    several(2, "auto", path, tmp_path, "ddp=dp:2", "fsdp=fsdp:2", "tp=tp:2", front=front)
    expected = alone(path, tmp_path / "single")
    for name in ("ddp", "fsdp", "tp"):
        assert worst(jobs.losses(tmp_path / name), expected) < NEAR, name

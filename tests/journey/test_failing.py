"""Why a program fails before its migration: by its own fault, for want of a GPU, or untold."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.journey.failing import FailureReason, find_exception, why

HEAD = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("log", "reason", "said"),
    [
        (
            f"{HEAD}    import deepspeed\nModuleNotFoundError: No module named 'deepspeed'\n",
            FailureReason.BROKEN,
            "ModuleNotFoundError: No module named 'deepspeed'",
        ),
        (
            f"{HEAD}    open('data.csv')\nFileNotFoundError: [Errno 2] No such file: 'data.csv'\n",
            FailureReason.BROKEN,
            "FileNotFoundError: [Errno 2] No such file: 'data.csv'",
        ),
        (
            "train.py: error: unrecognized arguments: --stps 3\n",
            FailureReason.BROKEN,
            "train.py: error: ",
        ),
        ("python: can't open file 'x.py': [Errno 2]\n", FailureReason.BROKEN, "python: can't open"),
        (
            f"{HEAD}    model.cuda()\nAssertionError: Torch not compiled with CUDA enabled\n",
            FailureReason.NEEDS_GPU,
            "AssertionError: Torch not compiled with CUDA enabled",
        ),
        (
            f"{HEAD}    assert torch.cuda.is_available()\n           ^^^^^\nAssertionError\n",
            FailureReason.NEEDS_GPU,
            "AssertionError",
        ),
        ("no GPU found, stopping\n", FailureReason.NEEDS_GPU, "no GPU found, stopping"),
        (
            f"{HEAD}    import apex\nImportError: libcudart.so.12: cannot open shared object\n",
            FailureReason.NEEDS_GPU,
            "ImportError: libcudart",
        ),
        (
            f"{HEAD}    name = input('which? ')\nEOFError: EOF when reading a line\n",
            FailureReason.BROKEN,
            "EOFError: EOF when reading a line",
        ),
        ("", FailureReason.UNCLEAR, ""),
        ("something odd\n", FailureReason.UNCLEAR, "something odd"),
    ],
)
def test_the_reason_is_told_from_the_last_words(log: str, reason: FailureReason, said: str) -> None:
    recorder = "error: the program ended with exit code 1; nothing was recorded\n  at: a.jmb\n"
    found, text = why(log + recorder, gpu_here=False)
    assert found is reason
    assert text.startswith(said)


def test_with_a_gpu_in_the_machine_every_failure_is_the_programs_own() -> None:
    assert (
        why("AssertionError: Torch not compiled with CUDA enabled", True)[0] is FailureReason.BROKEN
    )


def of_torchrun(rank: str) -> str:
    """The log of a launcher whose rank said `rank`."""
    return (
        "W1121 02:40:39.8 32246 torch/distributed/run.py:874] Setting OMP_NUM_THREADS\n"
        f"{rank}"
        "W1121 02:40:42.6 32246 torch/distributed/elastic/multiprocessing/api.py:1028] closing\n"
        "E1121 02:40:42.7 32246 torch/distributed/elastic/multiprocessing/api.py:1002] failed\n"
        'Traceback (most recent call last):\n  File "torchrun", line 6, in <module>\n'
        "    sys.exit(main())\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============\ntrain.py FAILED\n------------\nRoot Cause (first observed failure):\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs\n============\n"
    )


@pytest.mark.parametrize(
    ("rank", "reason", "said"),
    [
        (
            f'{HEAD}    raise RuntimeError("no NCCL")\nRuntimeError: no NCCL built in\n',
            FailureReason.NEEDS_GPU,
            "RuntimeError: no NCCL built in",
        ),
        (
            '[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 9\n'
            "[rank0]:     rows['b']\n[rank0]: KeyError: 'b'\n",
            FailureReason.BROKEN,
            "KeyError: 'b'",
        ),
    ],
)
def test_a_launcher_does_not_hide_what_its_rank_said(
    rank: str, reason: FailureReason, said: str
) -> None:
    assert why(of_torchrun(rank), gpu_here=False) == (reason, said)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("train.py", "venv/lib/torch.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def test_the_line_that_ended_the_program_is_its_own_last_one(project: Path) -> None:
    log = (
        f'Traceback (most recent call last):\n  File "{project}/train.py", line 68, in main\n'
        f'    graph = make()\n            ^^^^\n  File "{project}/venv/lib/torch.py", line 9\n'
        "    raise\nRuntimeError: a dummy base class\n[ERROR] 2026 ERR99999\n"
        "rehearsal: simulated\n  train.py:64: float64 becomes float32 on the device\n"
    )
    assert find_exception(log, project, {"venv"}) == (
        "train.py",
        68,
        "RuntimeError: a dummy base class",
    )


def test_in_a_rank_it_is_the_ranks(project: Path) -> None:
    rank = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "train.py", line 9, in main\n[rank0]:     rows\n[rank0]: KeyError: 1\n'
    )
    assert find_exception(of_torchrun(rank), project, ()) == ("train.py", 9, "KeyError: 1")


def test_a_program_that_says_nothing_has_no_such_line(project: Path) -> None:
    assert find_exception("killed\n", project, ()) is None
    elsewhere = 'Traceback (most recent call last):\n  File "/usr/x.py", line 1\nOSError: full\n'
    assert find_exception(elsewhere, project, ()) is None


ACCELERATE = (
    'Traceback (most recent call last):\n  File "bin/accelerate", line 6, in <module>\n'
    "    sys.exit(main())\n"
    '  File "accelerate/commands/launch.py", line 999, in simple_launcher\n'
    "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\n"
    "subprocess.CalledProcessError: Command '['python', 'a.py']' returned non-zero exit status 1.\n"
)


def test_accelerate_is_looked_through_to_the_program_that_it_started() -> None:
    log = f"{HEAD}    import scipy\nModuleNotFoundError: No module named 'scipy'\n{ACCELERATE}"
    assert why(log, gpu_here=False) == (
        FailureReason.BROKEN, "ModuleNotFoundError: No module named 'scipy'",
    )  # fmt: skip


def test_a_launchers_own_words_are_all_there_is_where_the_program_said_nothing() -> None:
    reason, said = why(ACCELERATE, gpu_here=False)
    assert reason is FailureReason.UNCLEAR
    assert said.startswith("subprocess.CalledProcessError: ")

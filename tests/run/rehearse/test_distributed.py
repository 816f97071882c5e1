"""Several processes over the package's own process group: equal to one process, and no remains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run.rehearse.conftest import PROGRAMS, Outcome, Run

pytestmark = pytest.mark.compiler
CHECKS = str(PROGRAMS / "collectives.py")


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def assert_equal_to_one_process(done: Outcome, ranks: int) -> None:
    assert done.code == 0, done.err[-3000:]
    found = [json.loads(line) for line in done.out.splitlines() if line.startswith('{"rank"')]
    assert sorted(rank["rank"] for rank in found) == list(range(ranks))
    for rank in found:
        assert len(rank["results"]) == 20
        wrong = {k: v for k, v in rank["results"].items() if isinstance(v, str) or v > 1e-5}
        assert not wrong
    assert done.report is not None
    assert {rank["rank"] for rank in done.report["ranks"]} >= set(range(ranks))
    assert len(done.report["peak_memory_bytes"]) == ranks
    told = {row["trap"] for row in done.report["traps"]}
    # A forked worker uses no card; a batch, and a receive before the send, cross nothing.
    assert not told & {"ranks-of-one-card", "sends-that-cross"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dtype", "rank 0 reduce of float32 x 1, rank 1 reduce of int32 x 1"),
        ("size", "rank 0 all_reduce of float32 x 4, rank 1 all_reduce of float32 x 5"),
        ("root", "with another root or reduction"),
        ("reduction", "with another root or reduction"),
    ],
)
def test_ranks_that_do_not_mean_the_same_are_told(rehearse: Run, kind: str, words: str) -> None:
    program = str(PROGRAMS / "unlike_ranks.py")
    done = rehearse(
        *("torchrun", "--nproc-per-node", "2", program, kind), options=("--devices", "2")
    )
    assert words in done.out
    assert "nothing" not in done.out


@pytest.mark.slow
def test_kernels_that_communicate_equal_one_process(rehearse: Run) -> None:
    done = rehearse(
        *("torchrun", "--nproc-per-node", "2", str(PROGRAMS / "kernels_over_ranks.py")),
        options=("--devices", "2"),
    )
    assert done.code == 0, done.err[-3000:]
    found = json.loads(next(line for line in done.out.splitlines() if line.startswith("{")))
    assert len(found) == 12
    assert max(found.values()) < 1e-3  # half precision


def test_two_ranks_equal_one_process(rehearse: Run) -> None:
    before = shared_memory()
    done = rehearse("torchrun", "--nproc-per-node", "2", CHECKS, options=("--devices", "2"))
    assert_equal_to_one_process(done, 2)
    assert not {name for name in shared_memory() - before if "joymigrate" in name}


@pytest.mark.slow
def test_four_ranks_equal_one_process(rehearse: Run) -> None:
    done = rehearse("torchrun", "--nproc-per-node", "4", CHECKS, options=("--devices", "4"))
    assert_equal_to_one_process(done, 4)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_with_a_message(rehearse: Run) -> None:
    done = rehearse("python", str(PROGRAMS / "killed_rank.py"))
    assert "codes 1 -9" in done.out
    assert "rehearsal: rank 1" in done.out
    assert "ended while rank 0 waited for it in all_reduce" in done.out
    assert "unreachable" not in done.out

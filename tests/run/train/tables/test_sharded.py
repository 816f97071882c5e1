"""Tables over several processes: one process's numbers, and the pipeline's bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forked import run_ranks
from tests.run.rehearse.conftest import Run, rehearse  # noqa: F401

STEPS = 12
PROGRAM = str(Path(__file__).parent / "programs" / "sharded.py")


def results(text: str) -> list[dict]:
    """Every rank's JSON; two ranks may write into one line."""
    found, decoder = [], json.JSONDecoder()
    while (at := text.find('{"rank"')) >= 0:
        item, end = decoder.raw_decode(text[at:])
        found.append(item)
        text = text[at + end :]
    return sorted(found, key=lambda item: item["rank"])


def run(processes: int, *words: str, program: str = PROGRAM) -> list[dict]:
    ended = run_ranks(Path(program), processes, *words)
    assert [one.code for one in ended] == [0] * processes, [one.err[-3000:] for one in ended]
    found = results("".join(one.out for one in ended))
    assert len(found) == processes
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["row", *(pytest.param(way, marks=pytest.mark.slow) for way in ("column", "table"))]
)
def test_two_processes_train_as_one_and_the_pipeline_as_one_stage_after_another(way: str) -> None:
    alone, both = run(1, "static", way)[0], run(2, "static", way)
    for rank in both:
        assert rank["different"] == 0
        # The same batch in two halves: sums in another order.
        assert rank["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert rank["bytes"][0] < rank["bytes"][1]
    sums = [rank["sums"] for rank in both]
    assert any(b > 0 for _, b in sums)  # long bags; of the short ones rows are sent
    assert any(a < STEPS for a, _ in sums)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["row", "column"])
def test_rows_in_16_bits_keep_the_pipelines_bits_and_halve_the_way(way: str) -> None:
    alone, both, half = run(1, "half", way)[0], run(2, "cache", way), run(2, "half", way)
    for rank, whole in zip(half, both, strict=True):
        assert rank["different"] == 0
        assert rank["losses"] == pytest.approx(alone["losses"], rel=0.02)  # 8 bits of a gradient
        assert rank["losses"] != pytest.approx(whole["losses"], abs=1e-7)
        assert rank["bytes"][0] < 0.8 * whole["bytes"][0]  # narrow rows: ids are a third


@pytest.mark.slow
def test_processes_that_stop_at_different_moments_end_and_go_on() -> None:
    first, second = run(2, program=str(Path(PROGRAM).with_name("uneven.py")))
    assert (first["left"], second["left"]) == (0, 0)  # threads that still wait for the other
    assert (first["end"], second["end"]) == (4, 4)
    assert "error" not in first
    assert "process 0 has no more batches" in second["error"]
    assert len(first["losses"]) == len(second["losses"]) == STEPS


@pytest.mark.parametrize("options", ["evictions", pytest.param("cache", marks=pytest.mark.slow)])
def test_evictions_with_gradients_to_come_change_no_bit(options: str) -> None:
    assert [rank["different"] for rank in run(2, options, "row")] == [0, 0]


@pytest.mark.slow
def test_four_processes() -> None:
    assert [rank["different"] for rank in run(4, "evictions", "row")] == [0, 0, 0, 0]


@pytest.mark.slow
def test_rows_that_are_allowed_to_be_stale_are(request: pytest.FixtureRequest) -> None:
    """What the pipeline refreshes matters: without it the bits differ."""
    assert any(rank["different"] for rank in run(2, "static", "row", "cpu", "100"))


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_the_rehearsed_chip_gives_the_same_bits_in_the_pipeline(
    rehearse: Run,  # noqa: F811
    processes: int,
) -> None:
    done = rehearse(
        "torchrun", "--nproc-per-node", str(processes), PROGRAM, "evictions", "row", "npu",
        options=("--devices", str(processes)),
    )  # fmt: skip
    assert done.code == 0, done.err[-3000:]
    assert [rank["different"] for rank in results(done.out)] == [0] * processes
    assert done.report is not None
    assert done.report["fallbacks"] == []

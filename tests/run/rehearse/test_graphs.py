"""NPUGraph: a capture replays what was put into it, and refuses what a chip refuses in one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.run.rehearse import aliases, traps
from tests.run.rehearse.conftest import Run

PROGRAM = str(Path(__file__).parent / "programs" / "graphs.py")


@pytest.mark.compiler
@pytest.mark.dear
def test_a_replay_computes_with_the_numbers_of_now(rehearse: Run) -> None:
    done = rehearse("python", PROGRAM, "replayed")
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    assert found["replay"] == [True, [3.0] * 3, [9.0] * 3]  # poison before the first replay
    # A capture computes nothing; each replay adds one.
    assert found["in_place"] == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]]
    assert found["joined_stream"] == [0, 3, 6, 9, 12, 15]
    assert found["training_step"] < 1e-6  # float32 sums in another order
    assert done.report["refusals"] == []


@pytest.mark.compiler
@pytest.mark.dear
def test_what_waits_for_the_host_is_refused_with_its_line(rehearse: Run) -> None:
    done = rehearse("python", PROGRAM, "refused")
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    assert found.pop("unjoined_stream") == ["107025"]
    assert found.pop("replay_inside") == ["107026"]
    assert "end the capture before the model is used" in done.err
    assert "the replay of another graph" in json.dumps(done.report["refusals"])
    assert len(found) == 8
    assert all(codes == ["107027"] for codes in found.values()), found
    waits = [row for row in done.report["refusals"] if row["code"] == 107027]
    assert sum(row["calls"] for row in waits) == len(found)
    assert all(row["where"].startswith(PROGRAM) for row in done.report["refusals"])
    assert "waits for a stream while its graph is captured (107027)" in done.err
    assert "help: keep .item(), .cpu(), .tolist(), print, nonzero" in done.err


def test_a_function_that_the_rehearsal_lacks_is_no_word_of_the_chip() -> None:
    found = traps.recognise("Failed to find function aclrtValueWait, ERR00008 PTA resource error")
    assert found is not None
    assert "the rehearsal has not" in found.remedy


@pytest.mark.parametrize("dtype", ["float16", "complex64", "int8", "int64", "uint8", "bool"])
def test_poison_is_nothing_that_a_kernel_writes(dtype: str) -> None:
    import torch

    one = torch.zeros(3, dtype=getattr(torch, dtype))
    aliases.poison(one)
    wanted = bytes([aliases.POISON]) * one.element_size()
    if one.is_floating_point() or one.is_complex():
        assert one.isnan().all()
    elif one.dtype is torch.bool:
        assert one.all()
    else:
        assert one.numpy().tobytes() == wanted * 3

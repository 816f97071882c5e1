"""Sources mixed by weights: shares, when an epoch ends, resuming, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.errors import JoyError
from joymigrate.run.train import job as jobs_of
from joymigrate.run.train import launch
from joymigrate.run.train.mixture import CHUNK, MixedOrder
from tests.run.train import jobs


@pytest.mark.parametrize(
    ("until", "whole"), [("first", (0,)), ("all", (0, 1, 2)), ("largest", (2,))]
)
def test_an_epoch_ends_as_it_is_said(until: str, whole: tuple[int, ...]) -> None:
    sizes, weights = (40, 90, 300), (2.0, 1.0, 3.0)
    order = MixedOrder(sizes, weights, 7, until)
    found = order.at(0, order.size)
    borders = np.cumsum((0, *sizes))
    seen = [found[(found >= a) & (found < b)] - a for a, b in itertools.pairwise(borders)]
    full = [len(set(one.tolist())) == size for one, size in zip(seen, sizes, strict=True)]
    assert all(full[number] for number in whole)
    before = [set(one.tolist()) for one in seen]  # one position earlier it was not over
    last = int(found[-1])
    source = int(np.searchsorted(borders, last, side="right")) - 1
    before[source].discard(last - int(borders[source]))
    assert not all(len(before[n]) == sizes[n] for n in whole)
    if until == "first":
        assert len(set(found.tolist())) == len(found)
    assert order.counts(order.size).tolist() == [len(one) for one in seen]
    for one, size in zip(seen, sizes, strict=True):  # each pass has every sample once
        for begin in range(0, len(one) - size + 1, size):
            assert len(set(one[begin : begin + size].tolist())) == size


def test_shares_are_the_weights_and_any_start_gives_the_same() -> None:
    order = MixedOrder((1000, 1000, 50), (1, 2, 5), 3, "largest")
    counts = order.counts(200_000) / 200_000
    assert counts == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.005)
    for start in (0, 999, CHUNK - 3, CHUNK + 70):
        whole = order.at(start, 50).tolist()
        assert [int(order.at(start + n, 1)[0]) for n in range(50)] == whole
        again = MixedOrder((1000, 1000, 50), (1, 2, 5), 3, "largest")
        assert again.at(start, 50).tolist() == whole
    assert MixedOrder((1000, 1000, 50), (1, 2, 5), 4, "largest").at(0, 50).tolist() != whole


def test_two_threads_count_as_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    order, alone = (MixedOrder([1000, 2000], [1, 1], 0, "first") for _ in range(2))
    tally = order.tally
    both = threading.Barrier(2)

    def meet(found: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # unless one waits for the other, both have drawn the same chunk
        return tally(found)

    monkeypatch.setattr(order, "tally", meet)
    threads = [threading.Thread(target=order.counts, args=(CHUNK,)) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    monkeypatch.undo()
    assert order.counts(3 * CHUNK).tolist() == alone.counts(3 * CHUNK).tolist()
    assert len(order.known) == len(alone.known)


def write(folder: Path, name: str = "job", **changes: Any) -> Path:
    (folder / "b.jsonl").write_text('{"text": "the sea the sky"}\n' * 60)
    data = {"train": ["text.jsonl", "b.jsonl"], "max_length": 64, "packing": False,
            "weights": [3, 1], **changes.pop("data", {})}  # fmt: skip
    changes = {"run": f"runs/{name}", "schedule": "constant", **changes}
    return jobs.write(folder, name, data=data, **changes)


def run(path: Path, *sets: str) -> int:
    start = launch.LaunchOptions(quiet=True, project=path.parent)
    return launch.launch(jobs_of.load(path, sets), start, lambda line: None)


def test_a_run_counts_its_sources_and_goes_on_exactly(tmp_path: Path, capsys: Any) -> None:
    assert run(write(tmp_path)) == 0
    assert run(write(tmp_path, "cut", steps=7)) == 0
    assert run(write(tmp_path, "cut")) == 0
    assert jobs.losses(tmp_path / "runs/cut") == jobs.losses(tmp_path / "runs/job")
    lines = (tmp_path / "runs/job/metrics.jsonl").read_text().splitlines()
    told = [json.loads(line)["sources"] for line in lines]
    assert [sum(one.values()) for one in told] == [8 * n for n in range(1, 21)]
    assert set(told[0]) == {"text.jsonl", "b.jsonl"}
    assert told[-1]["text.jsonl"] > 2 * told[-1]["b.jsonl"] > 0
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"text": "new"}\n')
    path = tmp_path / "cut.yaml"
    assert run(path, "steps=30") == 2
    assert "the data changed since the last checkpoint: b.jsonl" in capsys.readouterr().err


def test_until_the_first_no_sample_comes_twice(tmp_path: Path) -> None:
    assert run(write(tmp_path, steps=None, logging={"samples": True})) == 0
    consumed = (tmp_path / "runs/job/samples/rank0.jsonl").read_text().splitlines()
    seen = [sample for line in consumed for sample in json.loads(line)["samples"]]
    assert len(set(seen)) == len(seen) > 160


def test_what_cannot_be_mixed_is_named(tmp_path: Path) -> None:
    for data, named in (
        ({"weights": [1]}, "1 weights for 2 files"),
        ({"weights": [1, 0]}, "above 0"),
        ({"train": ["b.jsonl", "b.jsonl"]}, "stands twice"),
        ({"schema": "features.yaml"}, "not mixed by weights"),
    ):
        with pytest.raises(JoyError, match=named):
            jobs_of.load(write(tmp_path, data=data))

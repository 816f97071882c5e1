"""Published versions: applied whole between batches, refused whole, taken back."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking import program
from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.request import check
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.train.formats import versions as published

ROWS = 8


class Balance(torch.nn.Module):
    """0 while table and dense weight are of one version."""

    def __init__(self) -> None:
        super().__init__()
        self.item = torch.nn.Embedding(ROWS, 4)
        self.level = torch.nn.Parameter(torch.zeros(1))
        torch.nn.init.zeros_(self.item.weight)

    def forward(self, ids: Any) -> Any:
        return self.item(ids).mean(-1) - self.level


@pytest.fixture
def model(tmp_path: Path) -> program.RankingProgram:
    count = torch.export.Dim("count")
    made = torch.export.export(
        Balance(), (), kwargs={"ids": torch.zeros(4, dtype=torch.long)},
        dynamic_shapes={"ids": {0: count}},
    )  # fmt: skip
    torch.export.save(made, tmp_path / "balance.pt2")
    return program.load(tmp_path / "balance.pt2")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path / "cache"))


def publish(
    folder: Path, number: int, rows: Any = None, level: Any = None, ids: Any = None
) -> None:
    store = published.FolderVersions(folder)
    form = "snapshot" if number == 1 else "delta"
    table = torch.full((ROWS, 4), float(number)) if rows is None else rows
    held = torch.full((1,), float(number)) if level is None else level
    content = {
        "dense.safetensors": published.pack({"level": held}),
        "table.item.safetensors": published.pack({
            "ids": torch.arange(len(table)) if ids is None else ids, "rows": table,
            "removed": torch.zeros(0, dtype=torch.int64),
        }),
    }  # fmt: skip
    described = published.describe(content)
    previous = (
        store.manifest(number - 1, "snapshot" if number == 2 else "delta")["identity"]
        if number > 1
        else ""
    )
    manifest = {
        "schema": "joymigrate.version/1", "version": number, "form": form,
        "identity": published.identity(previous, described), "previous": previous or None,
        "time": 0.0, "files": described, "newest_event": 5.0,
        "tables": {"item": {"file": "table.item.safetensors", "dim": 4, "dtype": "float32",
                            "ids": ROWS, "removed": 0, "rows": ROWS,
                            "initial": {"name": "zero"}}},
    }  # fmt: skip
    store.publish(manifest, content)


def score(engine: RankingEngine) -> float:
    return float(engine.program.run({"ids": np.array([3])})[0][0])


def test_versions_are_applied_whole_and_taken_back(
    model: program.RankingProgram, tmp_path: Path
) -> None:
    place = tmp_path / "published"
    publish(place, 1)
    engine = RankingEngine(model)
    following = Versions(engine, str(place))
    following.open()
    assert (engine.version, score(engine)) == ("1", 0.0)
    publish(place, 2)
    following.follow()
    assert (engine.version, score(engine)) == ("2", 0.0)
    assert float(model.state["level"]) == 2.0
    assert following.back() == 1
    assert (engine.version, float(model.state["level"]), score(engine)) == ("1", 1.0, 0.0)
    following.follow()
    assert engine.version == "1"  # pinned, also for the next process
    again = Versions(RankingEngine(model), str(place))
    assert again.pinned == 1
    following.resume()
    following.follow()
    assert engine.version == "2"


@pytest.mark.parametrize(
    ("rows", "level", "ids"),
    [
        (torch.full((ROWS + 1, 4), 2.0), None, None),
        (torch.full((ROWS, 5), 2.0), None, None),
        (torch.full((ROWS, 4), float("nan")), None, None),
        (None, torch.zeros(2), None),
        (None, torch.full((1,), float("inf")), None),
        (None, None, torch.arange(ROWS) + 1),
        (None, None, torch.arange(ROWS) - 1),
        (None, None, torch.arange(ROWS) % 4),
        (None, None, torch.arange(ROWS).float()),
        (None, None, torch.arange(ROWS)[:, None]),
    ],
)
def test_a_version_that_does_not_fit_changes_nothing(
    model: program.RankingProgram, tmp_path: Path, rows: Any, level: Any, ids: Any
) -> None:
    place = tmp_path / "published"
    publish(place, 1)
    engine = RankingEngine(model)
    following = Versions(engine, str(place))
    following.open()
    publish(place, 2, rows, level, ids)
    with pytest.raises(JoyError, match="version 2 does not fit"):
        following.follow()
    assert (engine.version, score(engine), float(model.state["level"])) == ("1", 0.0, 1.0)
    assert following.refused == 1


def test_a_torn_file_is_refused(model: program.RankingProgram, tmp_path: Path) -> None:
    place = tmp_path / "published"
    publish(place, 1)
    engine = RankingEngine(model)
    following = Versions(engine, str(place))
    following.open()
    publish(place, 2)
    (place / "delta-00000002" / "table.item.safetensors").write_bytes(b"torn")
    with pytest.raises(JoyError):
        following.follow()
    assert (engine.version, score(engine)) == ("1", 0.0)


@pytest.mark.dear
def test_no_request_sees_two_versions(model: program.RankingProgram, tmp_path: Path) -> None:
    place = tmp_path / "published"
    publish(place, 1)
    engine = RankingEngine(model, lanes=2, limits=BatchLimits(seconds=1e9))
    following = Versions(engine, str(place))
    following.open()
    engine.start()
    stop = threading.Event()

    def trainer() -> None:
        for number in range(2, 30):
            publish(place, number)
            following.follow()
        stop.set()

    async def clients() -> list[Any]:
        found = []
        while not stop.is_set():
            asked = [check(model.signature, {"ids": np.arange(1 + n % 5)}) for n in range(20)]
            found += await asyncio.gather(*(engine.rank(one) for one in asked))
        return found

    thread = threading.Thread(target=trainer)
    thread.start()
    answers = asyncio.run(clients())
    thread.join()
    engine.close()
    assert all((one.outputs[0] == 0).all() for one in answers)
    assert len({one.version for one in answers}) > 1

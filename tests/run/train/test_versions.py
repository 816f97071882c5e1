"""Published versions: whole or absent, replayed and compacted to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.train.formats import versions

torch = pytest.importorskip("torch")


def entry(ids: int, removed: int = 0) -> dict[str, Any]:
    return {
        **{"file": "table.item.safetensors", "dim": 2, "dtype": "float32", "ids": ids},
        **{"removed": removed, "rows": None, "initial": {"name": "zero"}},
    }


def publish(
    store: versions.VersionStore, number: int, rows: dict[int, float], removed: tuple[int, ...] = ()
) -> versions.Manifest:
    """Version `number`: a snapshot for 1, else a delta."""
    ids = torch.tensor(sorted(rows), dtype=torch.int64)
    files = {
        versions.DENSE: versions.pack({"bias": torch.tensor([float(number)])}),
        "table.item.safetensors": versions.pack(
            {
                "ids": ids,
                "rows": torch.tensor([[rows[i], -rows[i]] for i in ids.tolist()]).reshape(-1, 2),
                "removed": torch.tensor(removed, dtype=torch.int64),
            }
        ),
    }
    listed = versions.describe(files)
    previous = versions.chain(store)[-1]["identity"] if number > 1 else None
    manifest = {
        "schema": versions.SCHEMA,
        "version": number,
        "form": "snapshot" if number == 1 else "delta",
        "previous": previous,
        "identity": versions.identity(previous or "", listed),
        "files": listed,
        "tables": {"item": entry(len(ids), len(removed))},
    }
    store.publish(manifest, files)
    return manifest


def rows_of(store: versions.VersionStore, number: int | None = None) -> dict[int, float]:
    table = versions.replay(store, versions.chain(store, number))["tables"]["item"]
    return dict(zip(table["ids"].tolist(), table["rows"][:, 0].tolist(), strict=True))


def three(place: Path) -> versions.VersionStore:
    store = versions.open_versions(place)
    publish(store, 1, {5: 1.0, 2: 2.0})
    publish(store, 2, {9: 3.0, 5: 4.0})
    publish(store, 3, {2: 7.0}, removed=(9,))
    return store


def test_a_chain_is_replayed(tmp_path: Path) -> None:
    store = three(tmp_path)
    assert rows_of(store, 1) == {2: 2.0, 5: 1.0}
    assert rows_of(store, 2) == {2: 2.0, 5: 4.0, 9: 3.0}
    assert rows_of(store) == {2: 7.0, 5: 4.0}


def test_a_compacted_version_is_the_same_and_latest_stays(tmp_path: Path) -> None:
    store = three(tmp_path)
    before = versions.replay(store, versions.chain(store, 2))["tables"]["item"]
    versions.compact(store, 2)
    assert [link["form"] for link in versions.chain(store, 2)] == ["snapshot"]
    after = versions.replay(store, versions.chain(store, 2))["tables"]["item"]
    assert all(torch.equal(before[name], after[name]) for name in ("ids", "rows"))
    assert (store.latest() or {})["version"] == 3
    assert rows_of(store) == {2: 7.0, 5: 4.0}  # a delta goes on behind the snapshot
    versions.compact(store)
    assert versions.prune(store, keep=1) == [
        *((1, "snapshot"), (2, "delta"), (2, "snapshot"), (3, "delta"))
    ]
    assert rows_of(store) == {2: 7.0, 5: 4.0}


def test_a_changed_byte_is_never_handed_out(tmp_path: Path) -> None:
    store = three(tmp_path)
    path = tmp_path / "delta-00000002" / "table.item.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(versions.TornVersion, match="not what its manifest says"):
        rows_of(store)
    assert rows_of(store, 1) == {2: 2.0, 5: 1.0}


def test_a_delta_of_another_trainer_is_refused(tmp_path: Path) -> None:
    store, other = three(tmp_path / "a"), versions.open_versions(tmp_path / "b")
    publish(other, 1, {1: 1.0})
    publish(other, 2, {1: 2.0})
    (tmp_path / "b" / "delta-00000002").rename(tmp_path / "a" / "old")
    (tmp_path / "a" / "delta-00000002").rename(tmp_path / "a" / "gone")
    (tmp_path / "a" / "old").rename(tmp_path / "a" / "delta-00000002")
    with pytest.raises(versions.TornVersion, match="was not built on version 1"):
        versions.chain(store)


def test_nothing_published_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="no version is published there"):
        versions.chain(versions.open_versions(tmp_path))


def test_rows_of_unpublished_ids_depend_on_the_id_alone() -> None:
    initial = {"name": "uniform", "low": -0.05, "high": 0.05, "seed": 3, "table": "item"}
    ids = torch.tensor([7, -1, 2**62, 0])
    rows = versions.initial_rows(initial, ids, 8)
    assert torch.equal(rows[:1], versions.initial_rows(initial, ids[:1], 8))
    many = versions.initial_rows(initial, torch.arange(20_000), 8)
    assert many.abs().max() <= 0.05
    assert abs(float(many.mean())) < 3e-4  # 6 deviations of the mean of 160,000 uniform numbers
    assert not torch.equal(rows, versions.initial_rows({**initial, "seed": 4}, ids, 8))


def test_they_are_those_that_the_tables_start_from() -> None:
    from joymigrate.run.train.formats.first_rows import UniformRows

    initial = {"name": "uniform", "low": -0.1, "high": 0.3, "seed": 9, "table": "item"}
    ids = torch.tensor([7, -1, 2**62, 0])
    own = torch.from_numpy(UniformRows("item", 5, -0.1, 0.3, 9).rows(ids.numpy()))
    assert torch.equal(versions.initial_rows(initial, ids, 5), own)
    # What versions that were published before hold: these bits may not change.
    want = [[0.07528572529554367, 0.29327869415283203], [0.24453043937683105, 0.09217057377099991]]
    assert own[:2, :2].tolist() == want


def test_versions_in_redis_are_those_of_a_folder(tmp_path: Path, redis_server: str) -> None:
    store = versions.open_versions(f"{redis_server}#models")
    publish(store, 1, {5: 1.0, 2: 2.0})
    publish(store, 2, {9: 3.0, 5: 4.0})
    assert rows_of(store) == {2: 2.0, 5: 4.0, 9: 3.0}
    assert (store.latest() or {})["version"] == 2
    versions.compact(store)
    assert versions.prune(store, keep=1) == [(1, "snapshot"), (2, "delta")]
    assert rows_of(store) == {2: 2.0, 5: 4.0, 9: 3.0}
    assert versions.verify(store, versions.chain(store)) > 0

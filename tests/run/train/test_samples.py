"""The sample engine: every row once, whatever number of readers, and one error per mistake."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.train.samples import hashing, position, readers
from joymigrate.run.train.samples.batch import SampleBatch, join_batches
from joymigrate.run.train.samples.encode import Encoder
from joymigrate.run.train.samples.histories import HistoryStore, LmdbPieces, RedisPieces
from joymigrate.run.train.samples.lookup import pad_lists
from joymigrate.run.train.samples.open_rows import open_rows
from joymigrate.run.train.samples.schema import FeatureSchema, load
from joymigrate.schema import read

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

# -- positions ------------------------------------------------------------------------------------

plans = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 7), st.booleans()), min_size=1, max_size=12
)


@given(rows=st.integers(1, 300), each=st.integers(1, 9), plan=plans)
@settings(deadline=None, max_examples=200)
def test_every_row_is_read_once_whatever_the_readers(
    rows: int, each: int, plan: list[tuple[int, int, bool]]
) -> None:
    """Readers come and go between checkpoints; steps behind a checkpoint are done again."""
    saved = position.begin(rows, plan[0][0])
    kept: list[int] = []
    turns = iter(plan * rows)
    while saved.epoch == 0:
        number, steps, killed = next(turns)
        at = position.position_of(saved.for_readers(number).document())
        taken: list[int] = []
        for _ in range(steps + 1):
            if at.epoch:
                break
            shares, at = at.step(each, rows)
            taken += [row for share in shares for a, b in share for row in range(a, b)]
        if not killed or steps == 7:
            kept, saved = kept + taken, at
        elif all(plan[i][2] for i in range(len(plan))):
            kept, saved = kept + taken, at  # a run that always dies before a checkpoint never ends
    assert sorted(kept) == list(range(rows))
    assert saved.consumed == rows


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    readers_=st.integers(1, 5),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
)
@settings(deadline=None, max_examples=100)
def test_pieces_hold_every_row_of_every_group_once(
    sizes: list[int], readers_: int, seed: int, epoch: int
) -> None:
    order = position.EpochOrder(sizes, seed)
    seen = []
    for share in position.split([(0, order.rows)], readers_):
        for piece in order.pieces(share, epoch):
            seen += [(piece.group, int(row)) for row in order.rows_of(piece)]
    assert sorted(seen) == [(g, row) for g, size in enumerate(sizes) for row in range(size)]


def test_epochs_differ_in_order() -> None:
    order = position.EpochOrder([50, 50, 50], seed=1)
    first, second = (
        order.rows_of(position.RowGroupPiece(0, 0, 50, epoch)).tolist() for epoch in (0, 1)
    )
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))


# -- reading --------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"label": "y", "features": {"id": {"type": "id", "rows": 2000}}}


def schema_of(**changes: Any) -> FeatureSchema:
    return read(FeatureSchema, {**PLAIN, **changes}, "features.yaml")


def numbered(folder: Path, rows: int = 600, group: int = 50) -> list[Path]:
    """Two files of rows that are numbered through."""
    paths = []
    for part, ids in enumerate(np.array_split(np.arange(rows), 2)):
        table = pa.table({"id": ids, "y": (ids % 2).astype(np.int8)})
        paths.append(folder / f"part-{part}.parquet")
        parquet.write_table(table, paths[-1], row_group_size=group)
    return paths


def test_files_that_are_missing_or_have_no_row_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.parquet"
    parquet.write_table(pa.table({"id": pa.array([], "int64"), "y": pa.array([], "int8")}), empty)
    with pytest.raises(JoyError, match="no data file has a row") as seen:
        open_rows([empty], schema_of())
    assert str(empty) in (seen.value.where or "")
    assert seen.value.help == "name files with rows in data.train and data.eval"
    with pytest.raises(JoyError, match="no such data file"):
        open_rows([empty, tmp_path / "gone.parquet"], schema_of())


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_readers_give_the_rows_in_the_order_of_pieces(tmp_path: Path, engine: str) -> None:
    rows = readers.parquet_rows(numbered(tmp_path), schema_of(), seed=3)
    pieces = rows.order.pieces([(17, 583)], 0)
    pool = readers.start_readers(engine, 2)
    try:
        made = join_batches(list(pool.stream(rows, pieces)))
    finally:
        pool.close()
    expected = join_batches([rows.read(piece) for piece in pieces])
    assert np.array_equal(made.ids["id"], expected.ids["id"])
    assert len(made) == 566


@pytest.mark.parametrize(
    ("first", "kills", "sizes"),
    [
        (2, (3,), {}),
        pytest.param(4, (3, 20, 40), {10: 3, 30: 5}, marks=pytest.mark.slow),  # 4 → 3 → 5
    ],
)
def test_readers_that_are_killed_cost_nothing(
    tmp_path: Path, first: int, kills: tuple[int, ...], sizes: dict[int, int]
) -> None:
    rows = readers.parquet_rows(numbered(tmp_path, 1200, 20), schema_of(), seed=3)
    pieces = rows.order.pieces([(0, 1200)], 0)
    pool = readers.ProcessReaders(first, ahead=1)
    seen: list[SampleBatch] = []
    for number, batch in enumerate(pool.stream(rows, pieces)):
        seen.append(batch)
        if number in kills:
            os.kill(pool.pids()[0], signal.SIGKILL)
        if number in sizes:
            pool.resize(sizes[number])
    pool.close()
    made = join_batches(seen).ids["id"]
    assert np.array_equal(made, join_batches([rows.read(piece) for piece in pieces]).ids["id"])
    assert sorted(made.tolist()) == list(range(1200))


@pytest.mark.slow
def test_ray_data_gives_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    rows = readers.parquet_rows(numbered(tmp_path), schema_of(), seed=3)
    pieces = rows.order.pieces([(17, 583)], 0)
    made = join_batches(list(readers.start_readers("ray", 2).stream(rows, pieces)))
    assert np.array_equal(made.ids["id"], join_batches([rows.read(p) for p in pieces]).ids["id"])


# -- encoding -------------------------------------------------------------------------------------


def encode(schema: FeatureSchema, **columns: Any) -> SampleBatch:
    return Encoder(schema).encode(pa.table(columns), "clicks.parquet")


def test_every_type_of_feature() -> None:
    schema = schema_of(
        dim=4,
        features={
            "id": {"type": "id", "rows": 10},
            "word": {"type": "text", "rows": 50},
            "hour": {"type": "number", "buckets": [6, 12]},
            "price": {"type": "number", "scale": "log1p", "default": 0},
            "both": {"type": "cross", "of": ["word", "hour"], "rows": 99},
            "tags": {"type": "ids", "table": "id"},
            "names": {"type": "texts"},
            "seen": {"type": "sequence", "table": "id", "length": 2},
        },
    )
    made = encode(
        schema,
        id=[1, 2, 1],
        word=["a", None, "a"],
        hour=[5.0, 6.0, 23.0],
        price=[None, 1.0, np.e - 1],
        tags=[[1, 2], None, []],
        names=[["x"], [], ["x", "y"]],
        seen=[[1, 2, 3], [], [4]],
        y=[0, 1, 1],
    )
    assert made.ids["id"].tolist() == [1, 2, 1]
    assert made.ids["hour"].tolist() == [0, 1, 2]
    assert made.ids["word"][0] == made.ids["word"][2] != made.ids["word"][1]
    assert made.ids["both"][0] != made.ids["both"][2]  # the same word, another hour
    assert made.numbers[:, 0].tolist() == pytest.approx([0.0, np.log(2), 1.0])
    assert made.lists["tags"].lengths.tolist() == [2, 0, 0]
    assert made.lists["names"].values[0] == made.lists["names"].values[1]
    ids, mask = pad_lists(made.lists["seen"], 2)
    assert ids.tolist() == [[2, 3], [0, 0], [4, 0]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]
    assert schema.tables()["names"].rows is None


def test_hashes_do_not_change_between_versions() -> None:
    """A model that was trained yesterday looks its rows up by these."""
    texts = [10751915722638036057, 1760245841805064774]  # SipHash-2-4
    assert hashing.of_texts(pa.array(["joy", ""])).tolist() == texts
    numbers = [16294208416658607535, 10451216379200822465, 16490336266968443936]  # SplitMix64
    assert hashing.of_ids(np.array([0, 1, -1])).tolist() == numbers


@pytest.mark.parametrize(
    ("changes", "columns", "message"),
    [
        ({}, {"y": [0]}, "no column 'id'"),
        ({}, {"id": ["a"], "y": [0]}, "holds string, the schema says whole numbers"),
        ({}, {"id": [1], "y": [float("nan")]}, "label 'y' is not a number"),
        ({}, {"id": [-3], "y": [0]}, "negative id: -3"),
        ({}, {"id": [2000], "y": [0]}, "beyond its table of 2000 rows: 2000"),
        ({}, {"id": [None, 1], "y": [0, 1]}, "'id' is missing"),
        (
            {"features": {"p": {"type": "number"}}},
            {"p": [float("inf")], "y": [0]},
            "'p' is not finite",
        ),
        (
            {"features": {"p": {"type": "number"}}},
            {"p": [None, 1.0], "y": [0, 0]},
            "'p' is missing",
        ),
        (
            {"features": {"t": {"type": "ids", "rows": 5}}},
            {"t": [[1], [2, 7]], "y": [0, 0]},
            "'t' has an id beyond its table of 5 rows",
        ),
        (
            {"features": {"p": {"type": "number"}}},
            {"p": [1e300, 1.0], "y": [0, 0]},
            "'p' does not fit float32",
        ),
        (
            {"features": {"t": {"type": "id", "rows": 5}}},
            {"t": np.array([2**63 + 5, 1], np.uint64), "y": [0, 0]},
            "'t' does not fit int64",
        ),
    ],
)
def test_bad_rows_are_one_clear_error(
    changes: dict[str, Any], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(JoyError) as caught:
        encode(schema_of(**changes), **columns)
    assert message in str(caught.value)
    assert "clicks.parquet" in str(caught.value)


def test_bad_rows_are_skipped_and_counted_by_request() -> None:
    made = encode(
        schema_of(on_error="skip"), id=[1, -3, 2000, 4, 5], y=[0.0, 1.0, 1.0, float("nan"), 1.0]
    )
    assert made.ids["id"].tolist() == [1, 5]
    assert sum(made.skipped.values()) == 3
    assert made.read == 5
    part = made.part(1, 4)
    assert (len(part), part.read, sum(part.skipped.values())) == (0, 3, 3)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"a": {"type": "cross", "of": ["b", "c"]}}, "unknown feature 'b'"),
        ({"a": {"type": "number", "column": "y"}}, "the label 'y' is a feature too"),
        ({"a": {"type": "idd"}}, "does not know 'idd'. Did you mean 'id'"),
        ({"a": {"type": "number", "buckets": [3, 1]}}, "rising borders"),
        ({"a": {"type": "sequence", "history": "item"}}, "needs `histories`"),
        (
            {"a": {"type": "id", "rows": 5}, "b": {"type": "id", "table": "a", "rows": 6}},
            "shares a table of 5 rows, and asks for 6",
        ),
    ],
)
def test_a_wrong_schema_names_the_key(features: dict[str, Any], message: str) -> None:
    with pytest.raises(JoyError, match=message):
        schema_of(features=features)


# -- histories ------------------------------------------------------------------------------------


def check_store(store: HistoryStore) -> None:
    """Events in several portions come back as a plain dictionary has them."""
    draw = np.random.default_rng(0)
    known: dict[int, list[tuple[int, int]]] = {}
    clock = 0
    for _ in range(6):
        users = draw.integers(-3, 6, 400)
        items = draw.integers(0, 1 << 40, 400)
        times = clock + np.arange(400)
        clock += 400
        store.append(users, {"item": items, "time": times})
        for user, item, time in zip(users.tolist(), items.tolist(), times.tolist(), strict=True):
            known.setdefault(user, []).append((item, time))
    asked = draw.integers(-3, 8, 200)
    counts = np.array([draw.integers(0, len(known.get(int(u), [])) + 1) for u in asked])
    found = store.before_count(asked, counts, 7, "item")
    for row, (user, count) in enumerate(zip(asked.tolist(), counts.tolist(), strict=True)):
        expected = [item for item, _ in known.get(user, [])[:count]][-7:]
        assert found.part(row, row + 1).values.tolist() == expected
    moments = draw.integers(0, clock, 200).astype(float)
    found = store.before_time(asked, moments, 7, "item")
    for row, (user, moment) in enumerate(zip(asked.tolist(), moments.tolist(), strict=True)):
        expected = [item for item, time in known.get(user, []) if time < moment][-7:]
        assert found.part(row, row + 1).values.tolist() == expected


def test_histories_in_lmdb(tmp_path: Path) -> None:
    check_store(HistoryStore(LmdbPieces(tmp_path, write=True)))


def test_histories_in_redis(redis_server: str) -> None:
    pytest.importorskip("redis")
    check_store(HistoryStore(RedisPieces(redis_server, "test")))


def test_a_schema_file_finds_its_histories_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "features.yaml"
    path.write_text(
        "label: y\nfeatures: {s: {type: sequence, history: item}}\n"
        "histories: {store: h, key: u, count: n}\n"
    )
    schema = load(path)
    assert schema.histories is not None
    assert schema.histories.store == str(tmp_path / "h")

"""Records, the token cache, packing and the order of samples."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.train import TokenCache, build, data_state, packing, records, tokenizer
from joymigrate.run.train.columns import Corrupt, Sample
from joymigrate.run.train.order import SampleOrder
from joymigrate.run.train.tokens import open_cache

FIELDS = {"tokens": "uint16", "spans": "int32", "weight": "float32"}


def letters(record: records.TrainingRecord) -> Sequence[Sample]:
    """One token per letter; every token but the first is a target."""
    tokens = np.frombuffer(str(record.value["text"]).encode(), dtype=np.uint8)
    if len(tokens) < 2:
        return []
    return [
        {
            "tokens": tokens,
            "spans": np.array([[0, len(tokens)]]),
            "weight": np.array([len(tokens) - 1]),
        }
    ]


def recipe(*files: Path, encode: Any = letters, identity: str = "letters") -> build.Recipe:
    return build.Recipe(files, FIELDS, identity, encode)


def write(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", [f"line number {i} " + "x" * (i % 7) for i in range(50)])


# -- the token cache --------------------------------------------------------------------------


def test_a_second_start_opens_what_the_first_built(tmp_path: Path, data: Path) -> None:
    calls = []

    def counted(record: records.TrainingRecord) -> Sequence[Sample]:
        calls.append(record.where)
        return letters(record)

    first = open_cache(tmp_path / "c", recipe(data, encode=counted))
    second = open_cache(tmp_path / "c", recipe(data, encode=counted))
    assert len(calls) == 50
    assert first.folder == second.folder
    assert bytes(second[3]["tokens"].astype(np.uint8)) == b"line number 3 xxx"


def test_changed_data_or_identity_is_another_cache(tmp_path: Path, data: Path) -> None:
    first = open_cache(tmp_path / "c", recipe(data))
    other = open_cache(tmp_path / "c", recipe(data, identity="other"))
    write(data, ["something else"] * 3)
    changed = open_cache(tmp_path / "c", recipe(data))
    assert len({first.folder, other.folder, changed.folder}) == 3
    assert len(changed) == 3


def test_an_interrupted_build_continues_and_ends_alike(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FLUSH_RECORDS", 8)
    calls = []

    def stops(record: records.TrainingRecord) -> Sequence[Sample]:
        calls.append(record.where)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return letters(record)

    with pytest.raises(KeyboardInterrupt):
        open_cache(tmp_path / "c", recipe(data, encode=stops))
    found = open_cache(tmp_path / "c", recipe(data, encode=stops))
    assert len(calls) == 30 + (50 - 24)  # 24 were durable
    whole = open_cache(tmp_path / "d", recipe(data))
    for name in ("tokens.bin", "tokens.idx", "spans.bin", "weight.bin"):
        assert (found.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_flipped_bit_is_found_when_it_is_read(tmp_path: Path, data: Path) -> None:
    found = open_cache(tmp_path / "c", recipe(data))
    path = found.folder / "tokens.bin"
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match=r"block 0 of tokens\.bin is damaged"):
        TokenCache.open(found.folder)[0]
    with pytest.raises(Corrupt):
        TokenCache.open(found.folder).verify()


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.idx", "manifest.json"])
def test_a_cut_file_is_built_again(tmp_path: Path, data: Path, name: str) -> None:
    found = open_cache(tmp_path / "c", recipe(data))
    path = found.folder / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Corrupt):
        TokenCache.open(found.folder)
    told: list[str] = []
    again = open_cache(tmp_path / "c", recipe(data), told.append)
    assert len(again) == 50
    assert "damaged" in told[0]


def test_records_without_a_sample_are_counted_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    mixed = write(tmp_path / "m.jsonl", ["", "word", "x"])
    lost = open_cache(tmp_path / "c", recipe(mixed)).manifest.lost
    assert lost["dropped"] == {"it gives no sample": 2}
    empty = write(tmp_path / "e.jsonl", [""])
    with pytest.raises(JoyError, match="the data gave no sample: 1 records"):
        open_cache(tmp_path / "c", recipe(empty))


def test_a_loop_of_ones_own_gets_a_cache_in_one_call(tmp_path: Path, data: Path) -> None:
    made = tokenizer.byte_level()
    found = TokenCache.build(tmp_path / "c", [data], made)
    text = made.decode(found[2]["tokens"].tolist(), skip_special_tokens=True)
    assert text == "line number 2 xx"


# -- records ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [("{", "not valid JSON"), ("[1]\n", "expected an object, got list")],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "ok"}\n' + content)
    with pytest.raises(JoyError, match=expected) as caught:
        list(records.read([path]))
    assert caught.value.where == f"{path}:2"


def test_parquet_gives_the_same_records_as_jsonl_from_any_mark(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    texts = [f"row {i}" for i in range(3000)]
    plain = write(tmp_path / "a.jsonl", texts)
    packed = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), packed)
    lines = list(records.read([plain]))
    rows = list(records.read([packed]))
    assert [r.value for r, _ in lines] == [r.value for r, _ in rows]
    for found, path in ((lines, plain), (rows, packed)):
        later = list(records.read([path], start=found[1999][1]))
        assert [r.value["text"] for r, _ in later] == texts[2000:]


# -- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".jsonl.gz"])
def test_a_limit_takes_the_first_records_of_a_file_and_no_growth_behind_them(
    tmp_path: Path, suffix: str
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / f"data{suffix}"

    def write(count: int) -> None:
        found = [{"text": f"t{number}"} for number in range(count)]
        if suffix == ".parquet":
            parquet.write_table(pa.Table.from_pylist(found), path)
        elif suffix == ".json":
            path.write_text(json.dumps(found))
        else:
            text = "\n\n".join(map(json.dumps, found))
            path.write_bytes(
                gzip.compress(text.encode()) if suffix == ".jsonl.gz" else text.encode()
            )

    def read(limit: int | None) -> list[str]:
        parts = data_state.whole([path], "auto", limit)
        return [record.value["text"] for record, _ in records.read(parts)]

    write(4)
    assert read(3) == ["t0", "t1", "t2"]
    assert read(9) == read(None) == ["t0", "t1", "t2", "t3"]
    marks = [mark for _, mark in records.read(data_state.whole([path], "auto"))]
    rest = records.read(data_state.whole([path], "auto"), start=marks[1])
    assert [record.value["text"] for record, _ in rest] == ["t2", "t3"]
    before = data_state.piece_at(0, data_state.whole([path], "auto", 3), "auto")
    write(6)
    assert data_state.piece_at(0, data_state.whole([path], "auto", 3), "auto") == before


@given(st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_epoch_has_every_sample_once(size: int, seed: int, epoch: int) -> None:
    found = SampleOrder(size, seed).at(epoch * size, size)
    assert sorted(found.tolist()) == list(range(size))


def test_epochs_and_seeds_differ_and_starts_do_not() -> None:
    order = SampleOrder(1000, 7)
    assert order.at(0, 1000).tolist() != order.at(1000, 1000).tolist()
    assert order.at(0, 1000).tolist() != SampleOrder(1000, 8).at(0, 1000).tolist()
    assert order.at(300, 50).tolist() == order.at(0, 1000)[300:350].tolist()


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=4),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_what_is_added_comes_next_and_each_pass_has_every_sample_once(
    size: int, grown: list[tuple[int, int]], shuffle: bool
) -> None:
    positions = itertools.accumulate(gap for gap, _ in grown)
    sizes = itertools.accumulate((more for _, more in grown), initial=size)
    growth = tuple(zip(positions, list(sizes)[1:], strict=True))
    found = SampleOrder(size, 3, shuffle, growth).at(0, 300).tolist()
    for number, (position, _) in enumerate(growth):
        before = SampleOrder(size, 3, shuffle, growth[:number])
        assert before.at(0, position).tolist() == found[:position]
    seen: set[int] = set()
    known = size
    for position, sample in enumerate(found):
        seen = set() if len(seen) == known else seen
        known = max([known, *(larger for at, larger in growth if at == position)])
        assert sample not in seen
        assert sample < known
        seen.add(sample)


# -- packing ----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(2, 30), min_size=1, max_size=40),
    st.integers(4, 40),
    st.sampled_from([packing.PackedStream, packing.PackedDocuments, packing.Documents]),
)
@settings(max_examples=40, deadline=None)
def test_rows_hold_every_token_and_weigh_what_they_predict(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], length: int, kind: Any
) -> None:
    folder = tmp_path_factory.mktemp("packing")
    texts = ["abcdefghijklmnopqrstuvwxyzABCDEF"[:size] for size in lengths]
    if kind is not packing.PackedStream:
        texts = [text[:length] for text in texts]  # tasks cut documents when they encode
    cache = open_cache(folder, recipe(write(folder / "a.jsonl", texts)))
    rows = kind(cache, length)
    read = [rows[index] for index in range(len(rows))]
    assert all(len(row["tokens"]) <= length for row in read)
    assert [rows.weight(i) for i in range(len(rows))] == [row["targets"].sum() for row in read]
    joined = b"".join(bytes(row["tokens"].astype(np.uint8)) for row in read)
    whole = "".join(texts).encode()
    assert joined == whole or (kind is packing.PackedStream and joined == whole[:-1])
    for row in read:
        begins = row["positions"] == 0
        assert not row["targets"][begins].any()


def test_the_digest_of_records_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, memory = tmp_path / "a.json", tmp_path / "memory"
    part = records.Portion(place, 0, 1)
    place.write_text('[{"text": "one"}, {"text": "two"}]')
    first = records.digest_of(part, "auto", memory)
    with monkeypatch.context() as patch:
        patch.setattr(records, "read", lambda *_: pytest.fail("read again"))
        assert records.digest_of(part, "auto", memory) == first
    assert records.digest_of(records.Portion(place, 0, 2), "auto", memory) != first
    place.write_text('[{"text": "other"}]')
    assert records.digest_of(part, "auto", memory) != first


def test_the_help_names_the_right_setting_and_growth_only_where_it_is_gone_on_with(
    tmp_path: Path,
) -> None:
    with pytest.raises(JoyError) as caught:
        records.check([tmp_path / "gone.jsonl"], setting="data.eval")
    assert caught.value.help == "check data.eval"
    for grows in (True, False):
        with pytest.raises(JoyError) as caught:
            data_state.refuse_or_tell("it changed", lambda line: None, grows=grows)
        assert ("added at their ends" in str(caught.value.help)) == grows

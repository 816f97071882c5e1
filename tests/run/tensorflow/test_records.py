"""TFRecord files and examples, read without TensorFlow; what is damaged is said with its place."""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError

torch = pytest.importorskip("torch")
from joymigrate.run.tensorflow import records  # noqa: E402
from joymigrate.run.tensorflow.operators.example import read_example, write_example  # noqa: E402

features = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        st.lists(st.binary(max_size=9), max_size=4),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        st.lists(st.floats(width=32, allow_nan=False), max_size=4),
    ),
    max_size=5,
)


@given(features)
@settings(deadline=None)
def test_an_example_comes_back(written: dict[str, list[Any]]) -> None:
    found = read_example(write_example(written))
    assert {key.decode(): list(value) for key, value in found.items()} == written


@given(st.binary(max_size=40))
@settings(deadline=None, max_examples=500)
def test_any_bytes_are_an_example_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(read_example(data), dict)


def test_the_check_is_crc32c() -> None:
    assert records.crc_function()(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4
    assert records.masked_crc(b"") == 0xA282EAD8


@pytest.mark.parametrize("packed", [bytes, gzip.compress, zlib.compress])
def test_records_come_back_from_any_place(tmp_path: Path, packed: Any) -> None:
    path = tmp_path / "a.tfrecord"
    made = [bytes([n]) * (n * 7) for n in range(40)]
    records.write_records(path, made)
    path.write_bytes(packed(path.read_bytes()))
    assert list(records.read_records(path)) == made
    starts = records.read_index(path)
    assert len(starts) == 41
    for at in (0, 1, 17, 39):
        assert list(records.read_records(path, int(starts[at]), 2)) == made[at : at + 2]


@pytest.mark.parametrize("at", [0, 9, 13, -2])
def test_a_changed_byte_is_found(tmp_path: Path, at: int) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_records(path, [b"hello", b"world"])
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(JoyError, match="CRC"):
        list(records.read_records(path))


def test_a_cut_file_is_found_by_its_index(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_records(path, [b"hello", b"world"])
    for cut in (1, 10, 20):
        path.write_bytes(path.read_bytes()[:-1] if cut == 1 else path.read_bytes()[:-cut])
        with pytest.raises(JoyError):
            records.read_index(path)


def test_a_length_like_the_head_of_zlib_is_no_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_records(path, [b"x" * struct.unpack("<H", b"\x78\x9c")[0]])
    assert len(next(records.read_records(path))) == 0x9C78


def test_tensorflow_reads_what_is_written_and_writes_what_is_read(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="the extra tf is not installed")
    path = tmp_path / "a.tfrecord"
    records.write_records(path, [b"", b"one", b"x" * 5000])
    assert [r.numpy() for r in tf.data.TFRecordDataset(str(path))] == [b"", b"one", b"x" * 5000]
    feature = tf.train.Feature
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "a": feature(int64_list=tf.train.Int64List(value=[-5, 2**62])),
                "b": feature(float_list=tf.train.FloatList(value=[0.5, -1e9])),
                "c": feature(bytes_list=tf.train.BytesList(value=[b"\xff\x00", b""])),
                "d": feature(),
            }
        )
    )
    with tf.io.TFRecordWriter(str(path), "GZIP") as file:
        file.write(example.SerializeToString())
    found = read_example(next(records.read_records(path)))
    assert found[b"a"].tolist() == [-5, 2**62]
    assert found[b"b"].tolist() == [0.5, np.float32(-1e9)]
    assert found[b"c"] == [b"\xff\x00", b""]
    assert list(found[b"d"]) == []
    back = tf.train.Example.FromString(write_example({"a": [-5], "t": ["é"], "f": [1.5]}))
    assert back.features.feature["a"].int64_list.value == [-5]
    assert back.features.feature["t"].bytes_list.value == ["é".encode()]

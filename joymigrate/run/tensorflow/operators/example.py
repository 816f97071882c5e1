"""Reads tf.train.Example without TensorFlow: the few lines of protobuf that it needs.

Layout: tensorflow/core/example/example.proto and feature.proto; wire format:
protobuf.dev/programming-guides/encoding. Unknown fields are skipped, as protobuf asks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


def read_example(data: bytes) -> dict[bytes, Any]:
    """Features by name: a list of bytes, or a numpy array of float32 or int64.

    Raises ValueError for bytes that are no Example.
    """
    features: dict[bytes, Any] = {}
    for field, part in fields(data):
        if field == 1:
            for inner, entry in fields(part):
                if inner == 1:
                    read_entry(entry, features)
    return features


def read_entry(data: Any, features: dict[bytes, Any]) -> None:
    """One entry of the map of features."""
    key, feature = b"", b""
    for field, part in fields(data):
        if field == 1:
            key = bytes(part)
        elif field == 2:
            feature = part
    features[key] = read_feature(feature)


def read_feature(data: Any) -> Any:
    """The values of one feature; an empty one has none."""
    for field, part in fields(data):
        if field == 1:
            return [bytes(value) for inner, value in fields(part) if inner == 1]
        if field == 2:
            return read_floats(part)
        if field == 3:
            return read_whole(part)
    return []


def read_floats(data: Any) -> Any:
    """A FloatList, packed or not."""
    pieces = [bytes(value) for field, value in fields(data) if field == 1]
    return np.frombuffer(b"".join(pieces), "<f4")


def read_whole(data: Any) -> Any:
    """An Int64List, packed or not."""
    found: list[int] = []
    for field, value in fields(data):
        if field == 1:
            found += [value] if isinstance(value, int) else varints(value)
    return np.array(found, dtype=np.uint64).view(np.int64)


def varints(data: Any) -> list[int]:
    """Numbers packed behind one another."""
    found, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def varint(data: Any, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    value, shift = 0, 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
    raise ValueError("the bytes are no protobuf message: a number does not end")


def fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields. Raises ValueError for what is no message."""
    if isinstance(data, int):
        raise ValueError("the bytes are no protobuf message: a number stands where a part should")
    view, at = memoryview(data), 0
    while at < len(view):
        tag, at = varint(view, at)
        field, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = varint(view, at)
            yield field, value
            continue
        if kind == DELIMITED:
            length, at = varint(view, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"the bytes are no protobuf message: wire type {kind}")
        if at + length > len(view):
            raise ValueError("the bytes are no protobuf message: a field goes beyond the end")
        yield field, view[at : at + length]
        at += length


def write_example(features: dict[str, Any]) -> bytes:
    """An Example of lists: bytes or str, float, int. For tests and for small files."""
    entries = b""
    for name, values in features.items():
        entry = delimit(1, name.encode()) + delimit(2, written_feature(list(values)))
        entries += delimit(1, entry)
    return delimit(1, entries)


def written_feature(values: list[Any]) -> bytes:
    """One feature, by the type of its first value."""
    if not values:
        return b""
    if isinstance(values[0], bytes | str):
        plain = [each.encode() if isinstance(each, str) else each for each in values]
        return delimit(1, b"".join(delimit(1, each) for each in plain))
    if isinstance(values[0], float | np.floating):
        return delimit(2, delimit(1, struct.pack(f"<{len(values)}f", *values)))
    return delimit(3, delimit(1, b"".join(write_varint(int(each)) for each in values)))


def delimit(field: int, data: bytes) -> bytes:
    """A field with its length."""
    return write_varint(field << 3 | DELIMITED) + write_varint(len(data)) + data


def write_varint(value: int) -> bytes:
    """A number of 7 bits a byte."""
    value &= 2**64 - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)

"""TFRecord files without TensorFlow: checked, and read from any place.

Layout of a record (tensorflow/core/lib/io/record_writer.h): length (uint64), masked CRC-32C of the
length, data, masked CRC-32C of the data; all little-endian. Files may be compressed as a whole by
gzip or zlib; those have no places to go on from and are read from the start.
"""

from __future__ import annotations

import functools
import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.extras import need

HEAD, FOOT = 12, 4
MASK = 0xA282EAD8  # record_writer.h: a CRC of data that holds CRCs is weak without it
GZIP = b"\x1f\x8b"


@functools.cache
def crc_function() -> Callable[[bytes], int]:
    """CRC-32C."""
    need("rec", "google_crc32c", what="TFRecord files")
    import google_crc32c

    value: Callable[[bytes], int] = google_crc32c.value
    return value


def masked_crc(data: bytes) -> int:
    """The CRC as a record stores it."""
    value = crc_function()(bytes(data))
    return ((value >> 15 | value << 17) + MASK) & 0xFFFFFFFF


def read_index(path: Path) -> Any:
    """Where each record starts, and the end of the last: (records + 1,) int64.

    Checks the lengths' CRCs; raises JoyError for a file that is cut or damaged.
    """
    starts = [0]
    with open_records(path) as file:
        size = file.seek(0, io.SEEK_END)
        while starts[-1] < size:
            file.seek(starts[-1])
            length = read_length(file.read(HEAD), path, starts[-1])
            starts.append(starts[-1] + HEAD + length + FOOT)
    if starts[-1] != size:
        raise damage_error("the last record is cut", path, starts[-2])
    return np.array(starts, dtype=np.int64)


def read_length(head: bytes, path: Path, at: int) -> int:
    """The length in a record's head."""
    if len(head) < HEAD:
        raise damage_error("the file ends inside of a record", path, at)
    length, crc = struct.unpack("<QI", head)
    if masked_crc(head[:8]) != crc:
        raise damage_error("the CRC of a length is wrong", path, at)
    return int(length)


def read_records(path: Path, start: int = 0, count: int | None = None) -> Iterator[bytes]:
    """The data of records from a byte on, each with its CRC checked."""
    with open_records(path) as file:
        file.seek(start)
        at = start
        while count is None or count > 0:
            head = file.read(HEAD)
            if not head:
                return
            length = read_length(head, path, at)
            data = file.read(length + FOOT)
            if len(data) < length + FOOT:
                raise damage_error("the file ends inside of a record", path, at)
            if masked_crc(data[:length]) != int.from_bytes(data[length:], "little"):
                raise damage_error("the CRC of the data is wrong", path, at)
            yield data[:length]
            at += HEAD + length + FOOT
            count = None if count is None else count - 1


def open_records(path: Path) -> Any:
    """A file to read records from; a compressed one is unpacked into memory."""
    if not path.is_file():
        raise JoyError("no such data file", where=str(path))
    with path.open("rb") as file:
        first = file.read(2)
    if first == GZIP:
        return io.BytesIO(gzip.decompress(path.read_bytes()))
    if first[:1] == b"\x78" and len(first) == 2 and int.from_bytes(first, "big") % 31 == 0:
        try:
            return io.BytesIO(zlib.decompress(path.read_bytes()))
        except zlib.error:
            pass  # a record whose length begins like zlib's head
    return path.open("rb")


def damage_error(what: str, path: Path, at: int) -> JoyError:
    """A file that can't be read on."""
    return JoyError(
        what,
        where=f"{path}, byte {at}",
        help="write the file anew, or check that it is a TFRecord file and was copied whole",
    )


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """A TFRecord file."""
    with path.open("wb") as file:
        for data in records:
            head = struct.pack("<Q", len(data))
            file.write(head + struct.pack("<I", masked_crc(head)))
            file.write(data + struct.pack("<I", masked_crc(data)))

"""The files of a token cache: `manifest.json`, and per field `NAME.bin` and `NAME.idx`.

A `.bin` holds all values, one after another, its `.idx` where each sample ends (int64). Every block
of a `.bin` has a checksum that is compared when the block is first read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joymigrate.errors import JoyError

SCHEMA = "joymigrate.tokens/1"
MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 18  # one checksum each
Array = npt.NDArray[Any]
Sample = Mapping[str, Array]
Batch = dict[str, Any]  # tensors by name


class Corrupt(JoyError):
    """A cache whose files are not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a finished cache holds."""

    key: str
    fields: Mapping[str, str]  # name → numpy dtype
    samples: int
    records: int
    lost: Mapping[str, Any]  # see `Losses`
    sources: Sequence[Mapping[str, Any]]  # path, bytes, sha256 of each data file
    bytes: Mapping[str, int]  # of every file
    checks: Mapping[str, Sequence[int]]  # crc32 per block of every .bin and .idx

    @staticmethod
    def read(folder: Path) -> Manifest:
        """The manifest of a folder; `Corrupt` when it is not one."""
        path = folder / MANIFEST
        try:
            raw = json.loads(path.read_text())
            if raw.pop("schema") != SCHEMA:
                raise ValueError("another version")
            return Manifest(**raw)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"not a token cache: {error}", where=str(path), help=REBUILD.format(folder)
            ) from None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        names = ("key", "fields", "samples", "records", "lost", "sources", "bytes", "checks")
        return {"schema": SCHEMA, **{name: getattr(self, name) for name in names}}


REBUILD = "remove {} and start again: the cache is rebuilt"


class SampleColumn:
    """One field of all samples, mapped from disk and checked block by block when first read."""

    def __init__(self, folder: Path, name: str, manifest: Manifest) -> None:
        self.path = folder / f"{name}.bin"
        self.dtype = np.dtype(manifest.fields[name])
        self.checks = manifest.checks[f"{name}.bin"]
        for suffix in ("bin", "idx"):
            check_size(folder, f"{name}.{suffix}", manifest)
        self.raw = map_file(self.path, np.dtype(np.uint8))
        self.ends = map_file(folder / f"{name}.idx", np.dtype(np.int64))
        checks = manifest.checks[f"{name}.idx"]
        ends = self.ends.view(np.uint8)
        check_blocks(folder / f"{name}.idx", ends, checks, range(len(checks)))
        self.seen = np.zeros(len(self.checks), dtype=bool)

    def length(self, index: int) -> int:
        """Values of one sample."""
        return int(self.ends[index + 1] - self.ends[index])

    def slice(self, start: int, stop: int) -> Array:
        """Values `start:stop` of the whole column, checked."""
        size = self.dtype.itemsize
        first, last = start * size // BLOCK_BYTES, max(start, stop * size - 1) // BLOCK_BYTES
        if stop > start and not self.seen[first : last + 1].all():
            self.check(first, last)
        return self.raw[start * size : stop * size].view(self.dtype)

    def __getitem__(self, index: int) -> Array:
        return self.slice(int(self.ends[index]), int(self.ends[index + 1]))

    def check(self, first: int, last: int) -> None:
        """Compare the checksums of some blocks, each once."""
        blocks = range(first, min(last + 1, len(self.checks)))
        check_blocks(self.path, self.raw, self.checks, (b for b in blocks if not self.seen[b]))
        self.seen[first : last + 1] = True


def map_file(path: Path, dtype: np.dtype[Any]) -> Array:
    """A file as an array; an empty one cannot be mapped."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=dtype)
    found: Array = np.memmap(path, dtype=dtype, mode="r")
    return found


def check_size(folder: Path, name: str, manifest: Manifest) -> None:
    """A file is there and as long as it was."""
    path = folder / name
    size = path.stat().st_size if path.is_file() else None
    if size != manifest.bytes[name]:
        told = "is missing" if size is None else f"has {size} bytes"
        raise Corrupt(
            f"{name} {told}, expected {manifest.bytes[name]}",
            where=str(path),
            help=REBUILD.format(folder),
        )


def checksums(data: Array) -> list[int]:
    """crc32 of every block of some bytes."""
    return [zlib.crc32(data[at : at + BLOCK_BYTES].data) for at in range(0, len(data), BLOCK_BYTES)]


def check_blocks(path: Path, data: Array, checks: Sequence[int], blocks: Iterable[int]) -> None:
    """Some blocks of a file; `Corrupt` names the first one that differs."""
    for block in blocks:
        piece = data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
        if zlib.crc32(piece.data) != checks[block]:
            raise Corrupt(
                f"block {block} of {path.name} is damaged",
                where=str(path),
                help=REBUILD.format(path.parent),
            )

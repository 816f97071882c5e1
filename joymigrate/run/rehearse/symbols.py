"""What the libraries of an installed package need and offer, read from their ELF tables.

Nothing is loaded: the files are read as bytes. Knows 64-bit little-endian ELF, which is all that
the wheels are made for (x86-64 and aarch64).
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError

KERNEL = re.compile(rb"\x00(aclnn[A-Z][A-Za-z0-9]*|acl[A-Z][A-Za-z0-9]*GetWorkspaceSize)(?=\x00)")
SUFFIX = "GetWorkspaceSize"
DYNAMIC, DYNSYM = 6, 11  # section types
NEEDED = 1  # tag of the dynamic section


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """The dynamic symbols of one shared library, and the libraries it asks for."""

    path: Path
    needed: tuple[str, ...]
    undefined: frozenset[str]  # strong references only
    defined: frozenset[str]


def read_library(path: Path) -> SharedLibrary:
    """Read the dynamic tables of the ELF file at `path`."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise JoyError("not a 64-bit little-endian ELF library", where=str(path))
        sections = list(read_sections(data))
        needed: list[str] = []
        undefined: set[str] = set()
        defined: set[str] = set()
        for kind, offset, size, link in sections:
            if kind not in (DYNAMIC, DYNSYM):
                continue
            table, strings = data[offset : offset + size], sections[link]
            if kind == DYNAMIC:
                for tag, value in struct.iter_unpack("<QQ", table):
                    if tag == NEEDED:
                        needed.append(text_at(data, strings[1] + value))
                continue
            for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", table):
                weak = info >> 4 == 2
                if not name or (weak and not section):
                    continue
                (defined if section else undefined).add(text_at(data, strings[1] + name))
        return SharedLibrary(path, tuple(needed), frozenset(undefined), frozenset(defined))


def read_sections(data: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """(type, offset, size, link) of every section."""
    (start,) = struct.unpack_from("<Q", data, 0x28)
    each, count = struct.unpack_from("<HH", data, 0x3A)
    for number in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from(
            "<IIQQQQI", data, start + number * each
        )
        yield kind, offset, size, link


def text_at(data: mmap.mmap, offset: int) -> str:
    """The zero-terminated string at `offset`."""
    return data[offset : data.find(b"\0", offset)].decode("ascii", "replace")


def chip_kernels(path: Path) -> list[str]:
    """Names of the chip kernels that the library looks up at run time, sorted.

    A kernel is a pair of C functions, `aclnnX` and `aclnnXGetWorkspaceSize`, found by name with
    dlsym; so their names stand in the library as strings.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = {match.decode() for match in KERNEL.findall(data)}
    return sorted({name.removesuffix(SUFFIX) for name in found} - {""})

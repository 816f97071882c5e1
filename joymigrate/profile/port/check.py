"""Holds Triton kernels against a chip's documented limits, `rules/<chip>/triton.yaml`.

A kernel goes through Triton's own front end (`fits.py`): what it calls is held against the chip's
documents, and what lives at once against a core's memory. Launches are read from source. Nothing
is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, all_chips, read_yaml
from joymigrate.errors import JoyError
from joymigrate.profile.port.find import (
    JIT,
    SourceKernel,
    find_unread,
    kernels,
)
from joymigrate.profile.port.fits import KernelCandidate, notes_of
from joymigrate.profile.port.launches import judge_launches
from joymigrate.profile.port.notes import CHANGES, FAILS, RANK, UNKNOWN, WORKS, Note
from joymigrate.profile.port.operators import SUFFIXES
from joymigrate.profile.port.project import Files


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """One kernel and its verdict."""

    path: str
    line: int
    kernel: str
    verdict: str
    notes: tuple[Note, ...]


Found = tuple[KernelCheck, KernelCandidate | None]


def load(chip: Chip) -> dict[str, Any]:
    """What is known about Triton on a chip."""
    path = chip.folder / "triton.yaml"
    if not path.is_file():
        chips = all_chips().values()
        have = sorted(one.name for one in chips if (one.folder / "triton.yaml").is_file())
        raise JoyError(
            f"nothing is known about Triton kernels on {chip.name}",
            where=str(path),
            help=f"--to {' or '.join(have) or 'CHIP'}, or write the file (docs/how-to/port.md)",
        )
    known: dict[str, Any] = read_yaml(path)
    return known


def check(
    paths: Iterable[Path], known: dict[str, Any], *, roots: Iterable[Path] = ()
) -> list[KernelCheck]:
    """Every kernel in the files and folders. A file that is no Python raises JoyError.

    Helpers and sizes are followed into other files below `roots` and the paths.
    """
    found: list[Found] = []
    listed = list(paths)
    folders = [*roots, *(path if path.is_dir() else path.parent for path in listed)]
    files = Files(folders)
    for path in listed:
        if not path.exists():
            raise JoyError("there is no such file or folder", where=str(path))
        inside = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in (one for one in inside if one.suffix not in SUFFIXES):
            found += read_source(file.read_bytes(), str(file), known, files)
    return compile_them(found, known, folders)


def check_source(
    source: bytes, path: str, known: dict[str, Any], roots: Iterable[Path] = ()
) -> list[KernelCheck]:
    """Every kernel of one file."""
    folders = list(roots)
    return compile_them(read_source(source, path, known, Files(folders)), known, folders)


def compile_them(found: list[Found], known: dict[str, Any], roots: list[Path]) -> list[KernelCheck]:
    """The kernels of Triton's own language, held against what the compiler met and its IR."""
    judged = [one for one, _ in found]
    places = [i for i, (_, asked) in enumerate(found) if asked is not None]
    said = notes_of([asked for _, asked in found if asked is not None], known, roots)
    for i, (called, fits) in zip(places, said, strict=True):
        judged[i] = add_notes(judged[i], tuple(called))
        # What the compiler can't take does not hide what has to be changed.
        changes = judged[i].verdict == CHANGES
        kept = tuple(n for n in fits if not changes or RANK[n.level] < RANK["unknown"])
        judged[i] = add_notes(judged[i], kept)
    return judged


def add_notes(one: KernelCheck, notes: tuple[Note, ...]) -> KernelCheck:
    """A kernel with more notes; the worst decides."""
    unique = tuple(sorted({*one.notes, *notes}, key=lambda n: (-RANK[n.level], n.line, n.message)))
    worst = max((RANK[note.level] for note in unique), default=0)
    return replace(one, verdict=(WORKS, CHANGES, UNKNOWN, FAILS)[worst], notes=unique)


def read_source(source: bytes, path: str, known: dict[str, Any], files: Files) -> list[Found]:
    """Every kernel of one file, judged by its source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise JoyError(
            "not valid Python", where=f"{path}:{line}" if line else path, help="correct the file"
        ) from None
    found: list[Found] = []
    for kernel in kernels(tree, Path(path), files):
        bare = KernelCheck(path, kernel.node.lineno, kernel.name, WORKS, ())
        notes = [*named_types(kernel, known), *judge_launches(kernel, known)]
        candidate = KernelCandidate(kernel, source, Path(path)) if kernel.jit == JIT else None
        if candidate is None:
            said = f"compiled by {kernel.jit}, another language than triton.language"
            notes.append(Note("unknown", kernel.node.lineno, said))
        found.append((add_notes(bare, tuple(notes)), candidate))
    for line, said in find_unread(tree):
        note = Note("unknown", line, "a kernel that is made at run time; nothing of it was read")
        found.append((KernelCheck(path, line, said, UNKNOWN, (note,)), None))
    return found


def named_types(kernel: SourceKernel, known: dict[str, Any]) -> Iterator[Note]:
    """Types that a kernel's name or its callers speak of, and no page of the chip."""
    said = "\n".join([kernel.name, *(launch.said for launch in kernel.launches)])
    for rule in known.get("types", ()):
        match = re.search(rule["like"], said, re.IGNORECASE)
        if match:
            yield Note("unknown", kernel.node.lineno, f"{match[0]}: {rule['say']}", rule["help"],
                       rule["source"])  # fmt: skip

"""Reads a trace of any known kind into one table; the kind is told by content, not by name.

`read(path)` gives a `Trace`. A kind is one file of this folder with `kind_of(start, text)`, which
says whether the file's first bytes are of a kind it reads, and `READERS`, kind → function. Files
are asked in order of their `RANK`; files without `READERS` are parts of the others.
"""

from __future__ import annotations

import csv
import functools
import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.readers.stream import head
from joymigrate.profile.table import Trace

__all__ = ["detect", "kinds", "read", "read_all", "read_captures"]

PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
HELP = "docs/how-to/profile.md lists what is read; joymigrate profile record makes a recording"
JSONL = re.compile(r".*\.jsonl(\.gz)?").fullmatch
OURS = re.compile(r'\{\s*"schema":\s*"joymigrate\.[\w-]+/').match
RECORDED = re.compile(r'\{\s*"schema":\s*"joymigrate\.trace/').match
CAPTURES = "capture_traces"
IN_FOLDERS = ("*.json", "*.json.gz", "*.jsonl", "*.jsonl.gz", "*.sqlite")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A kind that is known and not read, with what to do instead."""

    what: str
    help: str
    fits: Callable[[Path, bytes, str], bool]


PACKED = (b"PK\x03\x04", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd")  # zip, xz, bzip2, zstd

FOREIGN = (
    Foreign(
        "packed as zip, xz, bzip2 or zstd",
        "unpack it first; gzip is read as it is",
        lambda path, start, text: start.startswith(PACKED),
    ),
    Foreign(
        "a report of Nsight Systems",
        "`nsys export --type sqlite FILE` writes what is read here",
        lambda path, start, text: path.suffix in (".nsys-rep", ".qdrep"),
    ),
    Foreign(
        "a report of Nsight Compute",
        "it holds counters of single kernels; record with torch.profiler or Nsight Systems",
        lambda path, start, text: path.suffix == ".ncu-rep",
    ),
    Foreign(
        "Perfetto's binary trace",
        "Perfetto's `traceconv json FILE` writes a Chrome trace",
        lambda path, start, text: path.suffix in (".pftrace", ".perfetto-trace"),
    ),
    Foreign(
        "a page (HTML)",
        "profilers write pages from traces: give the trace itself",
        lambda path, start, text: text[:200].lower().startswith(("<html", "<!doctype html")),
    ),
    Foreign(
        "text in UTF-16",
        "write it again in UTF-8",
        lambda path, start, text: start.startswith((b"\xff\xfe", b"\xfe\xff")),
    ),
    Foreign(
        "an XLA profile (xplane)",
        "`pip install xprof`, then xprof.convert.raw_to_tool_data.xspace_to_tool_data([FILE], "
        "'trace_viewer', {}) writes a Chrome trace; it has XLA's operators, not torch's",
        lambda path, start, text: path.name.endswith((".xplane.pb", ".xplane.pb.gz")),
    ),
    Foreign(
        "a memory timeline",
        "it holds sizes by time; torch.profiler's export_chrome_trace writes the operators",
        lambda path, start, text: bool(re.match(r"\[\s*\[\s*-?\d+\s*,", text)),
    ),
    Foreign(
        "a pickle (torch's memory snapshots are pickles)",
        "it holds allocations; torch.profiler's export_chrome_trace writes the operators",
        lambda path, start, text: start.startswith(PICKLE),
    ),
    Foreign(
        "another document of joymigrate",
        "joymigrate report FILE shows it; joymigrate profile record makes a trace",
        lambda path, start, text: bool(OURS(text)) and not RECORDED(text),
    ),
    Foreign(
        "rocprofiler's own JSON",
        "it has kernels without operators; record with torch.profiler",
        lambda path, start, text: '"rocprofiler-sdk-tool"' in text[:200],
    ),
)


@functools.cache
def modules() -> tuple[Any, ...]:
    """The files that read a kind, in the order in which they are asked."""
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem[0] != "_")
    found = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(sorted((m for m in found if hasattr(m, "READERS")), key=lambda m: m.RANK))


def kinds() -> dict[str, Callable[[Path], Trace]]:
    """Every kind that can be read."""
    return {kind: reader for module in modules() for kind, reader in module.READERS.items()}


def detect(path: Path) -> str:
    """The kind of a file. `JoyError` for one that is none."""
    start = head(path)
    if not start.strip():
        raise JoyError("an empty file", where=str(path), help=HELP)
    text = start.decode("utf-8-sig", "replace").lstrip()
    known = next((one for one in FOREIGN if one.fits(path, start, text)), None)
    if known is not None:
        raise JoyError(f"not a trace of operators: {known.what}", where=str(path), help=known.help)
    for module in modules():
        found = module.kind_of(start, text)
        if found:
            return str(found)
    raise JoyError(
        "not a trace: neither JSON nor a table that is known", where=str(path), help=HELP
    )


def read(path: Path | str) -> Trace:
    """One file, whatever its kind."""
    path = Path(path)
    if path.is_dir():
        raise JoyError("a folder, not a trace", where=str(path), help="name the files in it")
    if not path.exists():
        raise JoyError("there is no such file", where=str(path))
    kind = detect(path)
    try:
        return kinds()[kind](path)
    except (
        TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError, csv.Error,
    ) as error:  # fmt: skip
        # Another tool's file, or a damaged one: a value stands where its format has another form.
        raise JoyError(
            f"not a sound {kind} trace: {type(error).__name__}: {error}",
            where=str(path),
            help="write it again; `file` and the first lines may tell what it is",
        ) from error


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """Several files; a folder stands for the traces in it (one per rank, as profilers write)."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        found = sorted({p for pattern in IN_FOLDERS for p in path.glob(pattern)})
        found = without_copies(found)
        if not found:
            raise JoyError("no traces in this folder", where=str(path), help=HELP)
        files += found
    return [read(path) for path in files]


def read_captures(paths: Sequence[Path], named: Sequence[Path] = ()) -> list[Trace]:
    """Traces of the capture of graphs: the `named` ones, and those in `capture_traces/` beside."""
    beside = {(p if p.is_dir() else p.parent) / CAPTURES for p in paths}
    folders = [folder for folder in sorted(beside) if folder.is_dir()]
    found = {f for d in folders for pattern in IN_FOLDERS for f in d.glob(pattern)}
    traces = []
    for path in (*named, *sorted(found)):
        try:
            traces.append(read(path))
        except JoyError:  # other files may lie beside captures
            if path in named:
                raise
    return traces


def without_copies(paths: Sequence[Path]) -> list[Path]:
    """The files without those Chrome traces that lie beside the recording they belong to."""
    recorded = {str(p).removesuffix(".gz").removesuffix(".jsonl") for p in paths if JSONL(p.name)}
    return [p for p in paths if str(p).removesuffix(".trace.json.gz") not in recorded]

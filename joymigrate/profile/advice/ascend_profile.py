"""A profile made on an Ascend NPU: the kernels' table, host events, sizes of packets.

Reads what torch_npu.profiler leaves in `ASCEND_PROFILER_OUTPUT`: `kernel_details.csv`,
`trace_view.json` and `communication.json`; any of them alone is enough. A table of kernels is told
by its columns, under any name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile import readers
from joymigrate.profile.readers import tables_vendor as tables

KERNELS = "kernel_details.csv"
EVENTS = "trace_view.json"
PACKETS = "communication.json"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
TABLES = ("kernel_details", "op_statistic")  # kinds of the readers
RATIO = re.compile(r"ai[cv]_(\w+?)_ratio$")


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch. `ratios`: unit (mac, vec, mte2 …) → busy share, the higher of both cores."""

    name: str
    type: str
    core: str
    us: float
    blocks: int
    shapes: str
    dtypes: str
    ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Profile:
    """What one rank left. `events`: host event → (count, µs). `packets`: link → {MB: count}."""

    path: Path
    kernels: tuple[KernelLaunch, ...] = ()
    events: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    packets: Mapping[str, Mapping[float, int]] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_us(self) -> float:
        """Time of all kernels."""
        return sum(kernel.us for kernel in self.kernels)


def find(path: Path) -> Path | None:
    """The folder of a profile, from the folder itself, the one above, or one of its files."""
    if path.is_file():
        named = path.name in (PACKETS, EVENTS) or readers.detect(path) in TABLES
        return path.parent if named else None
    for folder in (path, path / OUTPUT):
        if any((folder / name).is_file() for name in (KERNELS, PACKETS, EVENTS)):
            return folder
    return None


def read(path: Path) -> Profile:
    """The profile at `path`; of a named file only that file."""
    folder = find(path)
    if folder is None:
        raise JoyError(
            "no profile of an NPU", where=str(path), help=f"name a folder with {KERNELS} in it"
        )
    files = {name: folder / name for name in (KERNELS, EVENTS, PACKETS)}
    if path.is_file():
        files = {path.name if path.name in (EVENTS, PACKETS) else KERNELS: path}
    files = {name: file for name, file in files.items() if file.is_file()}
    return Profile(
        path,
        tuple(kernels(files[KERNELS])) if KERNELS in files else (),
        events(files[EVENTS]) if EVENTS in files else {},
        packets(files[PACKETS]) if PACKETS in files else {},
        core_counts(folder),
    )


def kernels(path: Path) -> Iterator[KernelLaunch]:
    """The rows of a table of launches, or of kinds: each call of these took the average."""
    total = readers.detect(path) == "op_statistic"
    for row in tables.rows(path, tables.TYPE, tables.TOTAL if total else tables.DURATION):
        ratios: dict[str, float] = {}
        for column, text in row.items():
            unit = RATIO.match(column or "")
            if unit:
                ratios[unit.group(1)] = max(ratios.get(unit.group(1), 0.0), number(text))
        kind = tables.first(row, tables.TYPE)
        calls = max(1, int(number(row.get("Count")))) if total else 1
        launch = KernelLaunch(
            row.get("Name") or row.get("Op Name") or kind,
            kind,
            tables.first(row, tables.CORE).strip().replace(" ", "_").upper(),
            number(tables.first(row, tables.TOTAL if total else tables.DURATION)) / calls,
            int(number(row.get("Block Dim") or row.get("Block Num"))),
            row.get("Input Shapes") or "",
            row.get("Input Data Types") or "",
            ratios,
        )
        yield from (launch for _ in range(calls))


def number(text: str | None) -> float:
    """A cell as a number; `N/A` and blanks are 0."""
    try:
        return float((text or "0").strip().rstrip("%"))
    except ValueError:
        return 0.0


def events(path: Path) -> dict[str, tuple[int, float]]:
    """Host events by name: how many, and µs in all."""
    from joymigrate.profile.readers import chrome
    from joymigrate.profile.readers.stream import TextWindow

    found: dict[str, tuple[int, float]] = {}
    window = TextWindow(path)
    try:
        for event in chrome.events(window, chrome.Chrome(path)):
            if event.get("ph") == "X":
                name = str(event.get("name", ""))
                count, us = found.get(name, (0, 0.0))
                found[name] = (count + 1, us + number(str(event.get("dur", 0))))
    except ValueError as error:
        raise JoyError(f"not a trace: {error}", where=str(path)) from None
    except EOFError:
        return found  # cut short; what is in it counts
    finally:
        window.file.close()
    return found


def packets(path: Path) -> dict[str, dict[float, int]]:
    """Packets by link: size in MB → how many."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise JoyError("the file is no JSON", where=str(path)) from None
    found: dict[str, dict[float, int]] = {}
    for link, sizes in links(document):
        counts = found.setdefault(link, {})
        for size, (count, *_) in sizes.items():
            counts[float(size)] = counts.get(float(size), 0) + int(count)
    return found


def links(document: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every `Size Distribution` with the name of its link."""
    if not isinstance(document, dict):
        return
    for name, value in document.items():
        if isinstance(value, dict) and isinstance(value.get("Size Distribution"), dict):
            yield name, value["Size Distribution"]
        else:
            yield from links(value)


def core_counts(folder: Path) -> dict[str, int]:
    """Cores of the device, where the profile tells: `cube` and `vector`."""
    for path in (*folder.glob("info.json*"), *folder.parent.glob("**/info.json*")):
        try:
            devices = json.loads(path.read_text(encoding="utf-8")).get("DeviceInfo") or [{}]
            cube, vector = devices[0].get("ai_core_num"), devices[0].get("aiv_num")
        except (ValueError, OSError, AttributeError, IndexError):
            continue
        return {k: int(v) for k, v in (("cube", cube), ("vector", vector)) if v}
    return {}

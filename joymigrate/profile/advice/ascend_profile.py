"""A profile made on an Ascend NPU: the kernels' table, host events, sizes of packets.

Reads what torch_npu.profiler leaves in `ASCEND_PROFILER_OUTPUT`: `kernel_details.csv`,
`trace_view.json`, `communication.json` and `step_trace_time.csv`; any of them alone is enough. A
table of kernels is told by its columns, under any name.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile import readers
from joymigrate.profile.readers import tables_vendor as tables

KERNELS = "kernel_details.csv"
EVENTS = "trace_view.json"
PACKETS = "communication.json"
STEPS = "step_trace_time.csv"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
TABLES = ("kernel_details", "op_statistic")  # kinds of the readers
SIZE, TIME = "Transit Size(MB)", "Transit Time(ms)"
RATIO = re.compile(r"ai[cv]_(\w+?)_ratio$")
RANK = re.compile(r"profiler_info_(\d+)\.json")
ALONE = "profiler_info.json"  # of a process without a rank
FOLDER = re.compile(r"(?P<process>.+)_(?P<made>\d{14,17})_ascend_pt")  # one a recording
BUBBLE, HIDDEN = "Bubble", "Overlapped"  # waiting for another stage; inside of computing
EXPOSED = "Communication(Not Overlapped)"  # a bubble is a part of it
WHOLE = ("Computing", EXPOSED, "Free")  # parts that make up a step


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
    """What one rank left. `events`: host event → (count, µs). `packets`: link → {MB: count}.

    `parts`: column of `step_trace_time.csv` → µs of a step. `speeds`: link → GB/s.
    """

    path: Path
    kernels: tuple[KernelLaunch, ...] = ()
    events: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    packets: Mapping[str, Mapping[float, int]] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    rank: str = ""

    @property
    def total_us(self) -> float:
        """Time of all kernels."""
        return sum(kernel.us for kernel in self.kernels)

    @property
    def step_us(self) -> float:
        """Time of a step; 0 where the profile does not tell."""
        return sum(self.parts.get(part, 0.0) for part in WHOLE)

    def share(self, times_us: Iterable[float]) -> float | None:
        """The share that times of this rank, one after another, have of its kernels' time."""
        return sum(times_us) / self.total_us if self.total_us else None


@dataclass(frozen=True, slots=True)
class RankProfiles:
    """What the ranks of one job left."""

    path: Path
    ranks: tuple[Profile, ...]

    def share(self, times_us: Iterable[float]) -> float | None:
        """The share that the longest of some times has of a step: ranks run side by side."""
        steps_us = [one.step_us for one in self.ranks if one.step_us]
        return max(times_us) / mean(steps_us) if steps_us else None


def join_ranks(path: Path, profiles: Iterable[Profile]) -> RankProfiles:
    """The newest recording of each rank; a process without a rank is none of a job.

    JoyError where ranks have unequal numbers of them: nobody knows which belong together.
    """
    ranks: dict[str, list[Profile]] = defaultdict(list)
    for one in profiles:
        if one.rank:
            ranks[one.rank].append(one)
    counts = {rank: len(found) for rank, found in ranks.items()}
    dated = all(FOLDER.fullmatch(one.path.name) for found in ranks.values() for one in found)
    if len({*counts.values()}) > 1 or (not dated and any(n > 1 for n in counts.values())):
        most = max(counts, key=lambda rank: counts[rank])
        names = ", ".join(one.path.name for one in ranks[most])
        raise JoyError(
            f"rank {most} has several profiles here, and which runs the others are of is not known",
            where=f"{path}: {names}",
            help="keep the folders of one run there, or name one of them",
        )
    return RankProfiles(path, tuple(max(found, key=made_at) for found in ranks.values()))


def made_at(profile: Profile) -> str:
    """When a recording began, down to ms, as its folder's name says it; empty where it does not."""
    found = FOLDER.fullmatch(profile.path.name)
    return found["made"].ljust(17, "0") if found else ""


def find_ranks(path: Path) -> list[Path]:
    """Folders of ranks below a folder; none where it is a profile itself."""
    if not path.is_dir() or find(path) is not None:
        return []
    return [folder for folder in sorted(path.iterdir()) if find(folder) is not None]


def find(path: Path) -> Path | None:
    """The folder of a profile, from the folder itself, the one above, or one of its files."""
    if path.is_file():
        named = path.name in (PACKETS, EVENTS, STEPS) or readers.detect(path) in TABLES
        return path.parent if named else None
    for folder in (path, path / OUTPUT):
        if any((folder / name).is_file() for name in (KERNELS, PACKETS, EVENTS, STEPS)):
            return folder
    return None


def read(path: Path) -> Profile:
    """The profile at `path`; of a named file only that file."""
    folder = find(path)
    if folder is None:
        raise JoyError(
            "no profile of an NPU", where=str(path), help=f"name a folder with {KERNELS} in it"
        )
    files = {name: folder / name for name in (KERNELS, EVENTS, PACKETS, STEPS)}
    if path.is_file():
        files = {path.name if path.name in files else KERNELS: path}
    files = {name: file for name, file in files.items() if file.is_file()}
    communication = read_json(files[PACKETS]) if PACKETS in files else {}
    return Profile(
        path,
        tuple(kernels(files[KERNELS])) if KERNELS in files else (),
        events(files[EVENTS]) if EVENTS in files else {},
        packets(communication),
        core_counts(folder),
        step_parts(files[STEPS]) if STEPS in files else {},
        speeds(communication),
        rank_of(folder),
    )


def rank_of(folder: Path) -> str:
    """The rank that a profile names, empty where its process had none; of a profile that says
    nothing of it the process, else the name of its folder."""
    for path in sorted(folder.parent.glob("profiler_info_*.json")):
        if number_ := RANK.fullmatch(path.name):
            return number_[1]
    if (folder.parent / ALONE).is_file():
        return ""
    name = folder.parent.name if folder.name == OUTPUT else folder.name
    found = FOLDER.fullmatch(name)
    return found["process"] if found else name


def step_parts(path: Path) -> dict[str, float]:
    """The parts of a step, µs: the mean over the steps of the table."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    parts = (*WHOLE, HIDDEN, BUBBLE)
    return {part: sum(number(row.get(part)) for row in rows) / len(rows) for part in parts if rows}


def read_json(path: Path) -> Any:
    """A document of the profiler."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise JoyError("the file is no JSON", where=str(path)) from None


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


def packets(document: Any) -> dict[str, dict[float, int]]:
    """Packets by link: size in MB → how many."""
    found: dict[str, dict[float, int]] = {}
    for link, about in links(document):
        counts = found.setdefault(link, {})
        for size, (count, *_) in about["Size Distribution"].items():
            counts[float(size)] = counts.get(float(size), 0) + int(count)
    return found


def speeds(document: Any) -> dict[str, float]:
    """GB/s by link, over all that went through it."""
    sums: dict[str, tuple[float, float]] = {}
    for link, about in links(document):
        mb, ms = sums.get(link, (0.0, 0.0))
        size, time = (number(str(about.get(key, 0))) for key in (SIZE, TIME))
        sums[link] = (mb + size, ms + time)
    return {link: mb / ms for link, (mb, ms) in sums.items() if ms}  # MB/ms is GB/s


def links(document: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What is said of each link, with its name."""
    if not isinstance(document, dict):
        return
    for name, value in document.items():
        if isinstance(value, dict) and isinstance(value.get("Size Distribution"), dict):
            yield name, value
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

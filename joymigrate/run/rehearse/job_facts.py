"""Facts of a whole rehearsal that no single call shows: how its processes share cards, what their
groups hold, what a model compiles as it runs.

`rules/<chip>/kernels/reported.yaml` speaks of them in the rows of the operator `job`, by the names
that `collect_facts` gives and by environment variables. Nothing here knows what a chip would do.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.language import Text
from joymigrate.run.rehearse.field_reports import Reported, Reports
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.run.rehearse.settings import RehearsalSettings
from joymigrate.run.rehearse.shim import VISIBLE, Shim

JOB = "job"  # stands for the operator in the rows
ROOM = 1 << 20
GIB = 1 << 30
BUFFERS = 2  # of a group, one to send and one to receive (HCCL_BUFFSIZE's page in CANN's reference)
BUFFER_MIB = 200  # HCCL_COMM_DEFAULT_BUFFSIZE of hccl_types.h
SIZE = "HCCL_BUFFSIZE"
EMPTY = "_npu_emptyCache"


@dataclass(frozen=True, slots=True)
class CardGroup:
    """One rank's part in a process group. Times in seconds since 1970."""

    name: str
    ranks: int
    process: int
    card: str
    bytes: int  # of its buffers
    began: float
    ended: float
    crossed: int  # sends that wait for a peer that sends first as well


def install(settings: RehearsalSettings, shim: Shim, record: RehearsalRecord) -> None:
    """Note these facts in the record of a process whenever it is saved."""
    names = {name for row in Reports(settings).rows.get(JOB, ()) for name in names_of(row)}

    def note(made: RehearsalRecord) -> None:
        text = ctypes.create_string_buffer(ROOM)
        shim.runtime.joy_groups(text, ctypes.c_size_t(ROOM))
        made.groups = text.value.decode().splitlines()
        made.variables = {
            name: os.environ[name] for name in {*names, VISIBLE, SIZE} if os.environ.get(name)
        }

    record.sources.append(note)
    watch_options(record)
    watch_pools(record)


def watch_options(record: RehearsalRecord) -> None:
    """Note what the program itself chooses: the package keeps its own default in the same place."""
    import torch_npu

    real = torch_npu._C._npu_setOption

    def choose(options: dict[str, str]) -> None:
        record.jit_compile = options.get("jitCompile", record.jit_compile)
        real(options)

    torch_npu._C._npu_setOption = choose


def watch_pools(record: RehearsalRecord) -> None:
    """Note where a cache is emptied while allocations go to a pool of the program's own."""
    import torch_npu

    package = torch_npu._C
    begin, end, empty = "_npu_beginAllocateCurrentThreadToPool", "_npu_endAllocateToPool", EMPTY
    if not hasattr(package, begin):
        return  # a release without pools
    inside = [0]

    def around(name: str, change: int) -> None:
        real = getattr(package, name)

        def call(*args: Any) -> Any:
            inside[0] += change
            record.emptied += name == empty and inside[0] > 0
            return real(*args)

        setattr(package, name, call)

    for name, change in ((begin, 1), (end, -1), (empty, 0)):
        around(name, change)


def names_of(row: Reported) -> tuple[str, ...]:
    """What a row asks for."""
    return (*row.without, *(row.when.names if row.when is not None else ()))


def collect_facts(
    settings: RehearsalSettings, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Names that a row may use: `ranks_on_card`, the most of one group; `jobs_on_card`, the most
    at a time; `buffers` and `held` of the card with the most, and its `memory`, in bytes; `forms`,
    the most distinct tensors that one operator was given; `jit_compile`, empty where the program
    leaves it; `visible`, the numbers of the cards that were asked for; `crossed`, sends of one rank
    that stand before the receive of what its peer sends before its own; `emptied`, calls of
    empty_cache inside of a pool; environment variables."""
    groups = [one for record in records for one in groups_of(record)]
    buffers, held = most_memory(groups, records)
    forms = Counter(
        row["op"]
        for record in records[:1]
        for row in record["signatures"]
        if any(isinstance(one, dict) and "tensor" in one for one in row["args"])
    )
    variables = {name: v for record in records for name, v in record["variables"].items()}
    seen = [one for one in variables.get(VISIBLE, "").split(",") if one.strip().isdigit()]
    return {
        "visible": tuple(map(int, seen)),
        "crossed": max((one.crossed for one in groups), default=0),
        "emptied": sum(record["emptied"] for record in records),
        "ranks_on_card": max(Counter((one.name, one.card) for one in groups).values(), default=0),
        "jobs_on_card": most_jobs(groups),
        "buffers": buffers,
        "held": held,
        "memory": settings.memory_bytes,
        "forms": max(forms.values(), default=0),
        "jit_compile": next((record["jit_compile"] for record in records), ""),
        **variables,
    }


def groups_of(record: Mapping[str, Any]) -> Iterator[CardGroup]:
    """The groups of one process. One of a single rank has nobody to talk to."""
    said = record["variables"].get(SIZE, "")
    for line in record["groups"]:
        name, ranks, _, device, own, began, ended, crossed = line.split()
        if int(ranks) > 1:
            size = int(own) or (int(said) if said.isdecimal() else BUFFER_MIB)
            yield CardGroup(
                name, int(ranks), record["pid"], card_of(record, int(device)),
                BUFFERS * size << 20, float(began), float(ended) or record["saved"],
                int(crossed),
            )  # fmt: skip


def card_of(record: Mapping[str, Any], device: int) -> str:
    """The card that a process sees under a number."""
    seen = record["variables"].get(VISIBLE, "").split(",")
    return seen[device].strip() if seen[0] and device < len(seen) else str(device)


def at_a_time(groups: Sequence[CardGroup]) -> Iterator[tuple[str, list[CardGroup]]]:
    """Per group its card, and all that lie there when it begins."""
    for one in groups:
        yield one.card, [g for g in groups if g.card == one.card and g.began <= one.began < g.ended]


def most_memory(
    groups: Sequence[CardGroup], records: Sequence[Mapping[str, Any]]
) -> tuple[int, int]:
    """The most bytes of one card at a time: of the buffers of groups there, and of what their
    processes hold at their peaks."""
    held = {
        (record["pid"], card_of(record, int(device.rpartition(":")[2]))): count
        for record in records
        for device, count in record["reserved_bytes"].items()
    }
    taken = [
        (sum(one.bytes for one in there), sum(held.get((p, card), 0) for p in processes_of(there)))
        for card, there in at_a_time(groups)
    ]
    return max(taken, key=sum, default=(0, 0))


def processes_of(groups: Sequence[CardGroup]) -> set[int]:
    """The processes that have some groups."""
    return {one.process for one in groups}


def most_jobs(groups: Sequence[CardGroup]) -> int:
    """The most jobs that have groups on one card at a time. Processes that share a group, also by
    way of others, are one job; it has the number of its first process."""
    job = {one.process: one.process for one in groups}
    for name in dict.fromkeys(one.name for one in groups):
        joined = {job[one.process] for one in groups if one.name == name}
        job = {process: min(joined) if of in joined else of for process, of in job.items()}
    return max((len({job[g.process] for g in there}) for _, there in at_a_time(groups)), default=0)


def job_traps(
    settings: RehearsalSettings, records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What was reported of programs like this one."""
    facts = collect_facts(settings, records)
    shown = {n: f"{facts[n] / GIB:.1f} GiB" for n in ("buffers", "held", "memory")}
    return [
        {
            "trap": row.name, "where": row.place, "remedy": row.action, "count": 1,
            "message": Text(row.problem, **{**facts, **shown}), "grade": "reported",
            "source": row.source,
        }
        for row in Reports(settings).of_call(JOB, facts)
    ]  # fmt: skip

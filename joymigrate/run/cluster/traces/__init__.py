"""Readers of job traces, one file per format, found by folder; each has `read(path) -> Trace`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster.events import Cancelled, Event
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.queues import Queue


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job of a trace: when it arrives and how long it runs, in seconds.

    `waited`: how long it really did before it started, where the trace is a record that says so.
    """

    job: GangJob
    at: float
    seconds: float
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class JobTrace:
    """A trace in order of arrival. `undated`: it has no times, only requests.

    A record of a cluster also says its nodes, what else happened (`events` by time: nodes that went
    and came, jobs that were taken back), and in `notes` what is not in it.
    """

    arrivals: tuple[Arrival, ...]
    queues: tuple[Queue, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    undated: bool = False
    inventory: Inventory | None = None
    events: tuple[Event, ...] = ()
    notes: tuple[str, ...] = ()


def names() -> list[str]:
    """Names of all formats."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem[0] != "_")


def read(path: Path, form: str) -> JobTrace:
    """Read a trace; an unknown format or a mistake in the file raises `JoyError`."""
    if form not in names():
        raise JoyError(
            f"unknown trace format '{form}'.{did_you_mean(form, names())}",
            help=f"formats: {', '.join(names())}",
        )
    module = importlib.import_module(f"{__name__}.{form}")
    try:
        trace: JobTrace = module.read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise JoyError(
            f"cannot read the trace: {error}", where=str(path), help="name an existing file"
        ) from error
    gone = {event.job: event.at for event in trace.events if isinstance(event, Cancelled)}
    came = tuple(one for one in trace.arrivals if one.at < gone.get(one.job.name, float("inf")))
    if not came:
        raise JoyError("the trace has no job", where=str(path))
    early = len(trace.arrivals) - len(came)
    notes = [f"{early} jobs were taken back before they could start: left out"] if early else []
    return replace(trace, arrivals=came, notes=(*trace.notes, *notes))

"""Why a job waits, as one object: what is idle, held, used up or failed, and what is enough.

The figures are those of the moment. `enough` is only said after a copy of the scheduler has started
the job on it; without it nothing that was tried was enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.entries import NEVER, WaitingJob
from joymigrate.run.cluster.foresight import Enough, Foresight, Outlook, foresee
from joymigrate.run.cluster.scheduler import Scheduler

SHOWN = 5  # jobs that a sentence names
QUOTA = ("max", "min", "never")


def explain(
    scheduler: Scheduler, name: str, now: float, outlook: Outlook | None = None
) -> dict[str, Any] | None:
    """The explanation as plain data; None for a job that does not wait. Times in seconds."""
    refusal = scheduler.why(name)
    if refusal is None:
        return None
    data: dict[str, Any] = {
        "job": name,
        "code": refusal.code,
        "reason": refusal.reason,
        "frees": refusal.frees,
        "permanent": refusal.permanent,
    }
    entry = None if name in scheduler.refused else scheduler.entry(name)
    if entry is None or refusal.permanent:
        return {**data, "start": {"in_s": None, "basis": "it can never start as it is"}}
    foresight = foresee(scheduler, name, now, outlook)
    sentence = sentence_of(foresight.enough)
    if sentence:
        data["frees"] += f"; {sentence}"
    return {
        **data,
        "idle": count_idle(scheduler, entry),
        "held": holds_before(scheduler, entry, now),
        "failed": unusable(scheduler, entry),
        "quota": dict(refusal.facts) if refusal.code in QUOTA else None,
        "enough": enough_data(foresight.enough),
        "start": start_data(foresight),
    }


def count_idle(scheduler: Scheduler, entry: WaitingJob) -> dict[str, int]:
    """Free cards per kind on the nodes that may take a pod of the job, held ones among them."""
    state = scheduler.state
    found: dict[str, int] = {}
    for number in scheduler.placer.nodes_for(entry.job).nonzero()[0]:
        kind = state.nodes[int(number)].kind.name
        found[kind] = found.get(kind, 0) + int(state.free[number]).bit_count()
    return found


def holds_before(scheduler: Scheduler, entry: WaitingJob, now: float) -> list[dict[str, Any]]:
    """Free cards on the job's nodes that are held for others whom it may not pass."""
    state, admission = scheduler.state, scheduler.admission
    nodes = scheduler.placer.nodes_for(entry.job)
    found = []
    for hold in admission.binding(entry, now):
        masks = (hold.mask & state.free)[nodes]
        until = None if hold.until == NEVER else hold.until - now
        number = int(cards.count(masks).sum())
        found.append({"for": hold.entry.job.name, "cards": number, "until_s": until})
    return found


def unusable(scheduler: Scheduler, entry: WaitingJob) -> dict[str, list[int]]:
    """Cards of the job's nodes that nobody is granted: failed, cordoned, lost."""
    state = scheduler.state
    found = {}
    for number in scheduler.placer.nodes_for(entry.job).nonzero()[0]:
        node = state.nodes[int(number)]
        sick = int(state.granted[number]) & ~int(state.usable[number])
        if sick:
            found[node.name] = cards.ids(sick)
    return found


def sentence_of(enough: Enough | None) -> str:
    """What is enough, in words."""
    if enough is None:
        return ""
    if enough.heals:
        text = f"enough when the cards of {list_some(enough.heals)} are in use again"
        if enough.ends:
            text += f" and {ending(enough)}"
        return text
    if not enough.ends:
        return "enough at the next decision"
    return f"enough when {ending(enough)}"


def ending(enough: Enough) -> str:
    """Which jobs end, when, and which start before it."""
    names = [name for name, _ in enough.ends]
    times = [at for _, at in enough.ends]
    when = (
        "" if None in times else f" (in {max(t for t in times if t is not None) / 60:.0f} minutes)"
    )
    verb = "ends" if len(names) == 1 else "end"
    text = f"{list_some(names)} {verb}{when}"
    if enough.starts:
        text += f", {list_some(enough.starts)} starting before it"
    return text


def list_some(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    text = ", ".join(names[:SHOWN])
    return f"{text} and {len(names) - SHOWN} more" if len(names) > SHOWN else text


def enough_data(enough: Enough | None) -> dict[str, Any] | None:
    """What is enough, as plain data."""
    if enough is None:
        return None
    return {
        "ends": [{"job": name, "in_s": at} for name, at in enough.ends],
        "starts": list(enough.starts),
        "heals": list(enough.heals),
    }


def start_data(foresight: Foresight) -> dict[str, Any]:
    """The estimated start, as plain data."""
    return {"in_s": foresight.in_s, "basis": foresight.basis}

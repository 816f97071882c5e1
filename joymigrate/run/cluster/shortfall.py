"""Why a task does not fit its nodes at this moment: the one rule that leaves too few places."""

from __future__ import annotations

from typing import Any

import numpy as np

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.fits import (
    free_of,
    in_numa_nodes,
    pods_that_fit,
    room,
    shares_that_fit,
)
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.place import EFFORT, NO_ROOM, Placer, leaves_of, pods_under_leaves
from joymigrate.run.cluster.policies._gradient import shares_left
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.shape import TaskShape
from joymigrate.run.cluster.state import ClusterState, Grant, Ints, Pool


def explain(placer: Placer, job: GangJob, hold: Ints | None) -> PlacementRefusal:
    """Why a job finds no room now: the first task that has none alone, or beside the others."""
    if job.leaf == "one" and len(job.tasks) > 1:
        free = cards.count(placer.state.free)
        most = int(np.bincount(leaves_of(placer.state), weights=free).max(initial=0))
        return PlacementRefusal("leaf_tasks", {"need": job.cards, "most": most})
    for beside in (False, True)[: len(job.tasks)]:
        grants: list[Grant] = []
        try:
            for task in job.tasks:
                shapes, found = placer.shapes(job, task), placer.place_task(job, task, hold)
                if found == NO_ROOM and not isinstance(shapes, PlacementRefusal):
                    return explain_shape(placer.state, shapes[0], hold)
                if isinstance(found, PlacementRefusal):
                    return found
                if beside:
                    placer.state.take(found)
                    grants.extend(found)
        finally:
            placer.state.give(grants)
    return PlacementRefusal("together", {"tasks": len(job.tasks), "tries": EFFORT})


def explain_shape(state: ClusterState, shape: TaskShape, hold: Ints | None) -> PlacementRefusal:
    """The one rule by which a task does not fit its pool now."""
    task, kind, name = shape.task, shape.pool.kind, shape.pool.name
    free = free_of(state, shape.pool, hold)
    unseen = count_unseen(state, shape.pool, free)
    if shape.job.leaf == "one" and len(shape.job.tasks) == 1 and task.pods > 1:
        under = pods_under_leaves(state, shape, hold)
        most = int(under.max(initial=0))
        if under.sum() >= task.pods:
            size = task.cards or task.milli / 1000
            facts: dict[str, Any] = {
                "pods": task.pods,
                "cards": size,
                "fits": most,
                "lacking": task.pods - most,
            }
            return PlacementRefusal("leaf", facts) if most < task.pods else NO_ROOM
    shares = int(shares_that_fit(state, shape, hold).sum()) if task.milli else 0
    if shares:
        facts = {"share": task.milli / 1000, "kind": name, "pods": task.pods, "fits": shares}
        return PlacementRefusal("shares", {**facts, "lacking": task.pods - shares, **unseen})
    if task.milli:
        return explain_share(state, shape, unseen)
    have = int(cards.count(free).sum())
    need = task.cards * task.pods
    if have < need:
        facts = {"need": need, "kind": name, "free": have, "missing": need - have}
        return PlacementRefusal("cards", {**facts, **unseen})
    fitting = int(pods_that_fit(state, shape, free, hold).sum())
    by_cards = int(shape.choice.fits[free].sum())
    by_numa = int(in_numa_nodes(shape, free).sum()) if shape.job.numa == "one" else by_cards
    # Each rule leaves fewer pods; the first that leaves too few is the cause, and what the CPU
    # takes away beyond it is said beside it.
    also = f", {fitting} of them beside {task.beside}" if fitting < by_numa else ""
    facts = {"free": have, "kind": name, "pods": task.pods, "also": also, **unseen}
    if by_cards < task.pods:
        shape_text, unit = shape_words(kind, task.cards)
        facts |= {"shape": shape_text, "unit": unit, "fits": by_cards}
        return PlacementRefusal("shape", {**facts, "lacking": task.pods - by_cards})
    if by_numa < task.pods:
        facts |= {"cards": task.cards, "fits": by_numa, "lacking": task.pods - by_numa}
        return PlacementRefusal("numa", facts)
    return beside(task, fitting, unseen)


def count_unseen(state: ClusterState, pool: Pool, free: Ints) -> dict[str, int]:
    """Idle cards of a pool that are not in `free`: kept for others, and out of use."""
    kept = int(cards.count(state.free[pool.index]).sum() - cards.count(free).sum())
    idle = state.idle[pool.index] & state.granted[pool.index]
    return {
        "kept_cards": kept,
        "out_cards": int(cards.count(idle & ~state.usable[pool.index]).sum()),
    }


def explain_share(
    state: ClusterState, shape: TaskShape, unseen: dict[str, int]
) -> PlacementRefusal:
    """Why no card has room for a share: too little of it left, or no CPU or memory beside it."""
    task, index = shape.task, shape.pool.index
    left = shares_left(state, index)
    room_for_share = (left >= task.milli).any(axis=1)
    if room_for_share.any() and not (room(state, shape)[room_for_share] > 0).any():
        return beside(task, 0, unseen)
    most = int(left.max(initial=0))
    facts = {"share": task.milli / 1000, "kind": shape.pool.name, "most": most / 1000}
    return PlacementRefusal("open", {**facts, **unseen})


def beside(task: PodGroup, fits: int, unseen: dict[str, int]) -> PlacementRefusal:
    """The refusal for cards without CPU or memory beside them."""
    facts = {"beside": task.beside, "pods": task.pods, "fits": fits}
    return PlacementRefusal("cpu", {**facts, **unseen})


def shape_words(kind: ServerKind, k: int) -> tuple[str, str]:
    """How the free cards would have to lie, and the unit that must become free."""
    if kind.rule == "rings" and k <= len(kind.groups[0]):
        return f"no ring has {k} of them for every pod", f"{k} cards of one ring"
    if kind.rule == "rings" and k < kind.cards:
        return f"no node has half of {k} in each ring", f"{k // 2} cards in each ring of one node"
    if kind.rule == "modules" and k > 1:
        return f"no node has {k // 2} whole modules", f"{k // 2} whole modules of one node"
    if kind.rule == "blocks" and k % len(kind.groups[0]) == 0:
        return "no node has the full meshes", f"{k // len(kind.groups[0])} full meshes of one node"
    return f"spread over nodes, none has {k}", f"{k} cards of one node"

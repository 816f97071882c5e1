"""Why a task does not fit its nodes at this moment: the one rule that leaves too few places."""

from __future__ import annotations

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.fits import in_numa_nodes, pods_that_fit, room
from joymigrate.run.cluster.jobs import PodGroup
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.policies._gradient import shares_left
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.shape import TaskShape
from joymigrate.run.cluster.state import ClusterState, Ints, Pool


def explain(
    state: ClusterState, shape: TaskShape, free: Ints, fits: Ints | None = None, shares: int = 0
) -> PlacementRefusal:
    """The one reason why a task does not fit its pool now; `shares` of its pods find a card."""
    task, kind, name = shape.task, shape.pool.kind, pool_name(state, shape.pool)
    unseen = count_unseen(state, shape.pool, free)
    if task.milli and shares:
        facts = {"share": task.milli / 1000, "kind": name, "pods": task.pods, "fits": shares}
        return PlacementRefusal("shares", {**facts, "lacking": task.pods - shares, **unseen})
    if task.milli:
        return explain_share(state, shape, name, free, unseen)
    have = int(cards.count(free).sum())
    need = task.cards * task.pods
    if have < need:
        facts = {"need": need, "kind": name, "free": have, "missing": need - have}
        return PlacementRefusal("cards", {**facts, **unseen})
    if fits is None:
        fits = pods_that_fit(state, shape, free)
    fitting, by_cards = int(fits.sum()), int(shape.choice.fits[free].sum())
    by_numa = int(in_numa_nodes(shape, free).sum()) if shape.job.numa == "one" else by_cards
    # Each rule leaves fewer pods; the first that leaves too few is the cause, and what the CPU
    # takes away beyond it is said beside it.
    also = f", {fitting} of them beside {write_beside(task)}" if fitting < by_numa else ""
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
    state: ClusterState, shape: TaskShape, name: str, free: Ints, unseen: dict[str, int]
) -> PlacementRefusal:
    """Why no card has room for a share: too little of it left, or no CPU or memory beside it."""
    task, index = shape.task, shape.pool.index
    left = shares_left(state, index)
    room_for_share = (left >= task.milli).any(axis=1)
    if room_for_share.any() and not (room(state, shape)[room_for_share] > 0).any():
        return beside(task, 0, unseen)
    most = int(left.max(initial=0))
    facts = {"share": task.milli / 1000, "kind": name, "most": most / 1000}
    return PlacementRefusal("open", {**facts, **unseen})


def beside(task: PodGroup, fits: int, unseen: dict[str, int]) -> PlacementRefusal:
    """The refusal for cards without CPU or memory beside them."""
    facts = {"beside": write_beside(task), "pods": task.pods, "fits": fits}
    return PlacementRefusal("cpu", {**facts, **unseen})


def write_beside(task: PodGroup) -> str:
    """CPU and memory of one pod, in words."""
    memory = f" and {task.memory_mib / 1024:.4g} GiB" if task.memory_mib else ""
    return f"{task.cpu_milli / 1000:g} CPU cores{memory}"


def pool_name(state: ClusterState, pool: Pool) -> str:
    """What the pool's cards are called: their kind, or their family where kinds are mixed."""
    first, last = state.nodes[int(pool.nodes[0])].kind, state.nodes[int(pool.nodes[-1])].kind
    return first.name if first is last else first.family


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

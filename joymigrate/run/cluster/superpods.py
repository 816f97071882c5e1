"""Which nodes a job with logical super-pods gets: every block of nodes inside one super-pod.

Super-pods are sorted by what they have left after the reserve, in blocks. First those with no more
blocks than wanted, the least remainder first; then larger ones; then the reserve is used; then,
only when the job says `superpod: soft`, blocks are broken over smaller super-pods. The order is the
one of the scheduler plug-in that the kinds' data names as its source.
"""

from __future__ import annotations

import numpy as np

from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.state import Ints, Pool


def problem(job: GangJob, task: PodGroup, kind: ServerKind, pool: Pool) -> PlacementRefusal | None:
    """Why this `sp_block` can never be laid out on this kind, or None."""

    def wrong(text: str, remedy: str) -> PlacementRefusal:
        return PlacementRefusal("block", {"block": job.sp_block, "problem": text, "remedy": remedy})

    if not kind.superpod_size or not pool.superpods:
        return wrong(f"needs super-pods, {kind.name} nodes name none", "give nodes a `superpod`")
    total = task.cards * task.pods
    if task.pods == 1:
        if job.sp_block != task.cards:
            return wrong(f"is not the {task.cards} cards of the only pod", f"use {task.cards}")
        return None
    if task.cards != kind.cards:
        return wrong(f"needs pods of {kind.cards} cards, not {task.cards}", "use whole nodes")
    if job.sp_block % kind.cards:
        return wrong(f"is no multiple of a node's {kind.cards} cards", f"use {kind.cards}·n")
    if total % job.sp_block:
        return wrong(f"does not divide the job's {total} cards", "use a divisor of the total")
    if job.sp_block // kind.cards > kind.superpod_size:
        return wrong(f"is larger than a super-pod of {kind.superpod_size} nodes", "use less")
    block = job.sp_block // kind.cards
    sizes = np.bincount(pool.superpod[pool.superpod >= 0])
    room = int((sizes // block).sum())
    least = job.least_pods(task) // block
    if room < least and job.superpod != "soft":
        words = f"asks for {least} blocks of {block} nodes, the super-pods hold {room}"
        return wrong(words, "use less, or `superpod: soft`")
    return None


def choose(job: GangJob, task: PodGroup, pool: Pool, fits: Ints) -> list[int] | PlacementRefusal:
    """Positions in the pool in rank order, one pod each, or why not."""
    block = max(1, job.sp_block // pool.kind.cards)
    blocks = max(1, task.pods // block)
    members = [
        [int(p) for p in np.nonzero((pool.superpod == number) & (fits > 0))[0]]
        for number in range(pool.superpods)
    ]
    if task.pods == 1:
        everywhere = sorted((p for nodes in members for p in nodes), key=lambda p: int(fits[p]))
        if not everywhere:
            return PlacementRefusal("superpod", {"need": 1, "block": 1, "have": 0})
        return everywhere[:1]
    total = sum(len(nodes) // block for nodes in members)
    soft = job.superpod == "soft" and sum(map(len, members)) >= task.pods
    if total < blocks and not soft:
        return PlacementRefusal("superpod", {"need": blocks, "block": block, "have": total})
    return select(members, block, blocks, pool.kind.superpod_reserve, soft)


def select(
    members: list[list[int]], block: int, blocks: int, reserve: int, soft: bool = False
) -> list[int]:
    """Nodes of `blocks` blocks of `block` nodes; `members` lists free nodes per super-pod."""
    left = [list(nodes) for nodes in members]
    order = classify(left, block, reserve, soft)
    picked: list[list[int]] = []

    def take(number: int) -> None:
        picked.append(left[number][:block])
        del left[number][:block]

    def spare(numbers: list[int]) -> None:
        for number in numbers:
            while len(picked) < blocks and len(left[number]) - reserve >= block:
                take(number)

    quotients = max((key[1] for key in order), default=0)
    for remainder in range(block):  # no more blocks than wanted, least remainder first
        quotient = 1
        while quotient <= min(quotients, blocks - len(picked)):
            spare(order.get((remainder, quotient), []))
            quotient += 1
    for quotient in range(blocks - len(picked) + 1, quotients + 1):
        for remainder in range(block):
            spare(order.get((remainder, quotient), []))
    for remainder in reversed(range(block)):  # the reserve, one block of each super-pod in turn
        for quotient in range(quotients + 1):
            numbers = order.get((remainder, quotient), [])
            for number in sorted(numbers, key=lambda n: -len(left[n])):
                if len(picked) < blocks and len(left[number]) >= block:
                    take(number)
    while len(picked) < blocks:
        whole = [n for n in range(len(left)) if len(left[n]) >= block]
        if not whole:
            break
        take(max(whole, key=lambda n: len(left[n])))
    chosen = [node for nodes in picked for node in nodes]
    missing = block * blocks - len(chosen)
    if missing and soft:
        for number in sorted(range(len(left)), key=lambda n: -len(left[n])):
            chosen += left[number][: max(0, block * blocks - len(chosen))]
    return chosen


def classify(
    members: list[list[int]], block: int, reserve: int, soft: bool
) -> dict[tuple[int, int], list[int]]:
    """Super-pods by (remainder, quotient) of what they have beyond the reserve, in blocks."""
    order: dict[tuple[int, int], list[int]] = {}
    for number, nodes in enumerate(members):
        if len(nodes) < block and not soft:
            continue
        beyond = len(nodes) - reserve
        key = (len(nodes) % block, 0) if beyond < 0 else (beyond % block, beyond // block)
        order.setdefault(key, []).append(number)
    return order

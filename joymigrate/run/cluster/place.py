"""Where a gang goes: all pods of a job at once, or that there is no room. Pure: takes nothing.

Order of thought: which nodes can hold how many pods (lookup tables), then the tightest domain that
holds the whole gang (node, super-pod, leaf, spine, cluster), then the nodes inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster import cards, superpods
from joymigrate.run.cluster.cards import IMPOSSIBLE, CardChoice
from joymigrate.run.cluster.fits import (
    BARRED,
    free_of,
    pick,
    pods_that_fit,
    shares_that_fit,
)
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.policies import Costs, Policy
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.shape import TaskShape
from joymigrate.run.cluster.state import WHOLE, ClusterState, Grant, Ints, Placement, Pool

FAR = 1 << 40  # larger than any cost
NO_ROOM = PlacementRefusal("none")
Flags = NDArray[np.bool_]
Part = tuple[Ints, int]  # positions in a pool, and how many pods go there
Allowed = Callable[[Placement], bool]
MOST_KNOWN = 100_000  # tasks
EFFORT = 256  # placements of a task that are tried until a gang of several tasks fits, or not


class Placer:
    """Places jobs on a state under a policy. Remembers compiled shapes, decides nothing twice.

    Where a job finds no room, `shortfall` says what is short.
    """

    def __init__(self, state: ClusterState, policy: Policy) -> None:
        self.state = state
        self.policy = policy
        self._nodes: dict[frozenset[Pool], Flags] = {}
        self._shapes: dict[tuple[Any, ...], list[TaskShape] | PlacementRefusal] = {}
        # The same by the task itself, which spares comparing it with others.
        self.known: dict[int, tuple[PodGroup, Any, list[TaskShape] | PlacementRefusal]] = {}

    def compiled(self) -> list[TaskShape]:
        """The shapes that are remembered; they never change."""
        return [shape for each in self._shapes.values() if isinstance(each, list) for shape in each]

    def nodes_for(self, job: GangJob) -> Flags:
        """The nodes that may take a pod of this job."""
        found = [
            shape.pool
            for task in job.tasks
            if not isinstance(shapes := self.shapes(job, task), PlacementRefusal)
            for shape in shapes
        ]
        pools = frozenset(found)
        if pools not in self._nodes:
            flags = np.zeros(len(self.state.nodes), dtype=bool)
            for pool in pools:
                flags[pool.nodes] = True
            self._nodes[pools] = flags
        return self._nodes[pools]

    def place(
        self, job: GangJob, hold: Ints | None = None, allowed: Allowed | None = None
    ) -> Placement | PlacementRefusal:
        """Cards for every pod in rank order, else `NO_ROOM` or why there never is any.

        `hold` masks cards that are spoken for.

        `allowed` says of a placement whether the queues' limits allow it. Several tasks, or kinds,
        are tried in many ways, up to `EFFORT` placements of a task.
        """
        if job.leaf == "one" and len(job.tasks) > 1:
            return self._place_in_one_leaf(job, hold, allowed)
        return self._place_tasks(job, hold, allowed)

    def _place_tasks(
        self, job: GangJob, hold: Ints | None, allowed: Allowed | None
    ) -> Placement | PlacementRefusal:
        alone = [self.place_task(job, task, hold) for task in job.tasks]
        refused = next((found for found in alone if isinstance(found, PlacementRefusal)), None)
        if refused is not None:
            return refused
        if len(alone) == 1 and allowed is None:
            return alone[0]
        # Those with the fewest places first: they leave the others the most.
        order = sorted(range(len(job.tasks)), key=lambda at: -job.tasks[at].cards)
        return self._search(job, order, {}, hold, allowed, [EFFORT]) or NO_ROOM

    def _search(
        self,
        job: GangJob,
        order: list[int],
        placed: dict[int, Placement],
        hold: Ints | None,
        allowed: Allowed | None,
        effort: list[int],
    ) -> Placement | None:
        """The first way, depth first, in which the tasks at `order` fit beside the placed ones."""
        if not order:
            whole = tuple(grant for at in sorted(placed) for grant in placed[at])
            return whole if allowed is None or allowed(whole) else None
        at, *rest = order
        for option in self._options(job, job.tasks[at], hold, effort):
            self.state.take(option)
            try:
                found = self._search(job, rest, {**placed, at: option}, hold, allowed, effort)
            finally:
                self.state.give(option)
            if found is not None:
                return found
        return None

    def _options(
        self, job: GangJob, task: PodGroup, hold: Ints | None, effort: list[int]
    ) -> Iterator[Placement]:
        """Placements of one task: on each kind the policy's first, then without its nodes."""
        shapes = self.shapes(job, task)
        if isinstance(shapes, PlacementRefusal):
            return
        held: list[Ints | None] = [hold] * len(shapes)
        live = list(range(len(shapes)))
        while live:
            for number in list(live):
                if effort[0] <= 0:
                    return
                effort[0] -= 1
                found = self.place_shape(shapes[number], held[number])
                if isinstance(found, PlacementRefusal):
                    live.remove(number)
                    continue
                yield found
                inside = np.ones(len(self.state.nodes), dtype=bool)
                inside[found[0].node] = False
                held[number] = bar_outside(inside, held[number])

    def _place_in_one_leaf(
        self, job: GangJob, hold: Ints | None, allowed: Allowed | None
    ) -> Placement | PlacementRefusal:
        """All tasks of a job under one leaf switch, the one with the fewest free cards first."""
        for task in job.tasks:
            shapes = self.shapes(job, task)
            if isinstance(shapes, PlacementRefusal):
                return shapes
        domains = leaves_of(self.state)
        free = cards.count(self.state.free)
        room_of = np.bincount(domains, weights=free)
        for leaf in np.argsort(room_of, kind="stable"):
            placed = self._place_tasks(job, bar_outside(domains == leaf, hold), allowed)
            if not isinstance(placed, PlacementRefusal):
                return placed
        return NO_ROOM

    def shapes(self, job: GangJob, task: PodGroup) -> list[TaskShape] | PlacementRefusal:
        """The task against each pool that may take it, or why none ever can."""
        queue = job.queue if self.state.reserved else ""
        single = len(job.tasks) == 1  # one leaf is then found task by task, or for all of them
        gang = task.pods > 1 if single else job.pods > 1
        rules = (queue, gang, single, job.sp_block, job.leaf, job.numa, job.superpod)
        seen = self.known.get(id(task))
        if seen is not None and seen[0] is task and seen[1] == rules:
            return seen[2]
        key = (task, *rules)
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = compile_shapes(self.state, job, task)
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[id(task)] = task, rules, found
        return found

    def place_task(
        self, job: GangJob, task: PodGroup, hold: Ints | None
    ) -> Placement | PlacementRefusal:
        """Place one task on the first of its pools that has room."""
        shapes = self.shapes(job, task)
        if isinstance(shapes, PlacementRefusal):
            return shapes
        refused: PlacementRefusal | None = None
        for shape in shapes:
            found = self.place_shape(shape, hold)
            if not isinstance(found, PlacementRefusal):
                return found
            refused = refused or found
        if refused is None:
            raise AssertionError("a task without shapes")
        return refused

    def place_shape(self, shape: TaskShape, hold: Ints | None) -> Placement | PlacementRefusal:
        """Place one task on one pool."""
        job = shape.job
        if job.leaf == "one" and len(job.tasks) == 1 and shape.task.pods > 1:
            return self._shape_in_one_leaf(shape, hold)
        return self._place_shape(shape, hold)

    def _shape_in_one_leaf(
        self, shape: TaskShape, hold: Ints | None
    ) -> Placement | PlacementRefusal:
        """One task under one leaf switch, the tightest first; a node alone is a leaf of its own."""
        domains = leaves_of(self.state)
        room_of = pods_under_leaves(self.state, shape, hold)
        enough = np.nonzero(room_of >= shape.task.pods)[0]
        for leaf in enough[np.argsort(room_of[enough], kind="stable")]:
            placed = self._place_shape(shape, bar_outside(domains == leaf, hold))
            if not isinstance(placed, PlacementRefusal):
                return placed
        return NO_ROOM

    def _place_shape(self, shape: TaskShape, hold: Ints | None) -> Placement | PlacementRefusal:
        state, pool, task = self.state, shape.pool, shape.task
        if task.milli:
            return self._place_shares(shape, hold)
        free = free_of(state, pool, hold)
        if task.pods == 1 and not shape.numa and not shape.job.sp_block:
            cost = self.policy.costs(state, shape, free)
            if task.cpu_milli or task.memory_mib or not task.cards:
                cost = np.where(pods_that_fit(state, shape, free, hold) > 0, cost, FAR)
            best = int(cost.argmin())
            if cost[best] >= IMPOSSIBLE:
                return NO_ROOM
            node = int(pool.nodes[best])
            mask = int(shape.choice.select[free[best]])
            return (Grant(node, mask, 0, task.cpu_milli, task.memory_mib),)
        return self._place_gang(shape, free, hold)

    def _place_gang(
        self, shape: TaskShape, free: Ints, hold: Ints | None
    ) -> Placement | PlacementRefusal:
        task, pool = shape.task, shape.pool
        fits = pods_that_fit(self.state, shape, free, hold)
        if shape.job.sp_block:
            chosen = superpods.choose(shape.job, task, pool, fits)
            if isinstance(chosen, PlacementRefusal):
                return chosen
            return self._grants(shape, free, [(position, 1) for position in chosen])
        if int(fits.sum()) < task.pods:
            return NO_ROOM
        parts = self._parts(shape, fits, free)
        if self.policy.sequential:
            return self._place_one_by_one(shape, free, fits, parts)
        costs = self.policy.costs(self.state, shape, free)
        taken = [each for inside, pods in parts for each in fill(inside, fits, costs, pods)]
        return self._grants(shape, free, taken)

    def _parts(self, shape: TaskShape, fits: Ints, free: Ints) -> list[Part]:
        """The tightest domain that holds the gang; only `leaf: fill` binds every policy."""
        pool, task, leaf = shape.pool, shape.task, shape.job.leaf
        everywhere = np.nonzero(fits)[0]
        if leaf != "fill" and (not self.policy.local or leaf == "any"):
            return [(everywhere, task.pods)]
        if task.cards * task.pods <= pool.node_cards:
            whole = np.nonzero(fits >= task.pods)[0]
            if len(whole):
                costs = self.policy.costs(self.state, shape, free)[whole]
                return [(whole[costs.argmin() : costs.argmin() + 1], task.pods)]
        tiers = (
            (pool.superpod, pool.superpods),
            (pool.leaf, pool.leaves),
            (pool.spine, pool.spines),
        )
        for tier, (domain, domains) in enumerate(tiers):
            if domains:
                room_of = np.bincount(domain + 1, weights=fits, minlength=domains + 1)[1:]
                enough = np.nonzero(room_of >= task.pods)[0]
                if len(enough):
                    tightest = enough[room_of[enough].argmin()]
                    return [(np.nonzero((domain == tightest) & (fits > 0))[0], task.pods)]
            if tier == 1 and leaf == "fill" and domains:
                return fill_leaves(pool, fits, task.pods)
        return [(everywhere, task.pods)]

    def _place_one_by_one(
        self, shape: TaskShape, free: Ints, fits: Ints, parts: list[Part]
    ) -> Placement:
        """For policies whose cost changes with every pod: take each pod before the next."""
        grants: list[Grant] = []
        task, state = shape.task, self.state
        left = fits.copy()
        for inside, pods in parts:
            for _ in range(pods):
                now = state.free[shape.pool.index] & free
                cost = self.policy.costs(state, shape, now)[inside]
                # A node whose cost knows nothing of NUMA nodes, CPU or memory may still be full.
                full = np.minimum(pods_that_fit(state, shape, now), left)[inside] <= 0
                best = int(inside[np.where(full, FAR, cost).argmin()])
                mask = pick(shape, best, int(now[best]))
                node = int(shape.pool.nodes[best])
                grants.append(Grant(node, mask, 0, task.cpu_milli, task.memory_mib))
                state.take(grants[-1:])
                left[best] -= 1
        state.give(grants)
        return tuple(grants)

    def _place_shares(self, shape: TaskShape, hold: Ints | None) -> Placement | PlacementRefusal:
        """Pods that use a share of one card each."""
        grants: list[Grant] = []
        state, task = self.state, shape.task
        for _ in range(task.pods):
            node, card = self.policy.share(state, shape, hold)
            if node < 0:
                break
            grants.append(Grant(node, 1 << card, task.milli, task.cpu_milli, task.memory_mib))
            if task.pods > 1:
                state.take(grants[-1:])
        if task.pods > 1:
            state.give(grants)
        return tuple(grants) if len(grants) == task.pods else NO_ROOM

    def _grants(self, shape: TaskShape, free: Ints, taken: list[tuple[int, int]]) -> Placement:
        """Cards for `pods` pods on each chosen position, ranks following the network."""
        pool, task = shape.pool, shape.task
        if not shape.job.sp_block:
            taken.sort(key=lambda item: (pool.superpod[item[0]], pool.leaf[item[0]], item[0]))
        grants: list[Grant] = []
        for position, pods in taken:
            mask, node = int(free[position]), int(pool.nodes[position])
            for _ in range(pods):
                chosen = pick(shape, position, mask)
                mask &= ~chosen
                grants.append(Grant(node, chosen, 0, task.cpu_milli, task.memory_mib))
        return tuple(grants)


def compile_shapes(
    state: ClusterState, job: GangJob, task: PodGroup
) -> list[TaskShape] | PlacementRefusal:
    """The task against each pool; a request that no kind allows is refused with the legal sizes."""
    needs_card = task.cards > 0 or task.milli > 0
    pools = state.pools(task.kinds, task.models, needs_card, job.queue)
    if not pools:
        names = [*task.kinds, *task.models]
        wanted = "accelerators" if not names else "/".join(names)
        have = ", ".join(sorted({node.kind.name for node in state.nodes}))
        return PlacementRefusal("kind", {"wanted": wanted, "have": have})
    shapes: list[TaskShape] = []
    refused: PlacementRefusal | None = None
    gang = job.pods > 1
    for pool in pools:
        problem = illegal(state, pool, task, gang, job)
        if problem is not None:
            refused = refused or problem
            continue
        k = task.cards or (1 if task.milli else 0)
        tables = numa_tables(state, pool, job, task) if job.numa != "any" else ()
        if job.numa == "one" and task.cards and not tables:
            facts = {"cards": task.cards, "kind": pool.name}
            refused = refused or PlacementRefusal("numa_never", facts)
            continue
        shape = TaskShape(pool, cards.choice(pool.kind, k, gang), task, gang, job, tables)
        problem = never_under_one_leaf(state, shape)
        if problem is not None:
            refused = refused or problem
            continue
        shapes.append(shape)
    if shapes:
        return shapes
    if refused is None:
        raise AssertionError("no pool and no reason")
    return refused


def never_under_one_leaf(state: ClusterState, shape: TaskShape) -> PlacementRefusal | None:
    """Why no leaf switch holds all pods, were it empty and all of its cards well."""
    task = shape.task
    if shape.job.leaf != "one" or task.pods < 2 or not task.cards:
        return None
    pool = shape.pool
    fits = shape.choice.fits[state.granted[pool.index]]
    most = int(np.bincount(leaves_of(state)[pool.index], weights=fits).max(initial=0))
    least = shape.job.least_pods(task)
    if most >= least:
        return None
    return PlacementRefusal("leaf_never", {"pods": least, "cards": task.cards, "fits": most})


def illegal(
    state: ClusterState, pool: Pool, task: PodGroup, gang: bool, job: GangJob
) -> PlacementRefusal | None:
    """Why this pool can never run the task: size, sharing, or more than there is."""
    kind = pool.kind
    small = too_small(pool, task, job)
    if small is not None:
        return small
    if task.milli:
        if not kind.share:
            return PlacementRefusal("share", {"kind": kind.name})
        have = int(cards.count(state.granted[pool.index]).sum()) * (WHOLE // task.milli)
        least = job.least_pods(task)
        facts = {"pods": least, "share": task.milli / WHOLE, "kind": kind.name, "fits": have}
        return PlacementRefusal("shares_total", facts) if have < least else None
    if not task.cards:
        return None
    legal = [k for k in legal_sizes(kind, pool) if not (gang and k in kind.alone)]
    if task.cards not in legal:
        nearest = min((k for k in legal if k >= task.cards), default=max(legal))
        note = " for a job of several pods" if gang and task.cards in kind.alone else ""
        listed = ", ".join(str(k) for k in legal)
        facts = {"cards": task.cards, "kind": kind.name, "note": note, "legal": listed}
        return PlacementRefusal("size", {**facts, "nearest": nearest})
    if job.sp_block:
        problem = superpods.problem(job, task, kind, pool)
        if problem is not None:
            return problem
    need, have = task.cards * task.pods, int(cards.count(state.present[pool.index]).sum())
    if need > have:
        sick = int(cards.count(state.granted[pool.index]).sum()) - have
        facts = {"need": need, "kind": kind.name, "have": have}
        facts |= {"sick": f" that are well and {sick} sick ones" if sick > 0 else ""}
        facts |= {"healed": ", or sick cards healed" if have < need <= have + sick else ""}
        return PlacementRefusal("size_total", facts)
    return None


def too_small(pool: Pool, task: PodGroup, job: GangJob) -> PlacementRefusal | None:
    """Why the pool's empty nodes have too little CPU or memory for the pods."""
    if not (task.cpu_milli or task.memory_mib):
        return None
    pods = 0
    for cpu, memory, nodes in pool.sizes:
        by_cpu = cpu // task.cpu_milli if task.cpu_milli else task.pods
        by_memory = memory // task.memory_mib if task.memory_mib else task.pods
        pods += nodes * min(by_cpu, by_memory)
    least = job.least_pods(task)
    if pods >= least:
        return None
    facts = {"beside": task.beside, "kind": pool.name, "pods": least, "fits": pods}
    return PlacementRefusal("beside_never", facts)


def legal_sizes(kind: ServerKind, pool: Pool) -> Iterable[int]:
    """Legal requests; a pool of mixed plain servers allows up to its largest node."""
    return range(1, pool.node_cards + 1) if kind.rule == "count" else kind.legal


def numa_tables(
    state: ClusterState, pool: Pool, job: GangJob, task: PodGroup
) -> tuple[tuple[Ints, CardChoice], ...]:
    """Tables that keep a pod inside one NUMA node, for the positions where that can be.

    On plain servers the cards are chosen so. Where the kind has a rule of its own, its rings or
    modules decide, and they keep a pod inside a NUMA node only if each of them lies in one.
    """
    if not task.cards or not state.numa_known:
        return ()
    layouts: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for position, node in enumerate(pool.nodes):
        layouts.setdefault(state.nodes[int(node)].numa, []).append(position)
    tables = []
    gang = job.pods > 1
    width = 8 if pool.node_cards <= 8 else cards.WIDTH
    for groups, positions in layouts.items():
        if task.cards > max(map(len, groups), default=0):
            continue
        at = np.array(positions, dtype=np.int64)
        kind = pool.kind
        if kind.rule == "count":
            sizes = tuple(range(task.cards, max(map(len, groups)) + 1))
            prefer = {task.cards: sizes}
            kind = replace(kind, cards=width, rule="rings", groups=groups, prefer=prefer)
            tables.append((at, cards.choice(kind, task.cards, False)))
        elif task.cards <= len(kind.groups[0]) and all(
            any(set(ring) <= set(group) for group in groups) for ring in kind.groups
        ):
            tables.append((at, cards.choice(kind, task.cards, gang)))
    return tuple(tables)


def leaves_of(state: ClusterState) -> Ints:
    """The leaf of every node, numbered from 0; a node without one is a leaf of its own."""
    leaf = state.leaf
    alone = np.cumsum(leaf < 0) + int(leaf.max(initial=-1))
    return np.where(leaf < 0, alone, leaf)


def pods_under_leaves(state: ClusterState, shape: TaskShape, hold: Ints | None) -> Ints:
    """How many pods of a task there is room for under each leaf."""
    pool, domains = shape.pool, leaves_of(state)
    if shape.task.milli:
        fits = shares_that_fit(state, shape, hold)
    else:
        fits = pods_that_fit(state, shape, free_of(state, pool, hold), hold)
    most = int(domains.max()) + 1
    return np.bincount(domains[pool.index], weights=fits, minlength=most).astype(np.int64)


def bar_outside(inside: Flags, hold: Ints | None) -> Ints:
    """The held cards, and every node outside a domain as a whole."""
    return np.where(inside, 0 if hold is None else hold, BARRED)


def fill(inside: Ints, fits: Ints, costs: Costs, pods: int) -> list[tuple[int, int]]:
    """Positions and pods per position: few nodes, the last one no larger than it must be."""
    order = inside[np.lexsort((costs[inside], -fits[inside]))]
    taken: list[tuple[int, int]] = []
    left = pods
    for position in order:
        have = int(fits[position])
        if have >= left:
            enough = inside[fits[inside] >= left]
            used = [p for p, _ in taken]
            enough = enough[~np.isin(enough, used)] if used else enough
            tight = enough[np.lexsort((costs[enough], fits[enough]))[0]]
            taken.append((int(tight), left))
            return taken
        taken.append((int(position), have))
        left -= have
    return taken


def fill_leaves(pool: Pool, fits: Ints, pods: int) -> list[Part]:
    """For a gang larger than a leaf: leaves it fills wholly first, then one rest at most."""
    room_of = np.bincount(pool.leaf + 1, weights=fits, minlength=pool.leaves + 1)[1:]
    chosen: list[int] = []
    left = pods
    for leaf in np.argsort(-room_of, kind="stable"):
        if room_of[leaf] <= left:
            chosen.append(int(leaf))
            left -= int(room_of[leaf])
    whole = np.nonzero(np.isin(pool.leaf, chosen) & (fits > 0))[0]
    if not left:
        return [(whole, pods)]
    smallest_first = np.argsort(room_of, kind="stable")
    rest = [leaf for leaf in smallest_first if leaf not in chosen and room_of[leaf] >= left]
    if not rest:
        return [(np.nonzero(fits)[0], pods)]
    return [(whole, pods - left), (np.nonzero((pool.leaf == rest[0]) & (fits > 0))[0], left)]

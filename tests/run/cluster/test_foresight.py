"""What a waiting job is told, held against small worlds that are looked through completely.

`brute` knows nothing of the placer: it tries every way to lay a job's pods on free cards. A reason
must be true of the world, its figures those of the world, and what is said to be enough must start
the job in a scheduler that was never copied. JOYMIGRATE_WORLDS says how many (10,000).
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from typing import Any

import pytest

from joymigrate.run.cluster import inventory, jobs
from joymigrate.run.cluster.entries import NEVER
from joymigrate.run.cluster.events import (
    CardsFailed,
    ClusterTick,
    Ended,
    Event,
    NodeBack,
    NodeLost,
    Submitted,
)
from joymigrate.run.cluster.explain import explain
from joymigrate.run.cluster.foresight import attempt, clone, look_ahead
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.scheduler import Scheduler
from tests.run.cluster.cases import job, nodes, scheduler

WORLDS = int(os.environ.get("JOYMIGRATE_WORLDS", "10000"))
KINDS = ("gpu-2", "gpu-4", "ascend-910-8", "ascend-a3-16")
RING = {"ascend-910-8": 4, "ascend-a3-16": 0, "gpu-2": 0, "gpu-4": 0}


class World:
    """A random small cluster with its history, and a way to live through it again."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = chance.sample(KINDS[:3], chance.choice([1, 1, 2]))
        items = []
        for number in range(chance.randint(1, 4)):
            kind = chance.choice(kinds)
            width = int(kind.rsplit("-", 1)[1])
            items.append(
                {
                    "name": f"n{number}", "kind": kind,
                    "used": chance.sample(range(width), chance.choice([0, 0, 1])),
                    "leaf": chance.choice(["l0", "l1"]),
                    "cpu": chance.choice([None, None, 8]),
                }
            )  # fmt: skip
        self.cluster = inventory.from_data({"nodes": items})
        self.queues = jobs.from_data({"jobs": [], "queues": drawn_queues(chance, self.cluster)})
        present = sorted({item["kind"] for item in items})
        self.events: list[Event] = []
        self.now = 0.0
        for number in range(chance.randint(2, 14)):
            self.now += chance.choice([0.0, 30.0, 600.0])
            self.events.append(self._event(chance, number, present))
        self.scheduler = self.replay()

    def _event(self, chance: random.Random, number: int, kinds: list[str]) -> Event:
        node = chance.choice(self.cluster.nodes).name
        what = chance.random()
        if what < 0.78:
            return Submitted(drawn_job(chance, f"j{number}", kinds), self.now)
        if what < 0.9:
            return Ended(f"j{chance.randrange(number + 1)}", self.now)
        if what < 0.95:
            return CardsFailed(node, (0,), self.now)
        return chance.choice([NodeLost(node, self.now), NodeBack(node, (), self.now)])

    def replay(self) -> Scheduler:
        """The scheduler after the whole history, made anew."""
        scheduler = Scheduler(self.cluster, self.queues.queues)
        for event in self.events:
            scheduler.on(event)
        return scheduler


def drawn_queues(chance: random.Random, cluster: inventory.Inventory) -> list[dict[str, Any]]:
    half = cluster.cards // 2
    return [
        {
            "name": name,
            "min": chance.choice([0, 0, half // 2]),
            "max": chance.choice([cluster.cards, cluster.cards, half + 1]),
            "eviction": chance.choice(["never", "lower-priority", "over-deserved"]),
            "strategy": chance.choice(["traverse", "traverse", "fifo"]),
        }
        for name in ("a", "b")
    ]


def drawn_job(chance: random.Random, name: str, kinds: list[str]) -> GangJob:
    other = random.Random(
        f"{chance.getstate()[1][:5]} {name}"
    )  # leaves the other draws as they were
    item: dict[str, Any] = {
        "name": name,
        "kind": chance.choice(kinds),
        "queue": chance.choice("ab"),
        "pods": chance.choice([1, 1, 1, 2, 3]),
        "cards_per_pod": chance.choice([1, 1, 2, 2, 4, 8]),
        "cpu_per_pod": chance.choice([0, 0, 0, 4]),
        "minutes": chance.choice([None, 10, 10, 60, 300]),
        "priority": chance.choice([0, 0, 0, 1]),
        "leaf": chance.choice(["prefer", "prefer", "one"]),
    }
    if other.random() < 0.15 and name != "j0":
        condition = other.choice(["afterok", "afterany", "after", "afternotok"])
        item["after"] = f"{condition}:j{other.randrange(int(name[1:]))}"
    return jobs.from_data({"jobs": [item]}).jobs[0]


def fits(scheduler: Scheduler, job: GangJob, masks: list[int]) -> int:
    """How many pods of the job the free cards `masks` hold at once, by trying every way."""
    task = job.tasks[0]
    nodes = scheduler.state.nodes
    leaves = sorted({node.leaf for node in nodes}) if job.leaf == "one" and task.pods > 1 else [""]
    best = 0
    for leaf in leaves:
        total = 0
        for number, node in enumerate(nodes):
            if node.kind.name in task.kinds and leaf in ("", node.leaf):
                room = most_pods(node.kind.name, task.cards, masks[number])
                if task.cpu_milli:
                    room = min(room, int(scheduler.state.cpu[number]) // task.cpu_milli)
                total += room
        best = max(best, total)
    if job.leaf == "one" and task.pods > 1:  # one node is a leaf of its own
        alone = [
            most_pods(node.kind.name, task.cards, masks[number])
            for number, node in enumerate(nodes)
            if node.kind.name in task.kinds and not task.cpu_milli
        ]
        best = max([best, *alone])
    return best


def most_pods(kind: str, size: int, mask: int) -> int:
    """Disjoint sets of `size` free cards, none of which crosses a ring that it fits into."""
    ring = RING[kind]
    free = [card for card in range(16) if mask >> card & 1]
    if ring and size <= ring:
        sides = [sum(card // ring == side for card in free) for side in (0, 1)]
        return sum(side // size for side in sides)
    return len(free) // size


def free_without(scheduler: Scheduler, names: set[str]) -> list[int]:
    """Free cards per node, but for those held for these jobs."""
    masks = [int(mask) for mask in scheduler.state.free]
    for hold in scheduler.admission.holds:
        if hold.entry.job.name in names:
            masks = [mask & ~int(kept) for mask, kept in zip(masks, hold.mask, strict=True)]
    return masks


def judge_reason(scheduler: Scheduler, job: GangJob, data: dict[str, Any]) -> None:
    """Whether a reason and its figures are true of the world."""
    code, task = data["code"], job.tasks[0]
    refusal = scheduler.why(job.name)
    assert refusal is not None
    facts = refusal.facts
    free = [int(mask) for mask in scheduler.state.free]
    on_kind = [
        mask for mask, node in zip(free, scheduler.state.nodes, strict=True)
        if node.kind.name in task.kinds
    ]  # fmt: skip
    idle = sum(mask.bit_count() for mask in on_kind)
    assert sum(data.get("idle", {}).values()) == (idle if "idle" in data else 0)
    if code == "held":
        heads = facts["head"].split(" and ")
        assert set(heads) <= scheduler.waiting.keys()
        assert fits(scheduler, job, free) >= job.pods
        everyone = {hold.entry.job.name for hold in scheduler.admission.holds}
        assert fits(scheduler, job, free_without(scheduler, everyone)) < job.pods
        assert {one["for"] for one in data["held"]} >= set(heads)
    elif code == "max":
        used = sum(
            run.entry.job.cards for run in scheduler.running.values()
            if run.entry.job.queue == job.queue
        )  # fmt: skip
        limit = scheduler.quotas.account(job.queue).queue.max["cards"]
        assert (float(facts["used"]), float(facts["limit"])) == (used, limit)
        assert used + job.cards > limit
        assert float(facts["over"]) == used + job.cards - limit
    elif code == "min":
        assert facts["free"] == idle or len({n.kind.name for n in scheduler.state.nodes}) > 1
        assert job.cards > facts["free"] - facts["kept"]
    elif code == "priority":
        head = scheduler.waiting[facts["head"]]
        mine = scheduler.waiting[job.name]
        assert head.job.queue == job.queue
        assert (-head.job.priority, head.number) < (-job.priority, mine.number)
    elif code in ("cards", "shape", "leaf", "cpu", "none"):
        respected = {one["for"] for one in data["held"]}
        kept = free_without(scheduler, respected)
        assert fits(scheduler, job, kept) < job.pods
        if code == "cards" and not respected:
            assert (facts["need"], facts["free"]) == (job.cards, idle)
            assert facts["missing"] == job.cards - idle > 0
        if code == "shape" and not respected:
            assert facts["free"] == idle >= job.cards
            assert facts["fits"] == sum(
                most_pods(node.kind.name, task.cards, mask)
                for mask, node in zip(free, scheduler.state.nodes, strict=True)
                if node.kind.name in task.kinds
            )
            if job.leaf != "one":
                both = fits(scheduler, job, free)
                said = f", {both} of them beside {task.cpu_milli / 1000:g} CPU cores"
                assert facts["also"] == (said if both < facts["fits"] else "")
        if code == "leaf" and not respected:
            assert facts["fits"] == fits(scheduler, job, free)
    elif code == "size_total":
        have = sum(
            int(present).bit_count()
            for present, node in zip(scheduler.state.present, scheduler.state.nodes, strict=True)
            if node.kind.name in task.kinds
        )
        assert facts["have"] == have < job.cards
    elif code == "after":
        condition, other = job.after[0].split(":")
        assert (condition, other) == (facts["condition"], facts["head"])
        assert scheduler.entry(other) is not None or other in scheduler.refused
        assert condition != "after" or other not in scheduler.running
    elif code == "next":
        twin = clone(scheduler)
        twin.on(ClusterTick(0.0))
        assert job.name in twin.running
    else:
        assert refusal.permanent, code


def judge_enough(world: World, name: str, data: dict[str, Any]) -> None:
    """Whether what is said to be enough starts the job in a scheduler made anew."""
    said = data["enough"]
    fresh = world.replay()
    started = set(fresh.running)
    ends = [(one["in_s"], one["job"]) for one in said["ends"]]
    last = max([at for at, _ in ends if at is not None], default=0.0)
    # As it is said: together what ends at one time, last what nobody knows the time of.
    fresh.on_all(
        [NodeBack(node, (), world.now) for node in said["heals"]] or [ClusterTick(world.now)]
    )
    for at, group in itertools.groupby(ends, key=lambda step: step[0]):
        if name in fresh.running:
            break
        when = world.now + (last if at is None else at)
        left = [job for _, job in group]
        while left:  # those that have not started yet end after those that have
            now = [job for job in left if job in fresh.running]
            assert now, (name, left)
            fresh.on_all([Ended(job, when) for job in now])
            left = [job for job in left if job not in now]
        started |= fresh.running.keys()
    assert name in started | fresh.running.keys()
    if data["start"]["in_s"] is not None and ends:
        assert data["start"]["in_s"] >= last - 1e-6


def check(seed: int) -> Counter[str]:
    """All waiting jobs of one world; returns what they were told."""
    world = World(seed)
    scheduler = world.scheduler
    told: Counter[str] = Counter()
    before = {name: run.placement for name, run in scheduler.running.items()}
    outlook = look_ahead(scheduler, world.now)
    for name in [*scheduler.waiting, *scheduler.gate.entries, *scheduler.refused]:
        data = explain(scheduler, name, world.now, outlook)
        assert data is not None
        entry = scheduler.entry(name)
        told[data["code"]] += 1
        if entry is None or data["code"] == "after_never":
            assert data["permanent"]
            continue
        judge_reason(scheduler, entry.job, data)
        if data.get("enough"):
            told["heals" if data["enough"]["heals"] else "enough"] += 1
            judge_enough(world, name, data)
        elif not data["permanent"]:
            told["nothing is enough"] += 1
            judge_nothing(world, name)
    assert {name: run.placement for name, run in scheduler.running.items()} == before
    return told


def judge_nothing(world: World, name: str) -> None:
    """Where nothing is said to be enough, the end of all running jobs is not enough either."""
    fresh = world.replay()
    fresh.on_all([Ended(one, world.now) for one in list(fresh.running)])
    assert name not in fresh.running


@pytest.mark.dear
@pytest.mark.parametrize("part", range(5))
def test_reasons_are_true_and_what_is_enough_is_enough(part: int) -> None:
    told = sum((check(seed) for seed in range(part * 60, part * 60 + 60)), Counter())
    assert told["enough"] > 10


@pytest.mark.slow
def test_ten_thousand_worlds() -> None:
    told = sum((check(1_000_000 + seed) for seed in range(WORLDS)), Counter())
    print(f"{WORLDS} worlds: {dict(told.most_common())}")


def test_cards_are_not_held_for_a_job_that_its_queue_keeps_back() -> None:
    world = World(1_003_854)  # a job over its queue's share held idle cards for ever
    scheduler = world.scheduler
    late = world.now + scheduler.settings.hold_blind_after
    scheduler.on(ClusterTick(late))
    assert [hold.entry.job.name for hold in scheduler.admission.holds] == ["j0"]
    scheduler.on(Ended("j3", late))
    assert "j6" in scheduler.running
    # Now the other queue has what it is sure of, and j0 may have its cards when j6 ends.
    held = [(hold.entry.job.name, hold.until) for hold in scheduler.admission.holds]
    assert held == [("j0", scheduler.running["j6"].ends)]


def test_ends_that_would_come_after_the_start_are_not_said() -> None:
    """Of one time; in a world of 294 nodes a job that still waited was said to end before."""
    one = scheduler(nodes("[{name: n, kind: gpu-8}]"))
    for name in ("a", "b", "c"):
        one.on(Submitted(job(name, cards_per_pod=8, minutes=10), 0.0))
    assert attempt(one, "b", [("a", 600.0), ("c", 600.0)], 0.0) == ([("a", 600.0)], [])


def test_a_copy_leaves_the_scheduler_alone_and_lives_on_by_itself() -> None:
    world = World(3)
    twin = clone(world.scheduler)
    before = [array.copy() for array in world.scheduler.state.snapshot()]
    for run in list(twin.running.values()):
        twin.on(Ended(run.entry.job.name, NEVER if run.ends == NEVER else run.ends))
    assert not twin.running or len(twin.running) != len(world.scheduler.running)
    after = world.scheduler.state.snapshot()
    assert all((one == other).all() for one, other in zip(before, after, strict=True))

"""Random lives of mixed clusters, whose decisions a second, independent ledger keeps book of.

Worlds have NUMA nodes, leaves, super-pods, shares of cards, jobs of several tasks, elastic jobs,
priorities, quotas (with MIN, MAX and parents; MAX is raised on the way),
nodes and cards that fail and come back. The ledger here knows the actions alone. After each event
it looks for: a card with more than one card's worth on it, cards that are broken, lost, somebody
else's, or of a kind, NUMA node or leaf that the job did not ask for, gangs that are not whole, a
MAX that a start breaks, an eviction for nobody, a job that is nowhere or twice.

    python -m benchmarks.cluster_events --events 200000
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from typing import Any

from joymigrate.run.cluster import cards, inventory, jobs, policies
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import (
    Action,
    Cancelled,
    CardsFailed,
    ClusterTick,
    Ended,
    Event,
    Evict,
    JobStop,
    NodeBack,
    NodeLost,
    Start,
    Submitted,
)
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.scheduler import Scheduler

KINDS = ("gpu-8", "gpu-2", "ascend-910-8", "ascend-910b-8", "ascend-910b-16", "ascend-a3-16")
SIZES = (0.25, 0.5, 0.5, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4, 6, 8, 10, 16)
EACH = 120  # events of one world


class Witness:
    """What is true, from the inventory and the actions alone."""

    def __init__(self, cluster: inventory.Inventory, queues: list[dict[str, Any]]) -> None:
        self.nodes = cluster.nodes
        self.broken = {
            (node.name, card) for node in cluster.nodes for card in (*node.unhealthy, *node.used)
        }
        self.lost: set[str] = set()
        self.queues = {queue["name"]: queue for queue in queues}
        self.held: dict[str, tuple[GangJob, list[tuple[str, int, int]]]] = {}
        self.known: set[str] = set()
        self.faults: list[str] = []

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def follow(self, actions: list[Action], at: float) -> None:
        started = {action.job.name for action in actions if isinstance(action, Start)}
        for action in actions:
            name = action.job.name
            if isinstance(action, Start):
                self.start(action, at)
            elif name not in self.held:
                self.fault(f"{name} is stopped and does not run")
            else:
                del self.held[name]
            if isinstance(action, Evict) and action.by and action.by not in started:
                self.fault(f"{name} is stopped for {action.by}, which does not start")
        self.look()

    def start(self, action: Start, at: float) -> None:
        job, name = action.job, action.job.name
        tasks = [task for task in job.tasks for _ in range(task.pods)]
        if name in self.held or len(tasks) != len(action.placement):
            self.fault(f"{name} runs twice, or not whole")
        rows = []
        for task, grant in zip(tasks, action.placement, strict=False):
            node = self.nodes[grant.node]
            ids = cards.ids(grant.mask)
            if len(ids) != (task.cards or bool(task.milli)):
                self.fault(f"{name} has {len(ids)} cards for a pod")
            if task.kinds and node.kind.name not in task.kinds:
                self.fault(f"{name} runs on {node.kind.name}")
            if node.name in self.lost or any((node.name, card) in self.broken for card in ids):
                self.fault(f"{name} starts on broken cards of {node.name}")
            if job.numa == "one" and task.cards and not any({*ids} <= {*g} for g in node.numa):
                self.fault(f"{name} crosses NUMA nodes")
            rows += [(node.name, card, task.milli or 1000) for card in ids]
        places = {grant.node for grant in action.placement}
        leaves = {self.nodes[number].leaf for number in places}
        if job.leaf == "one" and len(places) > 1 and (len(leaves) > 1 or "" in leaves):
            self.fault(f"{name} crosses leaves")
        self.held[name] = (job, rows)
        for queue in self.chain(job.queue):
            most = self.queues.get(queue, {}).get("max")
            used = sum(j.cards for j, _ in self.held.values() if queue in self.chain(j.queue))
            if most is not None and job.cards and used > most + 1e-6:
                self.fault(f"{name} breaks MAX {most} of {queue}: {used}")

    def chain(self, name: str) -> list[str]:
        found = [name]
        while self.queues.get(found[-1], {}).get("parent"):
            found.append(self.queues[found[-1]]["parent"])
        return found

    def look(self) -> None:
        on: dict[tuple[str, int], int] = {}
        for _, rows in self.held.values():
            for node, card, milli in rows:
                on[node, card] = on.get((node, card), 0) + milli
        for key, milli in on.items():
            if milli > 1000:
                self.fault(f"card {key} is granted {milli} thousandths")

    def compare(self, run: Scheduler) -> None:
        if {*run.running} != {*self.held}:
            self.fault(f"running jobs differ: {sorted({*run.running} ^ {*self.held})}")
        groups = [run.running, run.waiting, run.refused, run.gate.entries]
        for name in self.known:
            if sum(name in group for group in groups) != 1:
                self.fault(f"{name} is in {sum(name in group for group in groups)} places")


def world(chance: random.Random) -> inventory.Inventory:
    rows = []
    for number in range(chance.randint(1, 7)):
        kind = chance.choice(KINDS)
        width = int(kind.rsplit("-", 1)[1])
        half = width // 2
        rows.append(
            {
                "name": f"n{number}", "kind": kind,
                "used": chance.sample(range(width), chance.choice([0, 0, 1, 2])),
                "unhealthy": chance.sample(range(width), chance.choice([0, 0, 1])),
                "leaf": chance.choice(["", "l0", "l1"]), "superpod": chance.choice(["", "s0"]),
                "cpu": chance.choice([None, 16]),
                "numa": chance.choice([None, [[*range(half)], [*range(half, width)]]]),
            }
        )  # fmt: skip
    return inventory.from_data({"nodes": rows})


def limits(chance: random.Random, size: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"name": "p", "max": max(1, size - chance.randint(0, 4))}]
    for name in ("a", "b", "c"):
        low = chance.randint(0, size // 6)
        high = chance.choice([None, low + 4, size])
        row: dict[str, Any] = {"name": name, "min": low, "parent": "p"}
        row["eviction"] = chance.choice(["never", "lower-priority", "over-deserved"])
        row["strategy"] = chance.choice(["traverse", "traverse", "fifo"])
        row |= {"max": high} if high is not None else {}
        rows.append(row)
    return rows


def request(chance: random.Random, name: str) -> GangJob:
    item: dict[str, Any] = {
        "name": name, "queue": chance.choice("abc"), "priority": chance.choice([0, 0, 1, 2]),
        "kind": chance.sample(KINDS, chance.choice([0, 0, 0, 1, 2])),
        "minutes": chance.choice([None, 1, 10, 60]),
        "leaf": chance.choice(["prefer", "prefer", "one", "fill", "any"]),
        "numa": chance.choice(["prefer", "prefer", "one", "any"]),
    }  # fmt: skip

    def task() -> dict[str, Any]:
        return {"pods": chance.choice([1, 1, 1, 2, 3, 4]), "cards_per_pod": chance.choice(SIZES),
                "cpu_per_pod": chance.choice([0, 0, 4])}  # fmt: skip

    if chance.random() < 0.8:
        item |= task()
        item["min_pods"] = chance.randint(0, item["pods"])
        if 0 < item["min_pods"] < item["pods"]:
            item["resize_after_minutes"] = chance.choice([0, 5])
    else:
        item["tasks"] = [task() for _ in range(chance.randint(2, 3))]
    if chance.random() < 0.1:
        item["after"] = [chance.choice(["afterany:", "afterok:"]) + f"j{chance.randint(0, 60)}"]
    user = chance.choice(["u", "v"])
    return dataclasses.replace(jobs.from_data({"jobs": [item]}).jobs[0], user=user)


def live(seed: int) -> tuple[list[str], list[str], dict[str, int]]:
    """One world: its faults, its log of actions, and what was counted."""
    chance = random.Random(seed)
    cluster = world(chance)
    rows = limits(chance, cluster.cards)
    witness = Witness(cluster, rows)
    queues = [jobs.from_data({"jobs": [], "queues": rows}).queues][0]
    policy = policies.get(chance.choice(policies.names()))
    settings = ClusterSettings(overcommit=True, hold=chance.random() < 0.8)
    run = Scheduler(cluster, queues, policy, None, settings)
    log, at = [], 0.0
    counts = {"starts": 0, "stops": 0, "resizes": 0, "quotas": 0}
    for number in range(EACH):
        at += chance.choice([0.0, 0.0, 60.0, 400.0])
        what, node = chance.random(), chance.choice(cluster.nodes)
        running = sorted(run.running)
        event: Event = ClusterTick(at)
        if what < 0.5:
            event = Submitted(request(chance, f"j{number}"), at)
            witness.known.add(event.job.name)
        elif what < 0.72 and running:
            event = Ended(chance.choice(running), at, chance.random() < 0.8)
            witness.known.discard(event.job)
            del witness.held[event.job]
        elif what < 0.78:
            name = chance.choice(sorted(witness.known) or ["none"])
            event = Cancelled(name, at)
            witness.known.discard(name)
        elif what < 0.82:
            event = NodeLost(node.name, at)
            witness.lost.add(node.name)
        elif what < 0.88:
            event = NodeBack(node.name, tuple(node.unhealthy), at)
            witness.lost.discard(node.name)
            kept = {(node.name, card) for card in (*node.unhealthy, *node.used)}
            witness.broken = {one for one in witness.broken if one[0] != node.name} | kept
        elif what < 0.91:
            event = CardsFailed(node.name, (chance.randrange(node.kind.cards),), at)
            witness.broken |= {(node.name, card) for card in event.cards}
        elif what < 0.97:
            counts["quotas"] += 1
            rows = limits(chance, cluster.cards)
            changed = {row["name"]: row for row in rows}
            for name, account in run.quotas.accounts.items():  # MAX alone is moved while it lives
                for limit in account.max:
                    old = witness.queues.get(name, {}).get("max")
                    new = changed.get(name, {}).get("max")
                    if old is not None and new is not None:
                        bound = max(new, old)
                        witness.queues[name] = {**witness.queues[name], "max": bound}
                        limit.bound = float(bound)
        actions = run.on(event)
        log += [f"{at} {type(one).__name__} {one.job.name}" for one in actions]
        counts["starts"] += sum(isinstance(one, Start) for one in actions)
        counts["stops"] += sum(isinstance(one, Evict | JobStop) for one in actions)
        counts["resizes"] += sum(isinstance(one, Evict) and one.resize for one in actions)
        witness.follow(actions, at)
        witness.compare(run)
        if witness.faults:
            return (
                [f"world {seed}, event {number}: {fault}" for fault in witness.faults],
                log,
                counts,
            )
    return [], log, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0, help="the first world's seed")
    options = parser.parse_args()
    began, total, faults, unlike = time.perf_counter(), {}, [], 0
    worlds = -(-options.events // EACH)
    for seed in range(options.first, options.first + worlds):
        found, log, counts = live(seed)
        faults += found
        for text in found[:1]:
            print(text, flush=True)
        total = {key: total.get(key, 0) + value for key, value in counts.items()}
        if seed % 20 == 0:
            unlike += log != live(seed)[1]
    print(
        json.dumps(
            {
                "events": worlds * EACH, "worlds": worlds, "violations": len(faults),
                "second_lives_unlike": unlike, **total,
                "seconds": round(time.perf_counter() - began, 1),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()

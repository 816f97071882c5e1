"""A scheduler in the state that a ledger describes: after a restart, and after every order that
changes nodes, queues or jobs. There is one way back, so that it is the one that is tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from joymigrate.run.cluster import cards, policies
from joymigrate.run.cluster.controller.ledger import LIVE, JobLedger, JobRecord
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import Action, Past, Submitted
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import PodAllocation
from joymigrate.run.cluster.scheduler import Scheduler


def restore(
    ledger: JobLedger, inventory: Inventory, at: float, settings: ClusterSettings | None = None
) -> tuple[Scheduler, list[Action]]:
    """The scheduler at `at` seconds, and what it decides at once.

    Every running job of the ledger must lie on nodes of the inventory; `find_lost` names others.
    """
    scheduler = Scheduler(
        inventory,
        ledger.queues,
        policies.get(ledger.policy),
        ledger.weights,
        settings or ClusterSettings(overcommit=True),
    )
    scheduler.history = dict(ledger.history)
    restrict(scheduler, ledger)
    remember(scheduler, ledger)
    running = [submission(record, at) for record in ledger.live("running")]
    waiting = [submission(record, at) for record in ledger.live("waiting")]
    return scheduler, scheduler.on_all([*running, *waiting])


def submission(record: JobRecord, at: float) -> Submitted:
    """A job with its past, waiting or running."""
    job = record.job
    if record.state == "running":
        held = tuple(PodAllocation(pod.node, pod.cards) for pod in record.pods)
        began = at if record.started is None else record.started
        job = replace(job, running=held, ran_minutes=(at - began) / 60)
    elif record.ready:
        job = replace(job, after=())
    past = Past(record.number, record.since, record.submitted, record.promised, record.whole)
    return Submitted(job, at, past)


def remember(scheduler: Scheduler, ledger: JobLedger) -> None:
    """Tell what others wait for: how ended jobs ended, and which live ones are held."""
    for record in ledger.records.values():
        scheduler.gate.join(record.job)
        if record.state not in LIVE:
            scheduler.gate.ended(record.job.name, record.state == "done")
    scheduler.gate.elsewhere.update(record.job.name for record in ledger.live("held"))


def find_lost(
    ledger: JobLedger, inventory: Inventory, gone: Collection[str] = ()
) -> dict[str, str]:
    """Running jobs whose nodes or cards are not there (any more), and why; `gone`: node names."""
    there = {node.name: node for node in inventory.nodes if node.name not in gone}
    found = {}
    for record in ledger.live("running"):
        for pod in record.pods:
            node = there.get(pod.node)
            if node is None:
                found[record.job.name] = f"node {pod.node} is lost"
            elif not {*pod.cards} <= {*range(node.kind.cards)}:
                found[record.job.name] = f"node {pod.node} has other cards now"
    return found


def restrict(scheduler: Scheduler, ledger: JobLedger) -> None:
    """Take failed cards, and all of a cordoned node, out of what is granted."""
    state = scheduler.state
    for number, node in enumerate(state.nodes):
        failed = [card for card in ledger.failed.get(node.name, ()) if card < node.kind.cards]
        ready = bool(state.ready[number]) and node.name not in ledger.cordoned
        if failed or not ready:
            kept = int(state.usable[number]) & ~cards.bits(failed)
            state.set_usable(number, kept, ready)

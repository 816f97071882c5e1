"""What an operator may order, as the facts that follow from it; each order is checked first.

An order changes nothing by itself: its facts go into the log, and the scheduler is made from that.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster.controller.ledger import LIVE, JobLedger, JobRecord, LogFact
from joymigrate.run.cluster.controller.restore import restore
from joymigrate.run.cluster.events import Action, Evict, Start
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE
from joymigrate.run.cluster.kinds import MAX_CARDS
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ClusterOrder:
    """One order: by whom, when (seconds since 1970), about which job or node."""

    verb: str
    by: str
    at: float
    job: str = ""
    node: str = ""
    cards: tuple[int, ...] = ()
    priority: int = 0
    why: str = ""
    hold: bool = False

    def fact(self, kind: str, job: str = "", **data: Any) -> LogFact:
        """A fact that follows from it."""
        return LogFact(kind, self.at, job, self.by, data)


def decide(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """The facts of an order; `JoyError` where it cannot be followed."""
    return VERBS[order.verb](order, ledger, inventory)


def cordon(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """Nothing new starts on a node; what runs there runs on."""
    check_node(order.node, ledger, inventory)
    why = order.why or ledger.cordoned.get(order.node, "")  # of the order before it
    return [order.fact("cordoned", node=order.node, why=why)]


def drain(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """Nothing new starts on a node, and its gangs wait again."""
    text = f"node {order.node} is drained" + (f": {order.why}" if order.why else "")
    on_it = [
        record
        for record in ledger.live("running")
        if order.node in {pod.node for pod in record.pods}
    ]
    return [*cordon(order, ledger, inventory), *stop(order, on_it, text)]


def undrain(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """A node takes work again."""
    if order.node not in ledger.cordoned:
        raise JoyError(
            f"node '{order.node}' is neither drained nor cordoned.",
            help=f"those that are: {', '.join(sorted(ledger.cordoned)) or 'none'}",
        )
    return [order.fact("uncordoned", node=order.node)]


def fail_cards(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """Cards are not granted any more, and the gangs on them wait again."""
    check_cards(order, ledger, inventory)
    broken = {(order.node, card) for card in order.cards}
    on_them = [
        record
        for record in ledger.live("running")
        if any((pod.node, card) in broken for pod in record.pods for card in pod.cards)
    ]
    fact = order.fact("cards_failed", node=order.node, cards=list(order.cards), why=order.why)
    return [fact, *stop(order, on_them, f"cards of {order.node} failed")]


def heal_cards(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """Failed cards are granted again."""
    failed = ledger.failed.get(order.node, ())
    well = [card for card in order.cards if card not in failed]
    if well or not failed:
        raise JoyError(
            f"card {', '.join(map(str, well or order.cards))} of '{order.node}' is not failed",
            help=f"failed cards of it: {', '.join(map(str, failed)) or 'none'}",
        )
    return [order.fact("cards_healed", node=order.node, cards=list(order.cards or failed))]


def requeue(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """A running job stops and waits again, in its place; with `hold` until it is released."""
    record = ledger.record(order.job)
    if record.state != "running":
        raise JoyError(
            f"job '{order.job}' is {record.state}", help="only a running job can wait again"
        )
    facts = stop(
        order, [record], f"{order.by} sent it back" + (f": {order.why}" if order.why else "")
    )
    return [*facts, order.fact("held", order.job, why=order.why)] if order.hold else facts


def hold(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """A waiting job does not start until it is released."""
    record = ledger.record(order.job)
    if record.state != "waiting":
        raise JoyError(
            f"job '{order.job}' is {record.state}, only a waiting job can be held",
            help="joymigrate cluster requeue JOB --hold stops a running one"
            if record.state == "running"
            else None,
        )
    return [order.fact("held", order.job, why=order.why)]


def release(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """A held job waits for cards again."""
    record = ledger.record(order.job)
    if record.state != "held":
        raise JoyError(f"job '{order.job}' is {record.state}, not held")
    return [order.fact("released", order.job)]


def set_priority(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> list[LogFact]:
    """Another priority; for a running job it counts for who may stop it."""
    record = ledger.record(order.job)
    if record.state not in LIVE:
        raise JoyError(f"job '{order.job}' is {record.state}")
    return [order.fact("priority", order.job, priority=order.priority)]


VERBS: Mapping[str, Callable[[ClusterOrder, JobLedger, Inventory], list[LogFact]]] = {
    "cordon": cordon,
    "drain": drain,
    "undrain": undrain,
    "fail": fail_cards,
    "heal": heal_cards,
    "requeue": requeue,
    "hold": hold,
    "release": release,
    "priority": set_priority,
}


def stop(order: ClusterOrder, records: Sequence[JobRecord], why: str) -> list[LogFact]:
    """These running jobs wait again."""
    return [order.fact("evicted", record.job.name, why=why) for record in records]


def check_node(name: str, ledger: JobLedger, inventory: Inventory) -> None:
    """Refuse a node that nobody knows; one that is away may be spoken of if it was before."""
    names = {node.name for node in inventory.nodes} | ledger.cordoned.keys() | ledger.failed.keys()
    if name not in names:
        raise JoyError(
            f"no node '{name}'.{did_you_mean(name, names)}", help="joymigrate cluster status"
        )


def check_cards(order: ClusterOrder, ledger: JobLedger, inventory: Inventory) -> None:
    """Refuse cards that the node does not have."""
    check_node(order.node, ledger, inventory)
    there = {*range(MAX_CARDS)}  # of a node that is away nobody knows
    for node in inventory.nodes:
        if node.name == order.node:
            there = {*range(node.kind.cards)} - {*node.absent}
    for card in order.cards:
        if card not in there:
            known = ", ".join(map(str, sorted(there))) or "none"
            raise JoyError(f"node {order.node} has no card {card}", help=f"its cards: {known}")
    if not order.cards:
        raise JoyError("no card is named", help="for example: cards fail n1 3,5")


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """What other limits would do: which keys differ, and who would start or be stopped at once.

    `notes` name queues that use more than their new MAX, and waiting jobs that never start by them.
    """

    changes: tuple[str, ...]
    starts: tuple[str, ...]
    stops: tuple[str, ...]
    notes: tuple[str, ...] = ()


def without_queue(ledger: JobLedger, queues: Sequence[Queue]) -> None:
    """Refuse queues that leave a live job without its own."""
    names = {queue.name for queue in queues} | {DEFAULT_QUEUE}
    for record in ledger.live(*LIVE):
        if record.job.queue not in names:
            raise JoyError(
                f"queue '{record.job.queue}' is missing and job '{record.job.name}' is in it",
                help="keep the queue until its jobs are over",
            )


def compare_quotas(
    ledger: JobLedger,
    inventory: Inventory,
    queues: Sequence[Queue],
    weights: Mapping[str, float],
    at: float,
) -> QuotaChange:
    """The effect of other queues, tried on a copy; `JoyError` where they cannot hold."""
    Scheduler(inventory, queues, None, weights)  # refuses limits that cannot hold
    if queues:
        without_queue(ledger, queues)
    twin = copy.deepcopy(ledger)
    old, before = restore(twin, inventory, at)
    twin.queues, twin.weights = tuple(queues), dict(weights)
    scheduler, after = restore(twin, inventory, at)
    return QuotaChange(
        changes=tuple(differences(ledger, queues, weights)),
        starts=tuple(names_of(after, Start, without=names_of(before, Start))),
        stops=tuple(names_of(after, Evict, without=names_of(before, Evict))),
        notes=(*above_max(scheduler), *never_more(old, scheduler)),
    )


def never_more(old: Scheduler, new: Scheduler) -> list[str]:
    """Waiting jobs that could start by the old limits and never can by the new ones."""
    return [
        f"job {name} can never start then: {refusal.reason}"
        for name, refusal in new.refused.items()
        if name not in old.refused
    ]


def above_max(scheduler: Scheduler) -> list[str]:
    """Queues that use more than their MAX: what runs there runs on, and nothing more starts."""
    return [
        f"queue {name} uses {limit.used:g} of {limit.bound:g} ({limit.what}): nothing of it is "
        "stopped for that, and nothing more starts until it uses less"
        for name, account in scheduler.quotas.accounts.items()
        for limit in account.max
        if limit.used > limit.bound + 1e-6
    ]


def names_of(
    actions: Sequence[Action], kind: type[Start | Evict], without: Sequence[str] = ()
) -> list[str]:
    """Jobs of these actions."""
    names = [action.job.name for action in actions if type(action) is kind]
    return [name for name in names if name not in without]


def differences(
    ledger: JobLedger, queues: Sequence[Queue], weights: Mapping[str, float]
) -> list[str]:
    """One line per key of a queue that is not as it was."""
    old = {queue.name: dataclasses.asdict(queue) for queue in ledger.queues}
    new = {queue.name: dataclasses.asdict(queue) for queue in queues}
    lines = [f"queue {name}: new" for name in new.keys() - old.keys()]
    lines += [f"queue {name}: gone" for name in old.keys() - new.keys()]
    for name in old.keys() & new.keys():
        for key, value in new[name].items():
            if value != old[name][key]:
                lines.append(
                    f"queue {name}: {key} {write_setting(old[name][key])} -> {write_setting(value)}"
                )
    if dict(weights) != dict(ledger.weights):
        lines.append(f"weights: {write_setting(ledger.weights)} -> {write_setting(weights)}")
    return sorted(lines)


def write_setting(value: Any) -> str:
    """A setting in short: `16 cards`, `none`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{amount:g} {what}" for what, amount in value.items()) or "none"
    return " ".join(value) if isinstance(value, tuple) else str(value)

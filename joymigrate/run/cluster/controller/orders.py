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
from joymigrate.run.cluster import calendar
from joymigrate.run.cluster.bookings import Booking, choose
from joymigrate.run.cluster.controller.ledger import LIVE, Fact, Ledger, Record
from joymigrate.run.cluster.controller.restore import restore
from joymigrate.run.cluster.events import Action, Evict, Start
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE, Job, PodAllocation
from joymigrate.run.cluster.kinds import MAX_CARDS
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.reasons import Refusal
from joymigrate.run.cluster.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Window:
    """What is to be reserved: whole `nodes`, or cards of this `shape`; seconds since 1970.

    With `stop` jobs that do not end before it are stopped when it begins. `again` are the
    beginnings of further windows of the same length.
    """

    name: str
    begin: float = 0.0
    end: float = 0.0
    queue: str = ""
    nodes: tuple[str, ...] = ()
    shape: Job | None = None
    stop: bool = False
    again: tuple[float, ...] = ()

    @property
    def windows(self) -> list[tuple[float, float]]:
        """Begin and end of every window."""
        length = self.end - self.begin
        return [(begin, begin + length) for begin in (self.begin, *self.again)]


@dataclass(frozen=True, slots=True)
class Order:
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
    window: Window | None = None

    def fact(self, kind: str, job: str = "", **data: Any) -> Fact:
        """A fact that follows from it."""
        return Fact(kind, self.at, job, self.by, data)


def decide(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """The facts of an order; `JoyError` where it cannot be followed.

    An order about an array is followed for those members that it can be followed for.
    """
    verb = VERBS[order.verb]
    members = ledger.named(order.job) if order.job else []
    if len(members) < 2:
        return verb(order, ledger, inventory)
    facts: list[Fact] = []
    refused: JoyError | None = None
    for record in members:
        try:
            facts += verb(dataclasses.replace(order, job=record.job.name), ledger, inventory)
        except JoyError as error:
            refused = error
    if refused is not None and not facts:
        raise refused
    return facts


def cordon(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """Nothing new starts on a node; what runs there runs on."""
    check_node(order.node, ledger, inventory)
    why = order.why or ledger.cordoned.get(order.node, "")  # of the order before it
    return [order.fact("cordoned", node=order.node, why=why)]


def drain(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """Nothing new starts on a node, and its gangs wait again."""
    text = f"node {order.node} is drained" + (f": {order.why}" if order.why else "")
    on_it = [
        record
        for record in ledger.live("running")
        if order.node in {pod.node for pod in record.pods}
    ]
    return [*cordon(order, ledger, inventory), *stop(order, on_it, text)]


def undrain(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """A node takes work again."""
    if order.node not in ledger.cordoned:
        raise JoyError(
            f"node '{order.node}' is neither drained nor cordoned.",
            help=f"those that are: {', '.join(sorted(ledger.cordoned)) or 'none'}",
        )
    return [order.fact("uncordoned", node=order.node)]


def fail_cards(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
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


def heal_cards(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """Failed cards are granted again."""
    failed = ledger.failed.get(order.node, ())
    well = [card for card in order.cards if card not in failed]
    if well or not failed:
        raise JoyError(
            f"card {', '.join(map(str, well or order.cards))} of '{order.node}' is not failed",
            help=f"failed cards of it: {', '.join(map(str, failed)) or 'none'}",
        )
    return [order.fact("cards_healed", node=order.node, cards=list(order.cards or failed))]


def requeue(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """A running job stops and waits again, in its place; with `hold` until it is released."""
    record = ledger.record(order.job)
    if order.hold and record.state == "waiting":  # of an array some members run, others wait
        return hold(order, ledger, inventory)
    if record.state != "running":
        raise JoyError(
            f"job '{order.job}' is {record.state}", help="only a running job can wait again"
        )
    facts = stop(
        order, [record], f"{order.by} sent it back" + (f": {order.why}" if order.why else "")
    )
    return [*facts, order.fact("held", order.job, why=order.why)] if order.hold else facts


def hold(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
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


def release(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """A held job waits for cards again."""
    record = ledger.record(order.job)
    if record.state != "held":
        raise JoyError(f"job '{order.job}' is {record.state}, not held")
    return [order.fact("released", order.job)]


def set_priority(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """Another priority; for a running job it counts for who may stop it."""
    record = ledger.record(order.job)
    if record.state not in LIVE:
        raise JoyError(f"job '{order.job}' is {record.state}")
    return [order.fact("priority", order.job, priority=order.priority)]


def reserve(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """Cards belong to a queue, or to nobody, for a time."""
    window = order.window
    if window is None:
        raise JoyError("no window is given", help="cluster reserve add NAME --start … --hours …")
    live = [name for name, one in ledger.bookings.items() if one.end > order.at]
    if calendar.of_name(window.name, live):
        raise JoyError(f"a reservation called '{window.name}' is there", help="cancel it first")
    if not window.end > max(window.begin, order.at):
        raise JoyError(f"reservation {window.name} would be over before it begins, or by now")
    declared = {queue.name for queue in ledger.queues}
    if window.queue and declared and window.queue not in {*declared, DEFAULT_QUEUE}:
        near = did_you_mean(window.queue, declared)
        raise JoyError(f"this cluster has no queue '{window.queue}'.{near}")
    if window.nodes:
        chosen = whole_nodes(order, window, ledger, inventory)
    else:
        chosen = find_shape(order, window, ledger, inventory)
    names = calendar.names_of(window.name, len(window.windows))
    return [
        order.fact(
            "reserved",
            booking=dataclasses.asdict(Booking(name, chosen, begin, end, window.queue, order.why)),
        )
        for name, (begin, end) in zip(names, window.windows, strict=True)
    ]


def whole_nodes(
    order: Order, window: Window, ledger: Ledger, inventory: Inventory
) -> tuple[PodAllocation, ...]:
    """All cards of the named nodes; `JoyError` where somebody else has them in the window."""
    for name in window.nodes:
        check_node(name, ledger, inventory)
    widths = {node.name: node.kind.cards for node in inventory.nodes}
    for other in ledger.bookings.values():
        both = {part.node for part in other.cards} & {*window.nodes}
        if both and any(other.begin < end and begin < other.end for begin, end in window.windows):
            raise JoyError(
                f"node {min(both)} is reserved at that time: {other.name}",
                help=f"joymigrate cluster reserve cancel {other.name}",
            )
    late = [
        record.job.name
        for record in ledger.live("running")
        if {pod.node for pod in record.pods} & {*window.nodes}
        and not (window.queue and record.job.queue == window.queue)
        and not ends_by(record, window.begin)
    ]
    if late and not window.stop:
        raise JoyError(
            f"{', '.join(late[:5])} may still run there when {window.name} begins",
            help="--stop-running sends such jobs back to wait at that time",
        )
    return tuple(PodAllocation(name, tuple(range(widths.get(name, 16)))) for name in window.nodes)


def ends_by(record: Record, at: float) -> bool:
    """Whether a running job says that it is over at a time."""
    minutes = record.job.minutes
    return minutes is not None and (record.started or 0.0) + minutes * 60 <= at


def find_shape(
    order: Order, window: Window, ledger: Ledger, inventory: Inventory
) -> tuple[PodAllocation, ...]:
    """Cards of the window's shape that are free when it begins, as far as jobs say their ends."""
    if window.shape is None:
        raise JoyError("neither nodes nor cards are named", help="--node n1,n2, or --cards 8")
    scheduler = restore(ledger, inventory, order.at)[0]
    booked = scheduler.admission.booked
    parts = (scheduler.state, scheduler.allocations, scheduler.guess, window.shape, booked)
    found = choose(*parts, window.windows)
    if isinstance(found, Refusal) and window.stop and not found.permanent:
        found = choose(*parts, window.windows, anyway=True)
    if isinstance(found, Refusal):
        reason = scheduler.explainer.place(window.shape)
        why = found.reason if found.permanent or not isinstance(reason, Refusal) else reason.reason
        raise JoyError(
            f"reservation {window.name} finds no room for that time: {why}",
            help="another time, fewer cards, or --stop-running to stop jobs when it begins",
        )
    return found


def unreserve(order: Order, ledger: Ledger, inventory: Inventory) -> list[Fact]:
    """A reservation is no more."""
    name = order.window.name if order.window else ""
    names = calendar.of_name(name, ledger.bookings)
    if not names:
        known = did_you_mean(name, ledger.bookings)
        raise JoyError(f"no reservation '{name}'.{known}", help="joymigrate cluster reserve show")
    return [order.fact("unreserved", name=one) for one in names]


VERBS: Mapping[str, Callable[[Order, Ledger, Inventory], list[Fact]]] = {
    "cordon": cordon,
    "drain": drain,
    "undrain": undrain,
    "fail": fail_cards,
    "heal": heal_cards,
    "requeue": requeue,
    "hold": hold,
    "release": release,
    "priority": set_priority,
    "reserve": reserve,
    "unreserve": unreserve,
}


def stop(order: Order, records: Sequence[Record], why: str) -> list[Fact]:
    """These running jobs wait again."""
    return [order.fact("evicted", record.job.name, why=why) for record in records]


def check_node(name: str, ledger: Ledger, inventory: Inventory) -> None:
    """Refuse a node that nobody knows; one that is away may be spoken of if it was before."""
    names = {node.name for node in inventory.nodes} | ledger.cordoned.keys() | ledger.failed.keys()
    if name not in names:
        raise JoyError(
            f"no node '{name}'.{did_you_mean(name, names)}", help="joymigrate cluster status"
        )


def check_cards(order: Order, ledger: Ledger, inventory: Inventory) -> None:
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


def check_names(ledger: Ledger, new: Sequence[Job]) -> None:
    """Refuse an array and a job of one name: an order about it would be about both."""
    live = [*(record.job for record in ledger.live(*LIVE)), *new]
    both = {job.name for job in live} & {job.array for job in live}
    for job in new:
        if {job.name, job.array} & both:
            raise JoyError(
                f"an array and a job are both called '{job.array or job.name}'",
                help="rename one, or cancel the one that is there",
            )


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """What other limits would do: which keys differ, and who would start or be stopped at once.

    `notes` name queues that use more than their new MAX, and waiting jobs that never start by them.
    """

    changes: tuple[str, ...]
    starts: tuple[str, ...]
    stops: tuple[str, ...]
    notes: tuple[str, ...] = ()


def without_queue(ledger: Ledger, queues: Sequence[Queue], at: float) -> None:
    """Refuse queues that leave a live job, or a reservation that is not over, without its own."""
    names = {queue.name for queue in queues} | {DEFAULT_QUEUE}
    for record in ledger.live(*LIVE):
        if record.job.queue not in names:
            raise JoyError(
                f"queue '{record.job.queue}' is missing and job '{record.job.name}' is in it",
                help="keep the queue until its jobs are over",
            )
    for booking in ledger.bookings.values():
        if booking.queue and booking.queue not in names and booking.end > at:
            raise JoyError(
                f"queue '{booking.queue}' is missing and reservation '{booking.name}' is for it",
                help=f"keep the queue, or joymigrate cluster reserve cancel {booking.name}",
            )


def compare_quotas(
    ledger: Ledger,
    inventory: Inventory,
    queues: Sequence[Queue],
    weights: Mapping[str, float],
    at: float,
) -> QuotaChange:
    """The effect of other queues, tried on a copy; `JoyError` where they cannot hold."""
    Scheduler(inventory, queues, None, weights)  # refuses limits that cannot hold
    if queues:
        without_queue(ledger, queues, at)
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


def differences(ledger: Ledger, queues: Sequence[Queue], weights: Mapping[str, float]) -> list[str]:
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

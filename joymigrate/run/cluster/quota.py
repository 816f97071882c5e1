"""Queues' limits over a mixed cluster: MIN guaranteed, MAX elastic, deserved in between.

A limit is on one kind, on a family of kinds (`gpu`, …), or on `cards`: the unified budget in
card-units, where each kind counts with its weight. A queue's use counts for its parents too.

MIN is lent while it is not needed, but only to jobs that can be stopped for it: a queue whose jobs
are never stopped for another's claim may not grow into the unused MIN of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joymigrate.errors import JoyError
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE, GangJob
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.reasons import PlacementRefusal

Use = Mapping[int, float]  # cards per kind number
SLACK = 1e-6  # shares of cards are thousandths; sums of them carry rounding


@dataclass(slots=True)
class QuotaLimit:
    """One bound on the weighted use of one queue; `used` follows every start and end."""

    queue: str
    what: str
    weights: tuple[float, ...]
    bound: float
    used: float = 0.0

    def amount(self, use: Use) -> float:
        """What `use` counts against this bound."""
        return sum(self.weights[kind] * cards for kind, cards in use.items())


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """A queue with its limits; `chain` is the queue and its ancestors, itself first."""

    queue: Queue
    min: tuple[QuotaLimit, ...]
    max: tuple[QuotaLimit, ...]
    deserved: tuple[QuotaLimit, ...]
    chain: tuple[str, ...]
    children: tuple[str, ...]
    declared: bool = True


class Quotas:
    """All queues of a cluster. `kinds` are the inventory's kinds with how many cards each has.

    `overcommit`: take guarantees that are more than there is.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        kinds: Sequence[tuple[ServerKind, int]],
        weights: Mapping[str, float] | None = None,
        overcommit: bool = False,
    ) -> None:
        self.kinds = tuple(kind for kind, _ in kinds)
        self.total = tuple(float(cards) for _, cards in kinds)
        self.number = {kind.name: i for i, kind in enumerate(self.kinds)}
        self.weights = weights or {}
        self.units = self.vector("cards")
        self.size = sum(w * cards for w, cards in zip(self.units, self.total, strict=True)) or 1.0
        self.accounts: dict[str, Account] = {}
        self._used: dict[str, float] = {}
        self._shared: list[QuotaLimit] = []
        self.version = 0  # goes up with every change of use
        by_name = {queue.name: queue for queue in queues}
        check_tree(by_name)
        for queue in queues:
            self.accounts[queue.name] = self._account(queue, by_name, True)
        if DEFAULT_QUEUE not in self.accounts:
            self._undeclared(DEFAULT_QUEUE)
        self._check_bounds()
        if not overcommit:
            self._check_total()

    def vector(self, what: str) -> tuple[float, ...]:
        """How much one card of each kind counts for a limit on `what`."""
        return tuple(
            self.weights.get(kind.name, self.weights.get(kind.family, 1.0))
            if what == "cards"
            else float(what in (kind.name, kind.family))
            for kind in self.kinds
        )

    def account(self, name: str) -> Account:
        """The account of a queue; one that was not declared has no limits."""
        found = self.accounts.get(name)
        return found if found is not None else self._undeclared(name)

    def _undeclared(self, name: str) -> Account:
        self.accounts[name] = self._account(Queue(name), {}, False)
        return self.accounts[name]

    def _account(self, queue: Queue, by_name: Mapping[str, Queue], declared: bool) -> Account:
        chain = [queue.name]
        while by_name.get(chain[-1]) is not None and by_name[chain[-1]].parent:
            chain.append(by_name[chain[-1]].parent)
        children = tuple(other.name for other in by_name.values() if other.parent == queue.name)

        def made(bounds: Mapping[str, float]) -> tuple[QuotaLimit, ...]:
            return tuple(
                QuotaLimit(queue.name, what, self.vector(what), bound)
                for what, bound in bounds.items()
            )

        self._used.setdefault(queue.name, 0.0)
        account = Account(
            queue,
            made(queue.min),
            made(queue.max),
            made(queue.deserved),
            tuple(chain),
            children,
            declared,
        )
        self._shared.extend(account.min)
        return account

    def _check_bounds(self) -> None:
        """Refuse limits that contradict each other."""
        for account in self.accounts.values():
            queue = account.queue
            check_order(queue.name, ("MIN", queue.min), ("MAX", queue.max))
            check_order(queue.name, ("MIN", queue.min), ("deserved", queue.deserved))
            check_order(queue.name, ("deserved", queue.deserved), ("MAX", queue.max))
            for what, bound in queue.min.items():
                below = sum(self.accounts[c].queue.min.get(what, 0.0) for c in account.children)
                if account.children and below > bound + SLACK:
                    raise JoyError(
                        f"queues under {queue.name} guarantee {below:g} of {what}, "
                        f"{queue.name} has MIN {bound:g}",
                        help="raise the parent's `min` or lower the children's",
                    )

    def _check_total(self) -> None:
        """Refuse guarantees that the cluster cannot keep."""
        roots = [a for a in self.accounts.values() if not a.queue.parent]
        for what in {limit.what for account in roots for limit in account.min}:
            wanted = sum(account.queue.min.get(what, 0.0) for account in roots)
            have = sum(w * c for w, c in zip(self.vector(what), self.total, strict=True))
            if wanted > have + SLACK:
                raise JoyError(
                    f"the queues guarantee {wanted:g} of {what}, the inventory has {have:g}",
                    help="lower `min`, or add nodes",
                )

    def add(self, name: str, use: Use, sign: int = 1) -> None:
        """Count a start (`sign` 1) or an end (-1) for a queue and its parents."""
        self.version += 1
        for queue in self.account(name).chain:
            account = self.accounts[queue]
            for limits in (account.min, account.max, account.deserved):
                for limit in limits:
                    limit.used += sign * limit.amount(use)
            self._used[queue] += sign * sum(self.units[k] * cards for k, cards in use.items())

    def over_max(self, name: str, use: Use) -> PlacementRefusal | None:
        """The MAX that this start would break, or None."""
        for queue in self.account(name).chain:
            for limit in self.accounts[queue].max:
                amount = limit.amount(use)
                if amount and limit.used + amount > limit.bound + SLACK:
                    return max_refusal(limit, amount)
        return None

    def beyond_max(self, name: str, use: Use) -> PlacementRefusal | None:
        """The MAX that is smaller than this start alone, or None."""
        for queue in self.account(name).chain:
            for limit in self.accounts[queue].max:
                amount = limit.amount(use)
                if amount > limit.bound + SLACK:
                    return max_refusal(limit, amount)
        return None

    def guaranteed(self, name: str, use: Use) -> bool:
        """Whether this start stays inside MIN of its queue or of one of its parents."""
        chain = self.chain(name)
        return any(self._inside(self.accounts[queue], use, chain) for queue in chain)

    def chain(self, name: str) -> tuple[str, ...]:
        """The queue and its ancestors."""
        return self.account(name).chain

    def _inside(self, account: Account, use: Use, chain: tuple[str, ...]) -> bool:
        limits = account.min
        if not limits:
            return False
        for kind in use:
            covering = [limit for limit in limits if limit.weights[kind]]
            if not covering:
                return False
            for limit in covering:
                kept = sum(self._unmet(one, limit.what, use, chain) for one in account.children)
                if limit.used + limit.amount(use) + kept > limit.bound + SLACK:
                    return False
        return True

    def _unmet(self, queue: str, what: str, use: Use, chain: tuple[str, ...]) -> float:
        """What a queue and its parts may still claim of their MIN after this use of a chain."""
        account = self.accounts[queue]
        mine = use if queue in chain else {}
        own = [
            limit.bound - limit.used - limit.amount(mine)
            for limit in account.min
            if limit.what == what
        ]
        below = sum(self._unmet(child, what, use, chain) for child in account.children)
        return max(0.0, below, *own)

    def entitled(self, name: str, use: Use) -> bool:
        """Whether this start stays inside MIN, or inside what its queue deserves."""
        if not self.account(name).declared:
            return False
        if self.guaranteed(name, use):
            return True
        limits = self.account(name).deserved
        return (
            bool(limits)
            and all(any(limit.weights[kind] for limit in limits) for kind in use)
            and all(limit.used + limit.amount(use) <= limit.bound + SLACK for limit in limits)
        )

    def kept_for_others(self, name: str, use: Use, free: Use) -> PlacementRefusal | None:
        """Why a job that nobody could stop may not take what others are guaranteed, or None."""
        account = self.account(name)
        if "over-deserved" in account.queue.eviction or not self._shared:
            return None
        if self.guaranteed(name, use):
            return None
        for what in {limit.what for limit in self._shared}:
            others = {
                other: unmet
                for other in self._beside(account.chain)
                if (unmet := self._unmet(other, what, {}, ()))
            }
            if not others:
                continue
            weights = self.vector(what)
            amount = sum(weights[kind] * cards for kind, cards in use.items())
            have = sum(weights[kind] * cards for kind, cards in free.items())
            kept = sum(others.values())
            if amount and have - amount < kept - SLACK:
                names = ", ".join(others)
                facts = {"free": round(have), "kept": round(min(have, kept)), "others": names}
                return PlacementRefusal("min", {**facts, "queue": name})
        return None

    def _beside(self, chain: tuple[str, ...]) -> list[str]:
        """The largest parts of the tree of queues that a chain is not in."""
        return [
            name
            for name, account in self.accounts.items()
            if name not in chain and (not account.queue.parent or account.queue.parent in chain)
        ]

    def share(self, name: str) -> float:
        """How much of what it deserves a queue uses; undeclared queues are all alike (0)."""
        account = self.account(name)
        if not account.declared:
            return 0.0
        limits = account.deserved or account.min
        if limits:
            return max(limit.used / limit.bound if limit.bound else 1e9 for limit in limits)
        return self._used[name] / (self.size * max(account.queue.weight, 1e-9))

    def entitled_jobs(
        self, running: Sequence[tuple[str, str, Use]], against: str, deserved: bool
    ) -> set[str]:
        """Names of the running jobs that a claim of queue `against` may not stop.

        `running` are name, queue and use, those that are stopped last first. A job is safe inside
        the MIN (or with `deserved` inside what is deserved) of its queue or of any queue above it
        that the claim is not in as well. What a queue's parts are entitled to comes first.
        """
        common = self.chain(against)
        safe: set[str] = set()
        for account in sorted(self.accounts.values(), key=lambda one: -len(one.chain)):
            limits = (account.deserved or account.min) if deserved else account.min
            name = account.queue.name
            if not limits or name in common:
                continue
            inside = [run for run in running if name in self.chain(run[1])]
            used = [0.0] * len(limits)
            for job, _, use in sorted(inside, key=lambda run: run[0] not in safe):
                after = [u + limit.amount(use) for u, limit in zip(used, limits, strict=True)]
                covered = all(any(limit.weights[kind] for limit in limits) for kind in use)
                if covered and all(
                    one <= limit.bound + SLACK for one, limit in zip(after, limits, strict=True)
                ):
                    used = after
                    safe.add(job)
        return safe


def max_refusal(limit: QuotaLimit, amount: float) -> PlacementRefusal:
    """The reason for a start that a MAX forbids."""
    what = "card-units" if limit.what == "cards" else f"cards of {limit.what}"
    facts = {"queue": limit.queue, "what": what, "limit": f"{limit.bound:g}"}
    if amount > limit.bound + SLACK:
        return PlacementRefusal("never", {**facts, "need": f"{amount:g}"})
    after = limit.used + amount
    used = f"{max(limit.used, 0):g}"
    over = f"{after - limit.bound:g}"
    return PlacementRefusal("max", {**facts, "after": f"{after:g}", "used": used, "over": over})


def check_order(
    queue: str, low: tuple[str, Mapping[str, float]], high: tuple[str, Mapping[str, float]]
) -> None:
    """Refuse a queue whose lower limit lies above its higher one: MIN ≤ deserved ≤ MAX."""
    for what, bound in low[1].items():
        if bound > high[1].get(what, bound):
            raise JoyError(
                f"queue {queue}: {low[0]} {bound:g} of {what} is above its {high[0]} "
                f"{high[1][what]:g}",
                help=f"lower `{low[0].lower()}` or raise `{high[0].lower()}`",
            )


def check_tree(queues: Mapping[str, Queue]) -> None:
    """Parents exist, and no queue is its own ancestor."""
    for queue in queues.values():
        seen, at = {queue.name}, queue
        while at.parent:
            if at.parent not in queues:
                raise JoyError(f"queue {at.name}: no parent queue '{at.parent}'", help="declare it")
            at = queues[at.parent]
            if at.name in seen:
                raise JoyError(f"queue {queue.name} is its own ancestor", help="correct `parent`")
            seen.add(at.name)


def use_of(job: GangJob, kinds_of_pods: Sequence[int]) -> dict[int, float]:
    """Cards per kind number of a placed job; pods in the order of its tasks."""
    use: dict[int, float] = {}
    position = 0
    for task in job.tasks:
        for _ in range(task.pods):
            kind = kinds_of_pods[position]
            position += 1
            if task.cards or task.milli:
                use[kind] = use.get(kind, 0.0) + task.cards + task.milli / 1000
    return use

"""The rollout of a standby backend as one pure state machine: events in, changes out.

    standby -> ramping (steps of the traffic) -> promoted
       any of them -> rolled_back, paused

It owns no clock, socket or file: every event carries its time in seconds. The server and the
simulation feed the same class. Rates are shares, weights percent of the requests.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence import rollout_data
from joymigrate.run.serve.evidence.answers import AnswerComparison
from joymigrate.run.serve.evidence.aspects import FIELDS, MARKS, OPEN
from joymigrate.run.serve.evidence.attribution import Doubt
from joymigrate.run.serve.evidence.blame import SHARED, UNKNOWN, blame
from joymigrate.run.serve.evidence.bounds import requests_needed, upper_bound
from joymigrate.run.serve.evidence.events import (
    ORDERS,
    PAUSED,
    PRIMARY,
    PROMOTED,
    RAMPING,
    ROLLED_BACK,
    SECOND,
    STANDBY,
    AnswersCompared,
    Event,
    Health,
    LedgerGate,
    Observed,
    RequestTally,
    RolloutChange,
    RolloutOrder,
    RolloutPlan,
    RolloutTick,
    Served,
)
from joymigrate.run.serve.evidence.experiment import Experiment
from joymigrate.run.serve.evidence.failures import CUT_OFF
from joymigrate.run.serve.evidence.rule import EProcess

KEPT_EVENTS = 200
CLIENTS = 10_000
CLIENT_FAILURES = 2  # of one client that count
CUT_SECONDS, CUT_TOGETHER = 1.0, 8  # streams that a restart cuts at once
SUSPECT_WEIGHT = 10.0  # percent for a standby that fails, until it is known whether both do


@dataclass(slots=True)
class Rollout:
    """The state machine. `handle` takes an event and returns what changed."""

    plan: RolloutPlan = field(default_factory=RolloutPlan)
    make_rule: Callable[[], EProcess] = EProcess
    state: str = STANDBY
    step: int = 0
    step_since: float = 0.0
    step_requests: int = 0
    step_pairs: int = 0
    held: float = 0.0  # the weight while paused
    paused_from: str = RAMPING
    shadow_requests: int = 0
    total: RequestTally = field(
        default_factory=RequestTally
    )  # the standby, since the evidence was reset
    primary: RequestTally = field(default_factory=RequestTally)
    since_quiet: RequestTally = field(
        default_factory=RequestTally
    )  # since the rule last had nothing to say
    primary_since_quiet: RequestTally = field(default_factory=RequestTally)
    up: dict[str, bool] = field(default_factory=lambda: {PRIMARY: True, SECOND: False})
    down_since: float | None = None
    suspected_since: float | None = None  # the rule tripped, the primary is being looked at
    turned_away: int = 0  # requests of this step for which the standby was too busy
    doubt: Doubt | None = None  # the answers differ, and it is open which side is wrong
    cuts: dict[str, tuple[float, int]] = field(default_factory=dict)  # instance -> when, how many
    clients: OrderedDict[str, RequestTally] = field(default_factory=OrderedDict)  # of the standby
    gate_open: bool = False
    gate_reason: str = "the ledger was not asked yet"
    refused: bool = False
    changes: list[RolloutChange] = field(default_factory=list)
    last_kinds: dict[str, int] = field(default_factory=dict)  # failures of the standby by kind
    rule: EProcess = field(init=False)
    answers: AnswerComparison = field(init=False)
    live: Experiment = field(init=False)
    needed: int = field(init=False)

    def __post_init__(self) -> None:
        self.rule = self.make_rule()
        self.answers = AnswerComparison(self.plan)
        self.live = Experiment(self.plan.max_slowdown)
        self.needed = self.count_needed()

    def handle(self, event: Event) -> list[RolloutChange]:
        """Take one event; return the changes it caused, oldest first."""
        if isinstance(event, Served):
            return self.served(event)
        if isinstance(event, AnswersCompared):
            return self.compared(event)
        if isinstance(event, Observed):
            return self.observed(event)
        if isinstance(event, RolloutTick):
            return self.passed(event.time)
        if isinstance(event, Health):
            return self.health(event)
        if isinstance(event, LedgerGate):
            return self.gate(event)
        return self.ordered(event)

    # What the backends did

    def served(self, event: Served) -> list[RolloutChange]:
        if event.role == PRIMARY:
            self.primary.add(event)
            self.primary_since_quiet.add(event)
            return self.settle(event.time) if self.suspected else []
        self.total.add(event)
        self.since_quiet.add(event)
        self.shadow_requests += event.count if event.shadow else 0
        self.step_requests += event.count
        if event.failure:
            tripped = self.failed(event)
        else:
            self.cuts.pop(event.instance, None)
            tripped = self.rule.successes(event.count)
        if self.state == ROLLED_BACK:
            return []
        if tripped:
            return self.settle(event.time)
        if self.rule.quiet:
            self.since_quiet, self.primary_since_quiet = RequestTally(), RequestTally()
        return self.advance(event.time) if self.state == RAMPING else []

    def observed(self, event: Observed) -> list[RolloutChange]:
        """A live answer: the two arms are an experiment while both have traffic."""
        ours = event.role == SECOND
        tripped = self.live.add(ours, event.share, event.who, event.kind, event.seen)
        if not tripped or self.state != RAMPING:
            return []
        why = "; ".join(map(self.live.describe, tripped))
        if all(name.startswith("seconds") for name in tripped):
            slower = f"more than {self.plan.max_slowdown:g} times as long (max_slowdown)"
            return [self.pause(event.time, f"the standby is slow: {why}: {slower}")]
        return [self.roll_back(event.time, f"live answers differ: {why}")]

    def compared(self, event: AnswersCompared) -> list[RolloutChange]:
        """Both backends answered the same question, or an old one again."""
        now = event.time
        self.step_pairs += event.paired
        tripped = self.answers.add(event.told, paired=event.paired, kind=event.kind)
        if self.doubt is not None:
            self.doubt.add(event.changed)
        if self.state == ROLLED_BACK:
            return []
        why = "; ".join(self.answers.describe(name) for name in tripped)
        if set(tripped) & {*MARKS, *FIELDS}:
            return [self.roll_back(now, f"wrong answers: {why}")]
        if wrong := self.answers.wrong_primary():
            return self.blame_primary(now, wrong)
        if set(tripped) & set(OPEN) and self.doubt is None:
            self.doubt = Doubt(now, why)
            which = "which of the two has changed?"
            return [self.note(now, "suspected", f"the answers differ: {why}; {which}")]
        if self.doubt is not None:
            return self.place(now)
        if tripped:
            self.answers.restart()
            if self.state not in (RAMPING, PROMOTED):
                return []
            slower = f"more than {self.plan.max_slowdown:g} times as long (max_slowdown)"
            return [self.pause(now, f"the standby is slow: {why}: {slower}")]
        return self.advance(now) if self.state == RAMPING else []

    def blame_primary(self, now: float, why: str) -> list[RolloutChange]:
        """The primary is wrong: the standby keeps what it has, and a person decides."""
        text = f"the primary's answers are wrong, the standby is not to blame: {why}"
        if self.state in (PAUSED, PROMOTED):
            self.forget_alarm()
            return [] if self.state == PAUSED else [self.note(now, "primary", text)]
        return [self.pause(now, text)]

    def place(self, now: float, *, late: bool = False) -> list[RolloutChange]:
        """Two texts differ: who has changed, as far as old questions tell?

        Where nobody can tell, a ramp gives its traffic back to the primary, which had it before,
        and waits for a person; the standby is not said to be wrong.
        """
        doubt = self.doubt
        assert doubt is not None
        culprit = doubt.culprit(self.plan.max_different)
        if culprit == SECOND:
            return [self.roll_back(now, f"wrong answers: {doubt.why}; {doubt.describe()}")]
        if culprit == PRIMARY:
            return self.blame_primary(now, f"{doubt.why}; {doubt.describe()}")
        if not (late or doubt.exhausted):
            return []
        if self.state == PAUSED:
            self.forget_alarm()
            return []
        known = "nothing shows which of the two is wrong"
        paused = self.pause(
            now, f"the answers differ: {doubt.why}; {doubt.describe()}: {known}",
            held=self.weight if self.state == PROMOTED else 0.0,
        )  # fmt: skip
        return [paused]

    def failed(self, event: Served) -> bool:
        """Tell the rule about a failure of the standby, unless it says nothing about the rest."""
        kind = event.failure or ""
        self.last_kinds[kind] = self.last_kinds.get(kind, 0) + event.count
        self.needed = self.count_needed()
        tripped = False
        if self.is_one_clients(event) or self.is_one_cut(event):
            return False
        for _ in range(event.count):
            tripped = self.rule.failure() or tripped
        return tripped

    def is_one_clients(self, event: Served) -> bool:
        """Whether this failure is one too many of one client: who asks for odd things decides
        nothing for all, unless it is nearly all who ask."""
        if not event.who:
            return False
        tally = self.clients.setdefault(event.who, RequestTally())
        tally.add(event)
        if len(self.clients) > CLIENTS:
            self.clients.popitem(last=False)
        return tally.failures > CLIENT_FAILURES and 2 * tally.failures < self.total.requests

    def is_one_cut(self, event: Served) -> bool:
        """Whether connections to one server were cut together: a restart is one event."""
        if event.failure not in CUT_OFF:
            return False
        began, many = self.cuts.get(event.instance, (-math.inf, 0))
        if event.time - began > CUT_SECONDS or many >= CUT_TOGETHER:
            self.cuts[event.instance] = (event.time, 1)
            return False
        self.cuts[event.instance] = (began, many + 1)
        return True

    def count_needed(self) -> int:
        """Requests that the proof takes with the failures seen so far."""
        return requests_needed(self.total.failures, self.plan.limit, self.plan.confidence)

    @property
    def suspected(self) -> bool:
        """Whether the rule has tripped and it is open whose fault it is."""
        return self.suspected_since is not None

    def settle(self, now: float, *, late: bool = False) -> list[RolloutChange]:
        """The rule has tripped: the standby's fault, or one that both backends share?

        Where the primary was asked too little to tell, the standby keeps a small share of the
        traffic until it was asked enough, or until it is too late to wait.
        """
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.last_kinds.items()))
        seen = f"{self.total.failures} of {self.total.requests} requests failed ({kinds})"
        ours, theirs = self.since_quiet, self.primary_since_quiet
        fault = SHARED if not self.up[PRIMARY] else blame(ours, theirs)
        if fault == SECOND and not theirs.requests and blame(ours, self.primary) == SHARED:
            # Nobody asked the primary in this stretch, but its whole record is as bad: to roll
            # back would send the clients to it.
            fault, theirs = SHARED, self.primary
        if fault == UNKNOWN and late:
            fault = SHARED if theirs.failures else SECOND
        if fault == UNKNOWN:
            if self.suspected:
                return []
            self.suspected_since = now
            return [self.note(now, "suspected", f"{seen}; is the primary failing, too?")]
        if fault != SHARED:
            return [self.roll_back(now, f"{self.rule.describe()}: {seen}")]
        when = "ever" if theirs is self.primary else "in the same time"
        other = f"the primary {theirs.failures} of {theirs.requests} {when}"
        if self.state == PAUSED:
            self.forget_alarm()
            return []
        return [self.pause(now, f"both backends fail: {seen}; {other}")]

    # Time

    def passed(self, now: float) -> list[RolloutChange]:
        if self.state == ROLLED_BACK:
            return []
        if self.suspected_since is not None:
            late = now - self.suspected_since >= self.plan.suspect_seconds
            return self.settle(now, late=late)
        if self.doubt is not None:
            late = now - self.doubt.since >= self.plan.suspect_seconds
            return self.place(now, late=late)
        in_use = self.state in (RAMPING, PROMOTED) and self.up[PRIMARY]
        if in_use and self.down_since is not None:
            down = now - self.down_since
            if down >= self.plan.down_seconds:
                why = f"the standby fails its health checks for {down:.0f} s"
                return [self.roll_back(now, why)]
        if self.state == STANDBY and self.plan.start == "auto":
            return self.begin(now, "the standby passed its health check")
        return self.advance(now) if self.state == RAMPING else []

    def begin(self, now: float, why: str) -> list[RolloutChange]:
        """Start the ramp, when the standby is up and the gate is open."""
        if not self.up[SECOND]:
            return []
        if not self.gate_open:
            if self.refused:
                return []
            self.refused = True
            return [self.note(now, "refused", f"the ramp is refused: {self.gate_reason}")]
        self.enter(now, 0)
        return [self.move(now, RAMPING, f"{why}; {self.plan.steps[0]:g} % of the traffic")]

    def enter(self, now: float, step: int) -> None:
        self.step, self.step_since, self.step_requests = step, now, 0
        self.step_pairs = self.turned_away = 0

    def advance(self, now: float) -> list[RolloutChange]:
        """Take the next step when this one has lasted and the evidence allows it."""
        age = now - self.step_since
        if age >= self.plan.max_step_seconds:
            return [self.pause(now, f"inconclusive: {self.missing(now)} after {age:.0f} s")]
        if self.missing(now):
            return []
        if self.step + 1 < len(self.plan.steps):
            self.enter(now, self.step + 1)
            return [self.note(now, "step", f"{self.weight:g} % of the traffic; {self.proof()}")]
        return [self.move(now, PROMOTED, self.proof())]

    def missing(self, now: float) -> str:
        """What the next step still waits for; empty when nothing."""
        plan, last = self.plan, self.step + 1 >= len(self.plan.steps)
        if self.doubt is not None:
            return "the answers differ, and it is open which side is wrong"
        if now - self.step_since < plan.min_step_seconds:
            return f"the step lasts at least {plan.min_step_seconds:g} s"
        if not (self.up[PRIMARY] and self.up[SECOND]):
            return "both backends must be healthy"
        if not last and self.step_requests < plan.min_step_requests:
            seen = f"{self.step_requests} of {plan.min_step_requests} requests of this step"
            return f"{seen}{self.busy()}"
        if self.rule.level > 0.5:
            return f"the rule is at {self.rule.level:.0%} of its threshold"
        if plan.min_step_pairs:
            if self.step_pairs < plan.min_step_pairs:
                lost = self.primary_since_quiet
                why = f"; the primary failed {lost.failures} of {lost.requests} requests"
                return (
                    f"{self.step_pairs} of {plan.min_step_pairs} compared answers of this step"
                    f"{why if lost.failures else ''}{self.busy()}"
                )
            if self.live.level > 0.5:
                return f"live answers are at {self.live.level:.0%} of the alarm"
            if self.answers.level > 0.5:
                return f"compared answers are at {self.answers.level:.0%} of the alarm"
        if self.needs_proof and self.total.requests < self.needed:
            return (
                f"{self.total.requests} of {self.needed} requests for an upper bound "
                f"of {plan.limit:.2%}"
            )
        if not self.needs_proof:
            return ""
        late = self.live.missing(plan.confidence)
        return late or (self.answers.missing() if plan.min_step_pairs else "")

    def busy(self) -> str:
        """That the standby turns requests away, which is no failure, and no evidence either."""
        count = self.turned_away
        return f"; the standby was too busy for {count} requests" if count else ""

    @property
    def needs_proof(self) -> bool:
        """Whether the next step is one that needs the bounds, not only a quiet rule."""
        last = self.step + 1 >= len(self.plan.steps)
        return last or self.plan.steps[self.step + 1] >= self.plan.proof_from

    @property
    def wants_pairs(self) -> bool:
        """Whether the next step, or a doubt, waits for compared answers."""
        if self.doubt is not None and self.state != ROLLED_BACK:
            return True
        if self.state != RAMPING or not self.plan.min_step_pairs:
            return False
        if self.step_pairs < self.plan.min_step_pairs or self.answers.level > 0.5:
            return True
        return self.needs_proof and bool(self.answers.missing())

    def proof(self) -> str:
        """The cumulative rate with its bound, for the history."""
        bound = self.upper_bound
        failed = f"{self.total.failures} of {self.total.requests} failed, at most {bound:.3%}"
        return failed + self.live.proof(self.plan.confidence)

    # Health and gate

    def health(self, event: Health) -> list[RolloutChange]:
        if self.up[event.role] == event.up:
            return []
        self.up[event.role] = event.up
        if event.role == SECOND:
            self.down_since = None if event.up else event.time
        word = "up" if event.up else "down"
        detail = f": {event.detail}" if event.detail else ""
        made = [self.note(event.time, "health", f"the {event.role} is {word}{detail}")]
        return made + self.passed(event.time)

    def gate(self, event: LedgerGate) -> list[RolloutChange]:
        changed = (event.open, event.reason) != (self.gate_open, self.gate_reason)
        self.gate_open, self.gate_reason = event.open, event.reason
        if not changed:
            return []
        self.refused = False
        word = "open" if event.open else "closed"
        made = [self.note(event.time, "gate", f"the gate is {word}: {event.reason}")]
        if not event.open and self.weight > 0:
            return [*made, self.roll_back(event.time, f"the gate is closed: {event.reason}")]
        return made + self.passed(event.time)

    # Orders

    def ordered(self, order: RolloutOrder) -> list[RolloutChange]:
        now = order.time
        if order.what == "rollback":
            if self.state == ROLLED_BACK:
                raise refusal("rollback", "it is rolled back already", "nothing is left to do")
            return [self.roll_back(now, f"ordered by the {order.by}")]
        if order.what == "pause":
            if self.state not in (RAMPING, PROMOTED):
                raise refusal("pause", f"the state is {self.state}", "only a ramp can be paused")
            return [self.pause(now, f"ordered by the {order.by}")]
        if order.what not in ("resume", "promote"):
            raise refusal(order.what, "there is no such order", f"one of {', '.join(ORDERS)}")
        if not self.gate_open:
            raise refusal(
                order.what, self.gate_reason, "verify the target, or start it with --unverified"
            )
        if order.what == "resume":
            return self.resume(order)
        if self.state == PROMOTED:
            raise refusal("promote", "it is promoted already", "nothing is left to do")
        if self.state == ROLLED_BACK:
            self.forget_evidence()
        self.forget_alarm()
        return [self.move(now, PROMOTED, f"ordered by the {order.by}; {self.proof()}")]

    def resume(self, order: RolloutOrder) -> list[RolloutChange]:
        """Go on after a pause; begin again, with fresh evidence, after a rollback."""
        if self.state in (RAMPING, PROMOTED):
            raise refusal("resume", f"the state is {self.state}", "nothing is paused")
        if self.state == PAUSED and self.paused_from == PROMOTED:
            self.forget_alarm()
            return [self.move(order.time, PROMOTED, f"resumed by the {order.by}")]
        step = self.step if self.state == PAUSED else 0
        if self.state == ROLLED_BACK:
            self.forget_evidence()
        self.forget_alarm()
        self.enter(order.time, step)
        why = f"resumed by the {order.by}; {self.plan.steps[step]:g} % of the traffic"
        return [self.move(order.time, RAMPING, why)]

    # Moves

    def roll_back(self, now: float, why: str) -> RolloutChange:
        self.suspected_since = self.doubt = None
        return self.move(now, ROLLED_BACK, why)

    def pause(self, now: float, why: str, *, held: float | None = None) -> RolloutChange:
        self.suspected_since = self.doubt = None
        self.held, self.paused_from = self.weight if held is None else held, self.state
        if self.state == STANDBY:
            self.step = 0
        self.forget_alarm()
        return self.move(now, PAUSED, why)

    def forget_alarm(self) -> None:
        """Judge afresh from here; the totals stay."""
        self.rule = self.make_rule()
        self.answers.restart()
        self.live = Experiment(self.plan.max_slowdown)
        self.suspected_since = self.doubt = None
        self.since_quiet, self.primary_since_quiet = RequestTally(), RequestTally()

    def forget_evidence(self) -> None:
        """A new attempt: what the old one did no longer counts."""
        self.total, self.primary = RequestTally(), RequestTally()
        self.answers = AnswerComparison(self.plan)
        self.clients.clear()
        self.shadow_requests = 0
        self.last_kinds = {}
        self.needed = self.count_needed()

    def move(self, now: float, state: str, text: str) -> RolloutChange:
        self.state = state
        return self.note(now, state, text)

    def note(self, now: float, kind: str, text: str) -> RolloutChange:
        change = RolloutChange(now, kind, text, self.state, self.weight)
        self.changes.append(change)
        del self.changes[:-KEPT_EVENTS]
        return change

    # What it says about itself

    @property
    def weight(self) -> float:
        """The standby's share of the requests in percent."""
        whole = self.plan.steps[self.step] if self.state == RAMPING else 0.0
        weight = {PROMOTED: 100.0, PAUSED: self.held}.get(self.state, whole)
        doubted = self.suspected or (self.doubt is not None and self.state == RAMPING)
        return min(weight, SUSPECT_WEIGHT) if doubted else weight

    @property
    def upper_bound(self) -> float:
        """The highest failure rate of the standby that its record leaves plausible."""
        return upper_bound(self.total.failures, self.total.requests, self.plan.confidence)

    def snapshot(self) -> dict[str, Any]:
        """Everything that must survive a restart, as plain data."""
        return rollout_data.snapshot(self)

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up a `snapshot`. Health and gate are asked anew."""
        rollout_data.restore(self, saved)

    def postpone(self, seconds: float) -> None:
        """Move what is being waited for: the clock was set, or nothing ran for so long."""
        self.step_since += seconds
        if self.suspected_since is not None:
            self.suspected_since += seconds
        if self.doubt is not None:
            self.doubt.since += seconds


def refusal(order: str, why: str, help: str) -> JoyError:
    """An order that the state does not allow."""
    return JoyError(f"cannot {order}: {why}", where="rollout", help=help)

"""What a rollback rule would do: the gateway's own state machine against streams of outcomes.

Answers come from `Rollout` itself, not from a model of it: the server imports the same class.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from joymigrate.run.serve.evidence.events import (
    PROMOTED,
    RAMPING,
    ROLLED_BACK,
    SECOND,
    Health,
    LedgerGate,
    RolloutOrder,
    RolloutPlan,
    RolloutTick,
    Served,
)
from joymigrate.run.serve.evidence.experiment import Experiment
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.evidence.rule import EProcess
from joymigrate.run.serve.gateway.streams import UpstreamOutcome, bernoulli, resample

BITE, BITES = 25, 1000  # requests between two looks at the bound; looks that double a record
SPREAD, SLOW_FACTOR = 0.5, 100.0  # of simulated times: deviation of the logarithm, a slow answer's
# Of simulated answers: as clients often mix them.
KINDS, KIND_SHARES = ("chat", "completion", "whole chat", "whole completion"), (6, 3, 2, 1)
SLICE_SECONDS = 300.0  # how often the calendar lets time pass


@dataclass(frozen=True, slots=True)
class Delays:
    """How one rule did at one true failure rate, over `runs` runs of at most `horizon` requests.

    `delays` are the standby requests until the rollback, sorted; a run without one is left out.
    """

    rule: str
    rate: float | None  # None for a recorded stream
    runs: int
    horizon: int
    delays: tuple[int, ...]

    @property
    def share(self) -> float:
        """Share of the runs that were rolled back within the horizon."""
        return len(self.delays) / self.runs

    def quantile(self, share: float) -> int | None:
        """Requests until the rollback in `share` of all runs; None when fewer rolled back."""
        place = math.ceil(share * self.runs) - 1
        return self.delays[place] if place < len(self.delays) else None


def start_ramp(plan: RolloutPlan, rule: Callable[[], EProcess]) -> Rollout:
    """A rollout that has just begun its ramp at time 0."""
    # A stream of outcomes has no texts: what pairs of answers add is not simulated.
    rollout = Rollout(replace(plan, start="manual", min_step_pairs=0), rule)
    rollout.handle(LedgerGate(0.0, True, "simulated"))
    rollout.handle(Health(0.0, SECOND, True))
    rollout.handle(RolloutOrder(0.0, "resume"))
    return rollout


def until_rollback(
    rollout: Rollout, stream: Iterable[UpstreamOutcome], horizon: int, requests_per_s: float
) -> int | None:
    """Standby requests until the rollback, or None within `horizon` of them."""
    done = 0
    for outcome in stream:
        count = min(outcome.count, horizon - done)
        done += count
        time = done / requests_per_s if outcome.time is None else outcome.time
        rollout.handle(Served(time, SECOND, outcome.failure, count, outcome.instance))
        if rollout.state == ROLLED_BACK:
            return done
        if done >= horizon:
            return None
    return None


def characterise(
    name: str,
    plan: RolloutPlan,
    rule: Callable[[], EProcess],
    *,
    rate: float | None = None,
    record: Sequence[UpstreamOutcome] = (),
    runs: int = 2000,
    horizon: int = 100_000,
    seed: int = 0,
    requests_per_s: float = 100.0,
    block: int = 1000,
) -> Delays:
    """Run the state machine `runs` times against failures at `rate`, or resampled from `record`."""
    rng = random.Random(f"{seed} {rate} {name}")
    delays = []
    for _ in range(runs):
        stream: Iterator[UpstreamOutcome] = (
            bernoulli(rate, rng) if rate is not None else drop_times(resample(record, block, rng))
        )
        delay = until_rollback(start_ramp(plan, rule), stream, horizon, requests_per_s)
        if delay is not None:
            delays.append(delay)
    return Delays(name, rate, runs, horizon, tuple(sorted(delays)))


def promoted_share(
    plan: RolloutPlan,
    rule: Callable[[], EProcess],
    *,
    rate: float,
    runs: int,
    horizon: int,
    seed: int = 0,
) -> float:
    """Share of the runs at a true failure rate that are promoted within `horizon` requests."""
    rng = random.Random(f"{seed} {rate} promotion")
    quick = replace(plan, min_step_seconds=0.0, max_step_seconds=math.inf)
    promoted = 0
    for _ in range(runs):
        rollout, done = start_ramp(quick, rule), 0
        for outcome in bernoulli(rate, rng):
            left = min(outcome.count, horizon - done)
            while left and rollout.state == RAMPING:
                # Small bites: the bound is looked at all the time, as in a running gateway.
                count = min(left, max(BITE, done // BITES))
                done, left = done + count, left - count
                rollout.handle(Served(float(done), SECOND, outcome.failure, count))
            if rollout.state != RAMPING or done >= horizon:
                break
        promoted += rollout.state == PROMOTED
    return promoted / runs


def tail_proven_share(late: float, *, runs: int, horizon: int, seed: int = 0) -> float:
    """Share of the runs in which the slow tail is proven to be small within `horizon` answers, half
    of them of a standby that is as fast as the primary, but for the share `late` of its answers."""
    rng = random.Random(f"{seed} {late} tail")
    proven = 0
    for _ in range(runs):
        live = Experiment()
        for number in range(1, horizon + 1):
            ours, kind = rng.random() < 0.5, rng.choices(KINDS, KIND_SHARES)[0]
            seconds = SLOW_FACTOR if ours and rng.random() < late else 1.0
            seen = {"seconds": seconds * rng.lognormvariate(0.0, SPREAD)}
            live.add(ours, 0.5, "", kind, seen)
            due = live.timed and number % BITE == 0
            if due and not live.missing(RolloutPlan().confidence):
                proven += 1
                break
    return proven / runs


def drop_times(stream: Iterable[UpstreamOutcome]) -> Iterator[UpstreamOutcome]:
    """The stream without its recorded times, which resampling has put out of order."""
    for outcome in stream:
        yield replace(outcome, time=None)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a rule would have done with a recorded stream, as it was."""

    rule: str
    requests: int
    failures: int
    rolled_back_at: int | None  # the request, counted from 1
    time: float | None  # seconds after the first request, where the record has times
    upper_bound: float


def replay(
    name: str, plan: RolloutPlan, rule: Callable[[], EProcess], record: Sequence[UpstreamOutcome]
) -> Replayed:
    """Feed the record once, in order, with its own times."""
    rollout = start_ramp(plan, rule)
    first = record[0].time or 0.0
    at = None
    for number, outcome in enumerate(record, 1):
        time = (outcome.time or float(number)) - first
        rollout.handle(Served(time, SECOND, outcome.failure, 1, outcome.instance))
        if rollout.state == ROLLED_BACK and at is None:
            at = number
    stamp = record[at - 1].time if at else None
    failures = sum(1 for outcome in record if outcome.failure)
    return Replayed(
        name,
        len(record),
        failures,
        at,
        stamp - first if stamp is not None else None,
        rollout.upper_bound,
    )


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step on the calendar, in seconds after the start of the ramp.

    `entered` is the median over the runs that got there; `proof_seconds` is how long the proof of
    the limit (no failure in n requests) would take if the ramp stayed at this step.
    """

    weight: float
    entered: float | None
    reached: float  # share of the runs
    standby_per_s: float
    proof_seconds: float


@dataclass(frozen=True, slots=True)
class Calendar:
    """When the steps of a ramp come, with this traffic."""

    steps: tuple[StepTime, ...]
    promoted: float | None
    promoted_share: float
    rolled_back_share: float


def calendar(
    plan: RolloutPlan,
    rule: Callable[[], EProcess],
    *,
    requests_per_s: float,
    shadow: float = 0.0,
    rate: float = 0.0,
    runs: int = 50,
    seed: int = 0,
) -> Calendar:
    """Let the ramp run with `requests_per_s` in all, `shadow` percent of the primary's mirrored."""
    rng = random.Random(seed)
    entered: dict[float, list[float]] = {weight: [] for weight in plan.steps}
    ends: list[tuple[str, float]] = []
    for _ in range(runs):
        rollout = start_ramp(plan, rule)
        ends.append(walk(rollout, requests_per_s, shadow, bernoulli(rate, rng)))
        for change in rollout.changes:
            if change.kind in ("step", RAMPING) and change.state == RAMPING:
                entered[change.weight].append(change.time)
    steps = tuple(
        StepTime(
            weight,
            median(entered[weight]),
            len(entered[weight]) / runs,
            standby_rate(weight, requests_per_s, shadow),
            Rollout(plan, rule).needed / standby_rate(weight, requests_per_s, shadow),
        )
        for weight in plan.steps
    )
    good = [time for state, time in ends if state == PROMOTED]
    bad = sum(1 for state, _ in ends if state == ROLLED_BACK)
    return Calendar(steps, median(good), len(good) / runs, bad / runs)


def standby_rate(weight: float, requests_per_s: float, shadow: float) -> float:
    """Requests per second that the standby sees: its own, and mirrored ones of the primary."""
    return requests_per_s * (weight / 100 + (1 - weight / 100) * shadow / 100)


def walk(
    rollout: Rollout, requests_per_s: float, shadow: float, stream: Iterator[UpstreamOutcome]
) -> tuple[str, float]:
    """Let one ramp run to its end; the end's state and time."""
    now, owed, passes = 0.0, 0.0, 0
    while rollout.state == RAMPING:
        per_s = standby_rate(rollout.weight, requests_per_s, shadow)
        length = max(SLICE_SECONDS, 1 / per_s)
        now += length
        owed += per_s * length
        while owed >= 1 and rollout.state == RAMPING:
            if passes == 0:
                outcome = next(stream)
                if outcome.failure:
                    rollout.handle(Served(now, SECOND, outcome.failure))
                    owed -= 1
                    continue
                passes = outcome.count
            taken = min(passes, int(owed))
            rollout.handle(Served(now, SECOND, None, taken))
            passes -= taken
            owed -= taken
        rollout.handle(RolloutTick(now))
    return rollout.state, now


def median(values: Sequence[float]) -> float | None:
    """The middle value; None of nothing."""
    return sorted(values)[len(values) // 2] if values else None

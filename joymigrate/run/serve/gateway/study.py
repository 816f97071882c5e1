"""`serve simulate`: reads what the user asks, runs the simulation, sums it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import RolloutPlan
from joymigrate.run.serve.evidence.experiment import TAIL_SHARE
from joymigrate.run.serve.evidence.rule import EProcess
from joymigrate.run.serve.gateway import access_logs, settings, simulate, streams
from joymigrate.run.serve.gateway.simulate import Delays
from joymigrate.run.serve.gateway.streams import UpstreamOutcome

SCHEMA = "joymigrate.rollout-simulation/1"
RATES = (0.0002, 0.0005, 0.001, 0.0011, 0.0012, 0.0015, 0.002, 0.005, 0.01, 0.1, 1.0)
HORIZONS = ((0.0009, 1), (0.003, 10))  # near the limit a decision takes long
LONGEST = 1_000_000  # requests that a horizon is stretched to
PERIODS = {
    "s": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "week": 604_800,
}
CALENDAR_RUNS = 50
PROMOTION_RUNS = 2000  # of 400, 5.25 % were promoted, of 10,000 4.4 %: chance alone passes 5 %
RESAMPLED_RUNS = 200
TAIL_RUNS, TAIL_HORIZON = 400, 4000  # one answer at a time: fewer of them


@dataclass(frozen=True, slots=True)
class StudyQuestion:
    """What the user wants to know. Rates are shares, `shadow` is percent."""

    rates: tuple[float, ...] = ()
    record: Path | None = None
    upstream: str | None = None
    rules: tuple[str, ...] = ()
    runs: int = 2000
    horizon: int = 100_000
    seed: int = 0
    requests_per_s: float | None = None
    shadow: float = 0.0
    config: Path | None = None
    standby_per_s: float = 100.0
    logs: tuple[str, ...] = ()  # NAME=FILE
    standby: str = ""


def answer(asked: StudyQuestion) -> tuple[dict[str, Any], dict[str, list[Delays]]]:
    """The simulation's JSON, and the curves for a picture."""
    if asked.logs:
        return verdict_of(asked), {}
    plan, rules = plan_and_rules(asked)
    quick = replace(plan, min_step_seconds=0.0)
    record = streams.read(asked.record, asked.upstream) if asked.record else []
    rates = asked.rates or (() if record else RATES)
    curves: dict[str, list[Delays]] = {
        name: [run(name, quick, rule, asked, rate) for rate in rates]
        + ([run(name, quick, rule, asked, None, record)] if record else [])
        for name, rule in rules.items()
    }
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "runs": asked.runs,
        "seed": asked.seed,
        "rules": {name: rule().describe() for name, rule in rules.items()},
        "rates": [row(delays, asked.horizon) for rows in curves.values() for delays in rows],
    }
    if not record:
        runs = min(asked.runs, PROMOTION_RUNS)
        tried = asked.rates or (plan.limit, 1.1 * plan.limit)
        found["promotions"] = [
            {
                "rule": name,
                "rate": rate,
                "runs": runs,
                "promoted_share": simulate.promoted_share(
                    quick, rule, rate=rate, runs=runs,
                    horizon=asked.horizon, seed=asked.seed,
                ),
            }
            for name, rule in rules.items()
            for rate in tried
        ] + [
            {
                "rule": "slow tail",
                "rate": late,
                "runs": min(runs, TAIL_RUNS),
                "promoted_share": simulate.tail_proven_share(
                    late, runs=min(runs, TAIL_RUNS), horizon=min(asked.horizon, TAIL_HORIZON),
                    seed=asked.seed,
                ),
            }
            for late in (0.0, TAIL_SHARE)
        ]  # fmt: skip
    if record:
        found["replay"] = [
            asdict(simulate.replay(name, quick, rule, record)) for name, rule in rules.items()
        ]
    if asked.requests_per_s is not None:
        first = next(iter(rules.values()))
        found["calendar"] = asdict(
            simulate.calendar(
                plan,
                first,
                requests_per_s=asked.requests_per_s,
                shadow=asked.shadow,
                rate=rates[0] if asked.rates else 0.0,
                runs=CALENDAR_RUNS,
                seed=asked.seed,
            )
        ) | {"requests_per_s": asked.requests_per_s, "shadow": asked.shadow}
    return found, curves


def verdict_of(asked: StudyQuestion) -> dict[str, Any]:
    """What the rollout's state machine says about access logs of both sides."""
    loaded = settings.load(asked.config) if asked.config else None
    rows: list[access_logs.AccessRow] = []
    for text in asked.logs:
        name, found, file = text.partition("=")
        rows += access_logs.read_log(Path(file if found else text), name if found else "")
    rule = loaded.rule if loaded else EProcess
    return {
        "schema": SCHEMA, "runs": 0, "seed": asked.seed,
        "rules": {"configured" if loaded else "eprocess": rule().describe()}, "rates": [],
        "verdict": access_logs.judge_logs(rows, asked.standby, loaded),
    }  # fmt: skip


def run(
    name: str,
    plan: RolloutPlan,
    rule: Callable[[], EProcess],
    asked: StudyQuestion,
    rate: float | None,
    record: Sequence[UpstreamOutcome] = (),
) -> Delays:
    """One rule at one rate, or against a resampled record."""
    return simulate.characterise(
        name,
        plan,
        rule,
        rate=rate,
        record=record,
        runs=asked.runs if rate is not None else min(asked.runs, RESAMPLED_RUNS),
        horizon=asked.horizon if rate is None else horizon_of(rate, asked.horizon),
        seed=asked.seed,
        requests_per_s=asked.standby_per_s,
    )


def plan_and_rules(asked: StudyQuestion) -> tuple[RolloutPlan, dict[str, Callable[[], EProcess]]]:
    """The plan, and the rules by name: the user's, the file's, else the default."""
    here = str(asked.config or "command line")
    loaded = settings.load(asked.config) if asked.config else None
    plan = loaded.plan if loaded else RolloutPlan()
    if asked.rules:
        return plan, {text: settings.rule(text, here, plan.limit) for text in asked.rules}
    return plan, {"configured": loaded.rule} if loaded else {"eprocess": EProcess}


def horizon_of(rate: float, horizon: int) -> int:
    """Long enough to see a decision: at a rate near the limit it takes many requests."""
    for below, factor in HORIZONS:
        if rate < below:
            return max(horizon, min(horizon * factor, LONGEST))
    return horizon


def row(delays: Delays, horizon: int) -> dict[str, Any]:
    """One rule at one rate."""
    within = sum(1 for delay in delays.delays if delay <= horizon) / delays.runs
    return {
        "rule": delays.rule,
        "rate": delays.rate,
        "runs": delays.runs,
        "rolled_back_share": within,
        "within": horizon,
        "median": delays.quantile(0.5),
        "p95": delays.quantile(0.95),
        "p99": delays.quantile(0.99),
    }


def parse_rate(text: str) -> float:
    """`0.11%` or `0.0011`, as a share."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise JoyError(
            f"not a failure rate: {text!r}", where="--rate", help="for example --rate 0.11%"
        )
    return value


def parse_traffic(text: str) -> float:
    """`30000/day`, as requests per second."""
    amount, _, period = text.partition("/")
    period = period.strip().rstrip("s") or "s" if period.strip() != "s" else "s"
    try:
        value = float(amount.replace(",", "").replace("_", ""))
    except ValueError:
        value = 0.0
    if value <= 0 or period not in PERIODS:
        raise JoyError(
            f"not a traffic: {text!r}", where="--traffic", help="for example --traffic 30000/day"
        )
    return value / PERIODS[period]

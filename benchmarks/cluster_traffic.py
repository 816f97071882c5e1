"""Overload and cost of replicas that follow the load, against those that a forecast starts early.

    python -m benchmarks.cluster_traffic [RECORD.csv ...] [--start 1200] [--target 10]

Without a record: three made days of traffic, eight days long in steps of five minutes, with noise
and growth. The first three days are what the forecast learns from; only the others count. A record
is a CSV with at,rate (seconds, requests per second).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from joymigrate.run.cluster import autoscale, forecast
from joymigrate.run.cluster.autoscale import Load, ScalingRule

STEP_S, DAYS, LEARNT = 300.0, 8, 3


def made(kind: str, seed: int = 0) -> list[Load]:
    """Traffic of one kind: a wave, two rushes of office hours, or a burst every three hours."""
    at = np.arange(int(DAYS * forecast.DAY_S / STEP_S)) * STEP_S
    hour, day = at / 3600 % 24, at / forecast.DAY_S
    rate = {
        "wave": 60 + 50 * np.sin((hour - 9) / 24 * 2 * np.pi),
        "office": 5 + 395 * (((hour >= 9) & (hour < 9.75)) | ((hour >= 14) & (hour < 14.75))),
        "bursts": 4 + 300 * (hour % 3 < 0.34),
    }[kind]
    noise = np.random.default_rng(seed).lognormal(0, 0.08, len(at))
    return [
        Load(float(t), float(r)) for t, r in zip(at, rate * (1 + 0.01 * day) * noise, strict=True)
    ]


def compare(name: str, loads: Sequence[Load], rule: ScalingRule) -> None:
    """One line: overload and replica hours of both rules on what was not learnt."""
    ahead = forecast.ahead(loads, forecast.DAY_S, rule.start_s)
    first = next(
        i for i, load in enumerate(loads) if load.at >= loads[0].at + LEARNT * forecast.DAY_S
    )
    plain = autoscale.play(loads[first:], rule)
    early = autoscale.play(loads[first:], rule, ahead[first:])
    print(
        f"{name:24} reactive {plain.overload_pct:6.2f} % {plain.replica_hours:8.0f} h   "
        f"forecast {early.overload_pct:6.2f} % {early.replica_hours:8.0f} h",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--start", type=float, default=1200.0)
    parser.add_argument("--target", type=float, default=10.0)
    options = parser.parse_args()
    rule = ScalingRule(options.target, 1, 100_000, start_s=options.start)
    print(
        f"a new replica carries load after {options.start:g} s; {options.target:g} requests/s each"
    )
    if options.records:
        for path in options.records:
            compare(path.name, autoscale.read(path.read_text(encoding="utf-8"), str(path)), rule)
        return
    for kind in ("wave", "office", "bursts"):
        compare(kind, made(kind), rule)


if __name__ == "__main__":
    main()

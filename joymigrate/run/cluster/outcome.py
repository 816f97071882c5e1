"""Results of simulations as plain data (schema `joymigrate.simulation/1`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.run.cluster.arrival import LoadSweep, mean
from joymigrate.run.cluster.simulate import Simulation

SCHEMA = "joymigrate.simulation/1"
DIGITS = 4


def offered_data(runs: Sequence[LoadSweep]) -> dict[str, Any]:
    """Runs of the arrival experiment under one policy: means over the seeds, and each seed."""
    first = runs[0]
    decisions, seconds = sum(run.decisions for run in runs), sum(run.seconds for run in runs)
    marks = sorted({mark for run in runs for mark in run.at})
    return {
        "schema": SCHEMA,
        "policy": first.policy,
        "experiment": "arrival",
        "seeds": [run.seed for run in runs],
        "jobs": first.pods,
        "decisions_per_s": round(decisions / max(seconds, 1e-9), 1),
        "allocation_pct": round(mean([run.allocation_pct for run in runs]), DIGITS),
        "allocation_pct_by_seed": [round(run.allocation_pct, DIGITS) for run in runs],
        "allocation_pct_at_load": {
            str(mark): round(mean([run.at[mark] for run in runs if mark in run.at]), DIGITS)
            for mark in marks
        },
        "fragmentation_pct": round(mean([run.fragmentation_pct for run in runs]), DIGITS),
        "wait_mean_h": 0.0,
        "wait_p99_h": 0.0,
        "evictions": 0,
        "seconds_per_run": round(seconds / len(runs), 2),
        "unplaced": [{"job": job, "reason": reason} for job, reason in first.refused],
    }


def simulation_data(run: Simulation) -> dict[str, Any]:
    """One simulated trace."""
    tally = run.tally
    return {
        "schema": SCHEMA,
        "policy": run.policy,
        "experiment": "trace",
        "seed": run.seed,
        "jobs": run.jobs,
        "decisions": run.decisions,
        "decisions_per_s": round(run.decisions_per_s, 1),
        "allocation_pct": round(run.allocation_pct, DIGITS),
        "wait_mean_h": round(run.wait_mean_h, DIGITS),
        "wait_p99_h": round(run.wait_p99_h, DIGITS),
        "evictions": run.evictions,
        "evicted_per_claimed_card": round(tally.evicted_cards / tally.claimed_cards, DIGITS)
        if tally.claimed_cards
        else 0.0,
        "useless_evictions": tally.useless_evictions,
        "lost_card_hours": round(tally.lost_card_h, 2),
        "max_breaches": tally.breaches,
        "blocked_pct": round(run.blocked_pct, DIGITS),
        "fragmentation_pct": round(run.fragmentation_pct, DIGITS),
        "fairness": round(run.fairness, DIGITS),
        "hours": round(run.hours, 2),
        "unplaced": [{"job": job, "reason": reason} for job, reason in run.unplaced],
    }


def side_by_side(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result as it is; several as the first one's fields with all of them under `policies`."""
    if len(results) == 1:
        return results[0]
    return {**results[0], "policies": list(results)}

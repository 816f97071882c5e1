"""A rollout as plain data, for the disk and for other gateways, and back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from joymigrate.run.serve.evidence.attribution import Doubt
from joymigrate.run.serve.evidence.events import RequestTally, RolloutChange

PLAIN = ("state", "step", "step_since", "step_requests", "held", "paused_from", "shadow_requests")
LATER = {"step_pairs": 0, "suspected_since": None}  # older states are without them
TALLIES = ("total", "primary", "since_quiet", "primary_since_quiet")


def snapshot(rollout: Any) -> dict[str, Any]:
    """Everything of a `Rollout` that must survive a restart."""
    tallies = {name: getattr(rollout, name) for name in TALLIES}
    return {
        **{name: getattr(rollout, name) for name in (*PLAIN, *LATER)},
        **{name: [tally.requests, tally.failures] for name, tally in tallies.items()},
        "doubt": rollout.doubt.state() if rollout.doubt else None,
        "answers": rollout.answers.state(),
        "live": rollout.live.state(),
        "kinds": rollout.last_kinds,
        "rule": rollout.rule.state(),
        "changes": [
            [change.time, change.kind, change.text, change.state, change.weight]
            for change in rollout.changes
        ],
    }


def restore(rollout: Any, saved: dict[str, Any]) -> None:
    """Let a `Rollout` take up a `snapshot`. Health and gate are asked anew."""
    for name in PLAIN:
        setattr(rollout, name, saved[name])
    for name, usual in LATER.items():
        setattr(rollout, name, saved.get(name, usual))
    for name in TALLIES:
        setattr(rollout, name, RequestTally(*saved.get(name, ())))
    # A plan with fewer steps than the saved one goes on at its last step.
    rollout.step = min(int(saved["step"]), len(rollout.plan.steps) - 1)
    rollout.doubt = Doubt.restored(saved.get("doubt"))
    if "answers" in saved:
        rollout.answers.restore(saved["answers"])
    rollout.live.restore(saved.get("live", {}))
    rollout.last_kinds = dict(saved["kinds"])
    with suppress(KeyError):  # of another rule: this one begins now
        rollout.rule.restore(saved["rule"])
    rollout.changes = [RolloutChange(*change) for change in saved["changes"]]
    rollout.needed = rollout.count_needed()

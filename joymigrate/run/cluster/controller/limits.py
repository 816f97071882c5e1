"""What the controller does by itself as time passes: time limits, and cards that must not be used.

A card is taken out of use when its node's tools call it broken, or when different programs, one
after the other, have failed on it and none has ended well since: one program that fails everywhere
is not a broken card.
"""

from __future__ import annotations

from collections.abc import Mapping

from joymigrate.run.cluster.controller.ledger import JobLedger, LogFact

STRIKES = 3  # different programs that fail on a card in a row
HEALTH = "health"  # who takes cards out of use
CLOCK = "time limit"  # who ends jobs at their limit


def ends_due(ledger: JobLedger, now: float) -> list[LogFact]:
    """The ends of the running jobs whose time limit has come."""
    return [
        LogFact(
            "ended",
            now,
            record.job.name,
            CLOCK,
            {
                "codes": [],
                "state": "failed",
                "limit": True,
                "note": f"stopped at its time limit of {record.job.time_limit:g} minutes",
            },
        )
        for record in ledger.live("running")
        if record.job.time_limit is not None
        and record.started is not None
        and now - record.started + record.ran_s >= record.job.time_limit * 60
    ]


def strike_out(ledger: JobLedger) -> dict[str, dict[int, str]]:
    """Cards on which too many programs have failed, per node, and why."""
    found: dict[str, dict[int, str]] = {}
    for key, programs in ledger.strikes.items():
        node, _, card = key.rpartition("/")
        if len(programs) >= STRIKES:
            why = f"{len(programs)} different programs have failed on it in a row"
            found.setdefault(node, {})[int(card)] = why
    return found


def failures(ledger: JobLedger, node: str, cards: Mapping[int, str], now: float) -> list[LogFact]:
    """Take cards of a node out of use that are not yet, and let the gangs on them wait again."""
    new = {card: why for card, why in cards.items() if card not in ledger.failed.get(node, ())}
    if not new:
        return []
    why = "; ".join(f"card {card}: {text}" for card, text in sorted(new.items()))
    data = {"node": node, "cards": sorted(new), "why": why}
    facts = [LogFact("cards_failed", now, "", HEALTH, data)]
    for record in ledger.live("running"):
        if any(pod.node == node and {*pod.cards} & new.keys() for pod in record.pods):
            text = {"why": f"cards of {node} failed: {why}"}
            facts.append(LogFact("evicted", now, record.job.name, HEALTH, text))
    return facts

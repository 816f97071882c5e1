"""Causes of wrong losses, gradients and state: what both sides call otherwise. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.verify.bundle import Rank
from joymigrate.verify.calls import cause_of
from joymigrate.verify.cause import of_operator
from joymigrate.verify.model import Cause, Difference
from joymigrate.verify.rest_stage import OWN_ARITHMETIC, key_of


def cause_of_rest(ours: Rank, theirs: Rank, row: Difference) -> Cause:
    """Why a row of S4R failed, where both sides' calls differ, and where it arises in both sides'
    code."""
    if row.metric != "float64":
        return Cause()
    mine, other = events(ours), events(theirs)
    key = next(iter(list(mine)[row.order : row.order + 1]), None)  # judge_rest numbers them
    event, twin = (side.get(key) if key is not None else None for side in (mine, other))
    one, two = (line_of(side, row) for side in (event, twin))
    lines = (one, two) if one or two else None
    if event is None or twin is None or row.op == "given":
        return Cause(lines=lines)  # nothing was measured, or what goes into the event differs
    diff = cause_of(event.get("trace"), twin.get("trace"))
    if diff is not None:
        return Cause(diff.cause, diff.words, "diff", diff.lines)
    operator = twin.get("operator")
    if row.reason == OWN_ARITHMETIC and operator:
        name, given, line = operator["call"]
        same = [call[2] for call in event.get("trace", ()) if list(call[:2]) == [name, given]]
        return of_operator(operator)._replace(lines=(same[0] if same else one, line))
    return Cause(lines=lines)


def cause_of_gradients(ours: Rank, theirs: Rank, step: int) -> Cause:
    """What both sides call otherwise on the gradients of a step, before its optimisers take them:
    reducing, clipping, adding up. Empty where these calls are the same."""
    mine, other = events(ours), events(theirs)
    for key, event in mine.items():
        if key[:2] == ("gradients", step) and key in other:
            diff = cause_of(event.get("trace"), other[key].get("trace"))
            if diff is not None:
                return Cause(diff.cause, diff.words, "diff", diff.lines)
    return Cause()


def line_of(event: Mapping[str, Any] | None, row: Difference) -> str:
    """The line of the program that a row's value arises at: that which reads it, else the
    event's."""
    found = event or {}
    return str(found.get("lines", {}).get(row.op) or found.get("line", ""))


def events(rank: Rank) -> dict[tuple[str, int, int, str], Any]:
    """Events by their moment, in the order in which they are judged."""
    return {key_of(event): event for event in rank.json("tape.json").get("events", [])}

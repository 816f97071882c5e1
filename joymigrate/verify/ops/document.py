"""Rows of a replay as a verdict of stage S2, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.model import (
    Difference,
    Outcome,
    RecordCoverage,
    RecordStatus,
    Verdict,
    number,
    one_stage,
    place_of,
    verdict_json,
)
from joymigrate.verify.ops.call import ReplayCall

STAGE = "S2"


def brief(call: ReplayCall) -> dict[str, Any]:
    """What a call is called by in results."""
    return {
        "op": call.op,
        "overload": call.overload or "",
        "dtype": call.dtype,
        "shapes": call.shapes,
        "calls": call.calls,
        "where": call.where,
        "module": call.module,
    }


def row(result: Any) -> dict[str, Any]:
    """One `replay.Result` as JSON."""
    finding = result.finding
    return {
        **brief(result.call),
        "dtype": result.dtype or result.call.dtype,
        "case": result.case,
        "phase": result.phase,
        "level": result.level,
        "inputs": result.inputs,
        "status": finding.status.value,
        "metric": finding.metric,
        "value": number(finding.value),
        "limit": number(finding.limit),
        "target_error": number(finding.target_error),
        "reference_error": number(finding.reference_error),
        "reason": finding.reason,
    }


def verdict(rows: Sequence[Mapping[str, Any]], least: float, facts: Mapping[str, Any]) -> Verdict:
    """Fail with one failed row; inconclusive when less than `least` of the calls was compared."""
    records = tuple(difference(one, order) for order, one in enumerate(rows))
    plain = [r for r, one in zip(records, rows, strict=True) if counts(one)]
    compared = [r for r in plain if r.status.compared]
    names = tuple(dict.fromkeys(f"{r.op}: {r.reason}" for r in plain if not r.status.compared))
    share = len(compared) / len(plain) if plain else 0.0
    coverage = RecordCoverage(share, len(compared), len(plain), least, names)
    failed = [r for r in records if r.status.failed]
    outcome, reason = Outcome.PASS, None
    if failed:
        ops = list(dict.fromkeys(str(r.op) for r in failed))
        reason = Text(
            "{number} result{number_s} of {names}",
            number=len(failed),
            names=", ".join(ops[:5]) + (" …" if len(ops) > 5 else ""),
        )
        outcome = Outcome.FAIL
    elif not coverage.enough:
        outcome = Outcome.INCONCLUSIVE
        reason = Text(
            "{number} of {total} calls could be compared; {least} are needed",
            number=len(compared),
            total=len(plain),
            least=f"{least:.0%}",
        )
    left = tuple(facts.get("uncovered", ()))  # of what the bundle did not keep
    unseen = sum(int(item["count"]) for item in left)
    place = None
    if failed:
        first = rows[records.index(failed[0])].get("where")
        line = (first, first) if first else None
        place = replace(place_of(failed[0], cause=failed[0].reason), line=line)
    return one_stage(
        STAGE,
        outcome,
        coverage,
        records,
        place,
        [reason] if reason is not None else [],
        baseline={"device": "cpu", "precision": "float64 golden, recorded dtype as reference"},
        target={key: value for key, value in facts.items() if key not in ("total", "uncovered")},
        rehearsal=bool(facts.get("rehearsal")),
        covered={"operators": {"compared": len(compared), "of": len(plain) + unseen}}
        if left
        else {},
        uncovered=left,
    )


def counts(one: Mapping[str, Any]) -> bool:
    """Whether a row is one recorded call: coverage is about these, once each."""
    return bool(one["case"] == "recorded" and one["phase"] == "forward")


def difference(one: Mapping[str, Any], order: int) -> Difference:
    """A row as a record of the verdict."""
    case = "" if one["case"] == "recorded" else f"{one['case']} inputs; "
    kept = "recorded values; " if one.get("inputs") == "recorded" else ""
    text = f"{case}{kept}{one['dtype']} {one['shapes']}"
    reason = Text.join(": ", (text, one["reason"])) if one.get("reason") else text
    return Difference(
        one.get("module") or "",
        0,
        one["phase"],
        f"{one['op']}.{one['overload']}" if one["overload"] else one["op"],
        one["metric"],
        real(one.get("value")),
        real(one.get("limit")),
        RecordStatus(one["status"]),
        STAGE,
        target_error=real(one.get("target_error")),
        baseline_error=real(one.get("reference_error")),
        reason=reason,
        order=order,
    )


def real(value: Any) -> float | None:
    """A JSON number, also a non-finite one that stands as text."""
    return None if value is None else float(value)


def document(verdict: Verdict, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`joymigrate.verdict/1` with the object `operators`."""
    return {**verdict_json(verdict), "operators": {"rows": [dict(one) for one in rows]}}

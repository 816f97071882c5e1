"""A task's outcome as a `Verdict`, and as the JSON that `verify task` writes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from joymigrate.language import Text
from joymigrate.stats import Interval
from joymigrate.verify.model import (
    Difference,
    Outcome,
    RecordCoverage,
    RecordStatus,
    Verdict,
    as_json,
    number,
    one_stage,
    place_of,
    verdict_json,
)
from joymigrate.verify.task.compare import TaskComparison
from joymigrate.verify.task.judge import Judgement

STAGE = "S8"
STATUS = {
    Outcome.PASS: RecordStatus.PASS,
    Outcome.FAIL: RecordStatus.FAIL,
    Outcome.INCONCLUSIVE: RecordStatus.UNCOMPARED,
}
SHOWN_IDS = 20
KEPT_IDS = 1000  # in the JSON


def verdict(task: TaskComparison, *, rehearsal: bool = False) -> Verdict:
    """The task as a run's verdict of stage S8. Its records are the whole, fields and groups."""
    total = task.paired + sum(len(ids) for ids in task.unmatched[:2])
    limit = task.question.coverage
    coverage = RecordCoverage(task.coverage, task.paired, total, limit, list_uncompared(task))
    records = tuple(differences(task))
    evidence = Text.join("; ", task.reasons) if task.reasons else ""
    return one_stage(
        STAGE,
        task.outcome,
        coverage,
        records,
        place_of(records[0], evidence=evidence),
        task.reasons,
        rehearsal=rehearsal,
        covered={"samples": {"compared": task.paired, "of": total}},
        uncovered=tuple(left_out(task)),
    )


def left_out(task: TaskComparison) -> Iterator[dict[str, Any]]:
    """Samples that are in no pair, by their ids."""
    for side, ids in zip(("baseline", "target"), task.unmatched, strict=False):
        if ids:
            more = Text(" and {number} more", number=len(ids) - SHOWN_IDS)
            reason = Text("the {side} has none of the ids {ids}{more}", side=side,
                          ids=", ".join(ids[:SHOWN_IDS]),
                          more=more if len(ids) > SHOWN_IDS else "")  # fmt: skip
            yield {"what": "samples", "count": len(ids), "reason": reason}
    for side, count in zip(("baseline", "target"), task.repeated, strict=False):
        if count and task.question.duplicates == "first":
            reason = Text("later lines of an id in the {side} (--duplicates first)", side=side)
            yield {"what": "samples", "count": count, "reason": reason}


def document(task: TaskComparison, found: Verdict | None = None) -> dict[str, Any]:
    """`joymigrate.verdict/1` with the object `task`. `found`: its verdict, where it is known."""
    return {**verdict_json(verdict(task) if found is None else found), "task": task_json(task)}


def differences(task: TaskComparison) -> Iterator[Difference]:
    """The whole first, then every field and every group."""
    yield difference("task", task.judgement, task, task.outcome)
    for name, (raw, normal) in task.fields.items():
        one = normal or raw
        called = name if task.ranking else ""
        yield difference(f"field:{name}", one, task, one.outcome, called)
    for name, one in task.groups.items():
        yield difference(f"task:{name}", one, task, one.outcome)


def difference(
    place: str, one: Judgement, task: TaskComparison, outcome: Outcome, metric: str = ""
) -> Difference:
    """One judgement as a record: the difference and its margin, or the agreement."""
    scale = scale_of(task)
    if one.difference is not None:
        plain = "{metric} difference" if scale == 1 else "{metric} difference (percentage points)"
        called = Text(plain, metric=metric or task.metric)
        value: float | None = scale * one.difference.value
        limit: float | None = -task.question.margin
        if task.question.lower_is_better:
            limit = task.question.margin
    else:
        called = Text("agreement (percent)")
        value = 100 * one.agreement.value if one.agreement else None
        limit = task.question.agreement
    return Difference(
        place, 0, None, None, called, value, limit, STATUS[outcome], STAGE,
        reason=Text.join("; ", one.reasons) if one.reasons else "",
    )  # fmt: skip


def list_uncompared(task: TaskComparison) -> tuple[str, ...]:
    """Some ids that one side lacks."""
    return tuple([id for ids in task.unmatched[:2] for id in ids][:SHOWN_IDS])


def scale_of(task: TaskComparison) -> int:
    """100 where figures are shares and shown in percent, else 1."""
    return 100 if task.share_scale else 1


def task_json(task: TaskComparison) -> dict[str, Any]:
    """The object `task`: percent and percentage points, unless `unit` says otherwise."""
    question = task.question
    names = ("baseline", "target", "envelope")
    return {
        "metric": task.metric,
        "unit": "percent" if task.share_scale else "score",
        "margin_pp": question.margin,
        "alpha": question.alpha,
        "power": question.power,
        "required_agreement": question.agreement,
        "fields": list(question.fields),
        "normalisers": list(question.normalisers),
        "n": task.paired,
        **flat(task.judgement, scale_of(task)),
        "raw": figures_json(task.raw, task),
        "normalised": figures_json(task.normalised, task) if task.normalised else None,
        "by_field": {
            name: {
                "raw": figures_json(raw, task),
                "normalised": figures_json(normal, task) if normal else None,
            }
            for name, (raw, normal) in task.fields.items()
        },
        "by_task": {name: figures_json(one, task) for name, one in task.groups.items()},
        "samples": dict(zip(names, task.counts, strict=False)),
        "unmatched": {
            f"missing_in_{name}": {"count": len(ids), "ids": list(ids[:KEPT_IDS])}
            for name, ids in zip(names, task.unmatched, strict=False)
        },
        "duplicates": dict(zip(names, task.repeated, strict=False)),
        "malformed": {"baseline": task.malformed[0], "target": task.malformed[1]},
        "differing_references": task.differing_references,
        "common_prefix": task.prefix,
        **({"ranking": task.ranking} if task.ranking else {}),
        "reasons": list(task.reasons),
        "examples": [as_json(one) for one in task.examples],
    }


def figures_json(one: Judgement, task: TaskComparison) -> dict[str, Any]:
    """One view's verdict and figures."""
    found = {"verdict": one.outcome.value, "reasons": list(one.reasons), "n": one.n}
    return {**found, **flat(one, scale_of(task))}


def flat(one: Judgement, scale: int) -> dict[str, Any]:
    """The numbers of a judgement, scaled."""
    difference = one.difference
    return {
        "baseline": scale_percent(one.baseline, scale),
        "target": scale_percent(one.target, scale),
        "difference_pp": scale_percent(difference.value, scale) if difference else None,
        "interval_pp": (
            [scale_percent(difference.low, scale), scale_percent(difference.high, scale)]
            if difference
            else None
        ),
        "p_worse_by_margin": one.p_worse,
        "p_different": one.p_different,
        "discordant": {"lost": one.lost, "gained": one.gained},
        "agreement": interval_json(one.agreement),
        "baseline_agreement": interval_json(one.noise),
        "required_n": one.required_n,
        "clusters": one.clusters,
        "required_clusters": one.required_clusters,
        "test": one.test,
    }


def interval_json(interval: Interval | None) -> dict[str, Any] | None:
    """A share and its 95 % interval, in percent."""
    if interval is None:
        return None
    return {
        "value": scale_percent(interval.value, 100),
        "low": scale_percent(interval.low, 100),
        "high": scale_percent(interval.high, 100),
    }


def scale_percent(value: float | None, scale: int) -> float | str | None:
    """A share as percent, without the noise of its last bits; infinite ones as text."""
    if value is None or not math.isfinite(value):
        return number(value)
    return round(scale * value, 10)

"""Detectors along the data flow: sequences of operators that one fused call replaces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.chains import CallGraph, parse
from joymigrate.profile.advice.find_operators import matches_name
from joymigrate.profile.advice.rules import AdviceRule
from joymigrate.profile.capture import CapturedOperator, tensors


def detect_chain(
    subject: AdviceSubject,
    rule: AdviceRule,
    *,
    patterns: Sequence[Sequence[str]],
    phase: str | None = "forward",
    inference: bool = False,
    unless_inside: Sequence[str] = (),
    not_before: Sequence[str] = (),
    not_after: Sequence[str] = (),
    last_axis: int = 0,
    dtypes: Sequence[str] = (),
    one_line: bool = False,
) -> Iterator[Hit]:
    """Chains of operators. `unless_inside`: composites that the chip takes as a whole.

    `not_before` and `not_after`: what must not feed the first operator, or use the last one's
    result. `last_axis`: the least size of the first tensor's last axis. `dtypes`: of the first
    operator's first tensor. `one_line`: all of it was called by one line.
    """
    if inference and subject.capture.trains:
        return
    flow = CallGraph(subject.capture)
    for pattern in patterns:
        for path in flow.matches(parse(pattern), phase):
            chain = [flow.operator(call) for call in path]
            if any(set(operator.parents) & set(unless_inside) for operator in chain):
                continue
            if fed_by(flow, path[0], not_before) or feeds(flow, path[-1], not_after):
                continue
            first = next(tensors(chain[0].args), None)
            if last_axis and (
                first is None or not first["shape"] or first["shape"][-1] < last_axis
            ):
                continue
            if dtypes and (first is None or first["dtype"] not in dtypes):
                continue
            if one_line and len({operator.where for operator in chain}) > 1:
                continue
            yield place_of(chain)


def place_of(chain: list[CapturedOperator]) -> Hit:
    """A chain as a place: where its last operator was called."""
    names = "-".join(operator.op.rpartition("::")[2] for operator in chain)
    time = sum(operator.self_us / max(1, operator.calls) for operator in chain)
    place = chain[-1]
    return Hit(names, place.where, place.module, 1, time, words_of(chain))


def words_of(chain: list[CapturedOperator]) -> dict[str, str]:
    """What of a chain an example names: its mask and its dropout, where it has them."""
    masked = any(matches_name(one, ("add", "sub", "masked_fill", "where")) for one in chain)
    drops = (one for one in chain if matches_name(one, ("native_dropout", "bernoulli")))
    dropped = next(drops, None)
    rates = [one for one in dropped.args if isinstance(one, float)] if dropped else []
    rate = f"{rates[0]:g}" if rates else "rate"
    return {
        "plus_mask": " + mask" if masked else "",
        "attn_mask": ", attn_mask=mask" if masked else "",
        "dropped": f"F.dropout(p, {rate})" if dropped else "p",
        "dropout": f", dropout_p={rate}" if dropped else "",
    }


def fed_by(flow: CallGraph, call: int, names: Sequence[str]) -> bool:
    """Whether one of the calls that feed `call` (through views) has one of the names."""
    seen: set[int] = set()
    todo = [call]
    while todo and names and len(seen) < 32:
        for producer in flow.capture.stream[todo.pop()][1]:
            if producer < 0 or producer in seen:
                continue
            seen.add(producer)
            if flow.name(producer) in names:
                return True
            todo.append(producer)
    return False


def feeds(flow: CallGraph, call: int, names: Sequence[str]) -> bool:
    """Whether a direct consumer of `call` has one of the names."""
    return any(flow.name(consumer) in names for consumer in flow.consumers.get(call, ()))


def detect_many_products(
    subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str], picked: Sequence[str]
) -> Iterator[Hit]:
    """Many matrix products of one line and different heights: a loop over experts.

    Each takes rows that one of the operators in `picked` picked out. A layer that is called with
    texts of several lengths has such heights as well, of rows that nobody picked.
    """
    flow = CallGraph(subject.capture)
    by_pick = {
        number for call, (number, _) in enumerate(subject.capture.stream)
        if flow.comes_from(call, picked)
    }  # fmt: skip
    groups: dict[tuple[str | None, Any], list[CapturedOperator]] = defaultdict(list)
    for number, operator in enumerate(subject.capture.operators):
        if matches_name(operator, ops) and operator.phase == "forward" and number in by_pick:
            factors = [t["shape"] for t in tensors(operator.args) if len(t["shape"]) == 2][-2:]
            if len(factors) == 2:
                groups[(operator.where, tuple(factors[1]))].append(operator)
    for (where, _), group in groups.items():
        calls = sum(operator.calls for operator in group)
        heights = {
            [t["shape"] for t in tensors(operator.args) if len(t["shape"]) == 2][-2][0]
            for operator in group
        }
        if calls >= rule.limit("calls") and len(heights) > 1:
            time = sum(operator.self_us for operator in group)
            what = Text("{calls} products of {heights} heights", calls=calls, heights=len(heights))
            yield Hit(what, where, group[0].module, calls, time)

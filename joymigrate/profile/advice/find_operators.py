"""Detectors that look at single operators: their name, arguments, place and number."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.rules import AdviceRule
from joymigrate.profile.capture import CapturedOperator, tensors
from joymigrate.profile.cost.bound import bound_operator
from joymigrate.profile.cost.peaks import peaks_of

MOVES = ("_to_copy", "copy_", "empty*", "detach", "view", "t", "clone", "lift_fresh", "alias")


def hit(operator: CapturedOperator, said: str = "{operator}", **words: Any) -> Hit:
    """An operator as a place; `said` may name it, and what else it names are `words`."""
    what = Text(said, operator=operator.name, **words)
    return Hit(what, operator.where, operator.module, operator.calls, operator.self_us)


def matches_name(operator: CapturedOperator, patterns: Sequence[str]) -> bool:
    """Whether an operator is one of `patterns`: full names, base names, or with `*`."""
    plain = operator.name.removeprefix("aten::")
    names = (operator.name, operator.op, plain, plain.partition(".")[0])
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def detect_operators(
    subject: AdviceSubject,
    rule: AdviceRule,
    *,
    ops: Sequence[str],
    phases: Sequence[str] = (),
    inside: Sequence[str] = (),
    unless_inside: Sequence[str] = (),
    inference: bool = False,
) -> Iterator[Hit]:
    """Operators by name, from `limits.calls` on (per place and step)."""
    if inference and subject.capture.trains:
        return
    found: dict[tuple[str, str | None], list[CapturedOperator]] = defaultdict(list)
    for operator in subject.capture.operators:
        if not matches_name(operator, ops) or (phases and operator.phase not in phases):
            continue
        if unless_inside and set(operator.parents) & set(unless_inside):
            continue
        if inside and not set(operator.parents) & set(inside):
            continue
        found[(operator.name, operator.where)].append(operator)
    least = rule.limits.get("calls", 1)
    for group in found.values():
        if sum(operator.calls for operator in group) >= least:
            yield from map(hit, group)


def detect_mask_index(
    subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str]
) -> Iterator[Hit]:
    """Indexing by a boolean mask: the shape of the result, or the work, depends on data."""
    for operator in subject.capture.operators:
        if matches_name(operator, ops):
            indices = [t for t in tensors(operator.args[1:2]) if t["dtype"] in ("bool", "uint8")]
            if indices:
                yield hit(operator, "{operator} with a {dtype} mask", dtype=indices[0]["dtype"])


def detect_integer_index(
    subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str]
) -> Iterator[Hit]:
    """Indexing by integer tensors, from `limits.calls` on."""
    for operator in subject.capture.operators:
        if matches_name(operator, ops) and operator.phase != "backward":
            indices = list(tensors(operator.args[1:2]))
            whole = all(t["dtype"] not in ("bool", "uint8") for t in indices)
            if indices and whole and operator.calls >= rule.limits.get("calls", 1):
                yield hit(operator, "{operator} with {number} index tensors", number=len(indices))


def detect_dtype(
    subject: AdviceSubject, rule: AdviceRule, *, dtypes: Sequence[str]
) -> Iterator[Hit]:
    """Tensors of given types, where they are computed with (moving and viewing is left out)."""
    for operator in subject.capture.operators:
        if matches_name(operator, MOVES):
            continue
        kinds = {t["dtype"] for t in operator.tensors() if t["shape"]} & set(dtypes)
        if kinds:
            yield hit(operator, "{operator} on {types}", types=", ".join(sorted(kinds)))


def detect_namespace(
    subject: AdviceSubject, rule: AdviceRule, *, known: Sequence[str]
) -> Iterator[Hit]:
    """Operators of libraries, which somebody has to have ported."""
    own = {subject.chip.device, *known}
    for operator in subject.capture.operators:
        space = operator.op.partition("::")[0]
        if space not in own:
            advice = subject.chip.operator(operator.op.partition("::")[2])
            known_port = (
                Text("; known replacement: {to}", to=advice.to or advice.note) if advice else ""
            )
            yield hit(operator, "{operator}{port}", port=known_port)


def detect_loop(subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str]) -> Iterator[Hit]:
    """The same line calls an operator again and again on slices: an index in a Python loop."""
    found: dict[tuple[str, str | None, str | None], list[CapturedOperator]] = defaultdict(list)
    for operator in subject.capture.operators:
        if matches_name(operator, ops) and operator.where and operator.phase != "backward":
            found[(operator.op, operator.where, operator.module)].append(operator)
    for (op, where, module), group in found.items():
        calls = sum(operator.calls for operator in group)
        if calls >= rule.limit("calls") and len(group) > 1:
            time = sum(operator.self_us for operator in group)
            yield Hit(
                Text("{op} with {number} different indices", op=op, number=len(group)),
                where,
                module,
                calls,
                time,
            )


def detect_support(
    subject: AdviceSubject, rule: AdviceRule, *, statuses: Sequence[str]
) -> Iterator[Hit]:
    """Operators whose status on the chip is one of `statuses`, whatever their types."""
    if subject.support is None:
        return
    for operator in subject.capture.operators:
        support = subject.support.plain(operator)
        if support.status.value in statuses:
            named_one = subject.support.instead(operator, support)
            instead = Text("; instead: {name}", name=named_one) if named_one else ""
            yield hit(operator, "{operator}{port}", port=instead)


def detect_unsupported_dtype(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Types that no kernel of the chip is documented to take, for an operator that it has."""
    if subject.support is None:
        return
    for operator in subject.capture.operators:
        if not subject.support.plain(operator).supported or matches_name(operator, MOVES):
            continue
        typed = subject.support.typed(operator)
        if not typed.supported:
            kinds = dict.fromkeys(t["dtype"] for t in operator.tensors() if t["shape"])
            wrong = [kind for kind in kinds if kind not in typed.dtypes]
            takes = ", ".join(typed.dtypes)
            said = "{operator} on {wrong} (takes {takes})"
            yield hit(operator, said, wrong=", ".join(wrong), takes=takes)


def detect_int64(subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str]) -> Iterator[Hit]:
    """Index tensors of int64 into operators whose kernel takes int32 as well."""
    for operator in subject.capture.operators:
        if not matches_name(operator, ops) or operator.phase == "backward":
            continue
        wide = [t for t in operator.tensors() if t["dtype"] == "int64" and size(t) > 1]
        listed = subject.support.plain(operator).dtypes if subject.support is not None else ()
        many = sum(map(size, wide)) * operator.calls >= rule.limit("elements")
        if wide and many and (not listed or "int32" in listed):
            yield hit(operator, "{operator} with int64 indices")


def detect_gelu(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """GELU by the error function, whose default is that."""
    for operator in subject.capture.operators:
        if (
            matches_name(operator, ("gelu", "gelu_"))
            and operator.kwargs.get("approximate") != "tanh"
        ):
            yield hit(operator)


def time_on_chip(subject: AdviceSubject, operators: Iterable[CapturedOperator]) -> float | None:
    """The least µs of operators in a step at the chip's peaks; None where none are documented."""
    try:
        peaks = peaks_of(subject.chip)
    except JoyError:
        return None
    return sum(bound_operator(one, peaks) for one in operators)


def size(tensor: Mapping[str, Any]) -> int:
    """Elements of a tensor."""
    count = 1
    for n in tensor["shape"]:
        count *= n
    return count

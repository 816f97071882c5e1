"""Detectors that look at shapes and strides: alignment, contiguity, precision of products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.chains import CallGraph
from joymigrate.profile.advice.find_operators import hit, matches_name, size, time_on_chip
from joymigrate.profile.advice.rules import AdviceRule
from joymigrate.profile.capture import CapturedOperator, tensors
from joymigrate.profile.cost.work import size_of

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "addbmm")
HALF = ("float16", "bfloat16")


def matrices(operator: CapturedOperator) -> list[Mapping[str, Any]]:
    """The factors of a matrix product: the last two tensors of two dimensions or more."""
    found = [t for t in tensors(operator.args) if len(t["shape"]) >= 2]
    return found[-2:]


def detect_alignment(
    subject: AdviceSubject, rule: AdviceRule, *, dtypes: Sequence[str] = HALF
) -> Iterator[Hit]:
    """Inner axes of matrix products that are no multiple of `limits.elements`."""
    unit = int(rule.limit("elements"))
    for operator in subject.capture.operators:
        if not matches_name(operator, PRODUCTS) or operator.phase == "backward":
            continue
        factors = matrices(operator)
        if not factors or factors[0]["dtype"] not in dtypes:
            continue
        axes = {n for t in factors for n in t["shape"][-2:] if n > 1}
        bad = sorted(n for n in axes if n % unit)
        moved = size_of(factors, None) * operator.calls
        if bad and moved >= rule.limits.get("bytes", 0):
            sizes = ", ".join(map(str, bad))
            said = "{operator} with axes of {sizes}, not multiples of {unit}"
            yield hit(operator, said, sizes=sizes, unit=unit)


def detect_head_size(
    subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str]
) -> Iterator[Hit]:
    """Attention whose head size or length is no multiple of what the kernel works in."""
    unit = int(rule.limit("elements"))
    for operator in subject.capture.operators:
        if not matches_name(operator, ops) or operator.phase == "backward":
            continue
        heads = [t["shape"] for t in tensors(operator.args) if len(t["shape"]) == 4]
        if heads and (heads[0][-1] % unit or heads[0][-2] % unit):
            shape = Text(
                "length {length}, head size {size}", length=heads[0][-2], size=heads[0][-1]
            )
            yield hit(
                operator, "{operator}: {shape}, not multiples of {unit}", shape=shape, unit=unit
            )


def detect_vocabulary(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Embedding tables whose number of rows is no multiple of what matrix products like."""
    unit = int(rule.limit("elements"))
    for operator in subject.capture.operators:
        if not matches_name(operator, ("embedding",)) or operator.phase == "backward":
            continue
        table = next(tensors(operator.args), None)
        if table is not None and table["shape"][0] >= rule.limit("rows"):
            rows = table["shape"][0]
            if rows % unit and heads_of(subject, rows):
                yield hit(operator, "{rows} rows, not a multiple of {unit}", rows=rows, unit=unit)


def heads_of(subject: AdviceSubject, rows: int) -> bool:
    """Whether a matrix product has the vocabulary as an axis: only then does its size matter."""
    return any(
        rows in t["shape"]
        for operator in subject.capture.operators
        if matches_name(operator, PRODUCTS)
        for t in matrices(operator)
    )


def contiguous(tensor: Mapping[str, Any]) -> bool:
    """Whether strides are those of a row-major tensor."""
    expected = 1
    for n, step in zip(reversed(tensor["shape"]), reversed(tensor["stride"]), strict=False):
        if n != 1:
            if step != expected:
                return False
            expected *= n
    return True


def detect_copies(
    subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str], after: Sequence[str]
) -> Iterator[Hit]:
    """Lines that copy what a change of layout made: `limits.bytes` a step or more.

    Fewer count as well where they are `limits.share` of the step's least time on the chip.
    """
    flow = CallGraph(subject.capture)
    makers = {c for c in range(len(subject.capture.stream)) if flow.name(c) in after}
    lines: dict[str | None, dict[int, int]] = {}
    for number, made in subject.capture.stream:
        operator = subject.capture.operators[number]
        if not matches_name(operator, ops) or operator.phase == "backward":
            continue
        tensor = next(tensors(operator.args), None)
        if next(iter(made), -1) in makers and tensor is not None and not contiguous(tensor):
            line = lines.setdefault(operator.where, {})
            line[number] = line.get(number, 0) + 1
    often = Counter(number for number, _ in subject.capture.stream)  # of all steps of a trace
    for where, counted in lines.items():
        copies = [replace(one, calls=max(1, round(one.calls * calls / often[number])))
                  for number, calls in counted.items()
                  for one in (subject.capture.operators[number],)]  # fmt: skip
        moved = sum(one.calls * 2 * size_of(one.args[:1], None) for one in copies)
        if moved < rule.limit("bytes") and share_on_chip(subject, copies) < rule.limit("share"):
            continue
        what = Text(
            "{operator} of {shape}, {moved} MB moved", operator=copies[0].name,
            shape=next(copies[0].tensors())["shape"], moved=f"{moved / 1e6:.1f}",
        )  # fmt: skip
        modules = {one.module for one in copies}
        yield Hit(what, where, modules.pop() if len(modules) == 1 else None,
                  sum(one.calls for one in copies), sum(one.self_us for one in copies))  # fmt: skip


def share_on_chip(subject: AdviceSubject, operators: list[CapturedOperator]) -> float:
    """Operators' part of the step's least time at the chip's peaks; 0 where none are documented."""
    whole = time_on_chip(subject, subject.capture.operators)
    return (time_on_chip(subject, operators) or 0.0) / whole if whole else 0.0


def detect_noncontiguous(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Inputs that the chip's kernel is documented to want contiguous, and are not."""
    if subject.support is None:
        return
    for operator in subject.capture.operators:
        support = subject.support.plain(operator)
        if not support.contiguous:
            continue
        wanted = {plain(name) for name in support.contiguous}
        for name, value in subject.support.named_arguments(operator):
            loose = [t for t in tensors([value]) if t["stride"] and not contiguous(t)]
            if plain(name) in wanted and loose:
                yield hit(
                    operator, "{operator}: {name} must be contiguous and is copied", name=name
                )


def plain(name: str) -> str:
    """`scaled_grads` and `scaledGrads` are one name."""
    return name.replace("_", "").casefold()


def detect_single_precision(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Matrix products in float32 in a step that uses no mixed precision at all."""
    products = [o for o in subject.capture.operators if matches_name(o, (*PRODUCTS, "convolution"))]
    if not products or subject.capture.header.get("autocast"):
        return
    kinds = {t["dtype"] for o in products for t in tensors(o.args)}
    if kinds & set(HALF):
        return
    for operator in products:
        if operator.phase != "backward":
            flops = 2 * max((size(t) for t in matrices(operator)), default=0)
            if flops * operator.calls >= rule.limit("elements"):
                yield hit(operator, "{operator} in float32")


def detect_convolution_norm(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """A convolution with a bias that the normalisation after it takes away again."""
    flow = CallGraph(subject.capture)
    for call in range(len(subject.capture.stream)):
        operator = flow.operator(call)
        if operator.phase == "backward" or not matches_name(
            operator, ("convolution", "_convolution")
        ):
            continue
        bias = operator.args[2] if len(operator.args) > 2 else None
        norms = [flow.operator(c) for c in flow.consumers.get(call, ())]
        if isinstance(bias, dict) and any(normalises(norm) for norm in norms):
            yield Hit(
                "convolution with a bias before a batch norm", operator.where, operator.module
            )


def normalises(operator: CapturedOperator) -> bool:
    """Whether an operator is a batch norm that takes the mean of the batch away.

    In evaluation it takes away the mean that was learnt, and the bias must stay.
    """
    norms = {
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "cudnn_batch_norm",
    }
    if not matches_name(operator, tuple(norms)):
        return False
    training = [one for one in operator.args if isinstance(one, bool)]
    return operator.op.endswith("_with_update") or not training or training[0]

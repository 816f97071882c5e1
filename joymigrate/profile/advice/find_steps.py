"""Detectors for what differs from step to step, and for what lies between the operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.find_host import transfer
from joymigrate.profile.advice.find_operators import hit, matches_name
from joymigrate.profile.advice.rules import AdviceRule
from joymigrate.profile.capture import CapturedOperator, tensors
from joymigrate.profile.cost.work import size_of


def detect_shapes(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """A model that was called with more than `limits.shapes` shapes over the run.

    In a short run from `limits.few` on, where `limits.share` of the calls brought a new one.
    """
    shapes, calls, name = subject.capture.shapes
    short = shapes >= rule.limit("few") and shapes >= rule.limit("share") * calls
    if short or shapes > rule.limit("shapes"):
        what = Text("{name}: {shapes} shapes in {calls} calls", name=name, shapes=shapes,
                    calls=calls)  # fmt: skip
        yield Hit(what)


def detect_channels_last(
    subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str]
) -> Iterator[Hit]:
    """Images whose channels lie next to each other in memory."""
    for operator in subject.capture.operators:
        if matches_name(operator, ops):
            first = next(operator.tensors(), None)
            if first is not None and channels_last(first):
                yield hit(operator)


def channels_last(tensor: Any) -> bool:
    """Whether a tensor of four or five dimensions has its second one innermost."""
    shape: list[int] = tensor["shape"]
    stride: list[int] = list(tensor.get("stride") or ())
    if len(shape) not in (4, 5) or len(stride) != len(shape) or shape[1] < 2:
        return False
    return stride[1] == 1 and stride[-1] == shape[1] and any(n > 1 for n in shape[2:])


def detect_small_uploads(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """At least `limits.calls` copies to the device of at most `limits.bytes` each in a step."""
    found: list[CapturedOperator] = []
    for operator in subject.capture.operators:
        if not matches_name(operator, ("_to_copy", "copy_", "_copy_from")):
            continue
        ends = transfer(operator)
        if ends is None or ends[0] != "cpu" or ends[1] == "cpu":
            continue
        source = [t for t in tensors(operator.args) if t["device"].startswith("cpu")]
        if source and size_of(source[:1], None) <= rule.limit("bytes"):
            found.append(operator)
    if sum(operator.calls for operator in found) >= rule.limit("calls"):
        yield from map(hit, found)


def detect_host_gap(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Time of the shortest timed step that lies in no operator, loader or collection."""
    header = subject.capture.header
    steps = header.get("step_us") or []
    if not steps or not subject.capture.timed:
        return
    spans = header.get("spans") or {}
    inside = sum(operator.self_us for operator in subject.capture.operators)
    known = inside + float(spans.get("loader_us") or 0.0) + float(header.get("gc_us") or 0.0)
    gap = min(steps) - known
    if gap >= rule.limit("us") and gap / min(steps) >= rule.limit("share"):
        what = Text(
            "{gap} of {step} ms in no operator", gap=f"{gap / 1000:.1f}",
            step=f"{min(steps) / 1000:.1f}",
        )  # fmt: skip
        yield Hit(what, self_us=gap)

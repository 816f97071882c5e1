"""Detectors for what the host does: synchronising, launching, loading, collecting, optimising."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.find_layout import contiguous
from joymigrate.profile.advice.find_operators import hit, matches_name, time_on_chip
from joymigrate.profile.advice.rules import AdviceRule
from joymigrate.profile.capture import CapturedOperator, tensors
from joymigrate.profile.cost.work import has_no_kernel, is_view
from joymigrate.profile.table import EMPTY

# Device work that moves, as profilers of several vendors name it.
WAYS = {
    "down": re.compile(r"DtoH|D2H|Device[ _-]*to[ _-]*Host", re.IGNORECASE),
    "up": re.compile(r"HtoD|H2D|Host[ _-]*to[ _-]*Device", re.IGNORECASE),
}


def detect_collector(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Time that Python's garbage collector takes of a step."""
    us = float(subject.capture.header.get("gc_us") or 0.0)
    if us >= rule.limit("us"):
        yield Hit(Text("{us} ms per step", us=f"{us / 1000:.1f}"), self_us=us)


def detect_host_call(subject: AdviceSubject, rule: AdviceRule, *, call: str) -> Iterator[Hit]:
    """Calls that are no operators: synchronize, empty_cache."""
    for entry, count in (subject.capture.header.get("calls") or {}).items():
        name, _, where = entry.partition("@")
        if name == call and count >= rule.limits.get("calls", 1):
            yield Hit(name, where if where != "None" else None, None, count)


def detect_reads(
    subject: AdviceSubject, rule: AdviceRule, *, ops: Sequence[str], phases: Sequence[str]
) -> Iterator[Hit]:
    """Values that the host reads: from `limits.calls` per step on, over all places.

    An optimiser's own reads are left out: its counters lie on the host.
    """
    reads = [o for o in subject.capture.operators if matches_name(o, ops) and o.phase in phases]
    if sum(operator.calls for operator in reads) >= rule.limit("calls"):
        yield from map(hit, reads)


def detect_small(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Lines that launch one operator `limits.calls` times a step, each shorter than its launch.

    By the chip's peaks: `limits.us` are more than its calls can take. An optimiser's step is left
    to the rules about optimisers.
    """
    groups: dict[tuple[str | None, str | None, str], list[CapturedOperator]] = {}
    for operator in subject.capture.operators:
        if operator.phase != "optimiser":
            key = (operator.where, operator.module, operator.op)
            groups.setdefault(key, []).append(operator)
    often = {key: group for key, group in groups.items()
             if sum(one.calls for one in group) >= rule.limit("calls")}  # fmt: skip
    lines: dict[tuple[str | None, str | None], list[CapturedOperator]] = {}
    for (where, module, _), group in often.items():
        calls = sum(one.calls for one in group)
        us = time_on_chip(subject, group)
        if not has_no_kernel(group[0]) and us is not None and us < rule.limit("us") * calls:
            lines.setdefault((where, module), []).extend(group)
    for (where, module), found in lines.items():
        calls = sum(one.calls for one in found)
        names = sorted({one.op.partition("::")[2] for one in found})
        what = Text(
            "{calls} launches a step ({names}), each shorter than {limit} µs at the chip's peaks",
            calls=calls, names=", ".join(names[:4]), limit=f"{rule.limit('us'):.0f}",
        )  # fmt: skip
        yield Hit(what, where, module, calls, sum(one.self_us for one in found))


def detect_launch(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """A step whose operators fill only part of its time: the host does not keep up."""
    capture = subject.capture
    busy = sum(o.self_us for o in capture.operators)
    steps = capture.header.get("step_us") or []
    if not steps or not busy or not capture.timed:
        return
    calls = sum(o.calls for o in capture.operators)
    gap = 1 - busy / capture.step_us
    if gap >= rule.limit("share") and calls >= rule.limit("calls"):
        what = Text(
            "operators fill {gap} % of the step ({calls} calls)",
            gap=f"{100 * (1 - gap):.0f}",
            calls=calls,
        )
        yield Hit(what, calls=calls, self_us=gap * capture.step_us)


def optimisers(subject: AdviceSubject) -> list[Mapping[str, Any]]:
    """What the recording says of the program's optimisers."""
    return list(subject.capture.header.get("optimisers") or ())


def detect_optimiser_loop(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """An optimiser told to update one tensor after the other."""
    for entry in optimisers(subject):
        alone = entry.get("foreach") is False and not entry.get("fused")
        if alone and entry.get("tensors", 0) >= rule.limit("tensors"):
            what = Text("{optimiser} updates {tensors} tensors one by one",
                        optimiser=entry["class"], tensors=entry["tensors"])  # fmt: skip
            # A trace does not say what was asked for, and on a CPU it is the default.
            if entry.get("seen") and not subject.capture.device_us:
                what += Text(", as torch does on a CPU unless told otherwise")
            yield Hit(what, calls=entry["tensors"])


def detect_optimiser_fusable(
    subject: AdviceSubject, rule: AdviceRule, *, classes: Mapping[str, str]
) -> Iterator[Hit]:
    """An optimiser that the chip's package has in fused form."""
    for entry in optimisers(subject):
        fused = classes.get(entry["class"])
        if fused and not entry.get("fused") and entry.get("tensors", 0) >= rule.limit("tensors"):
            name, own = entry["class"], f"aten::_fused_{entry['class'].lower()}_"
            native = subject.support.judge.judge(own, EMPTY).support.supported
            now = f"torch.optim.{name}(model.parameters(), lr=lr)"
            other = now.replace(f"torch.optim.{name}", fused)
            better = f"{now[:-1]}, fused=True)" if native else other
            words = {"now": now, "better": better, "fused": fused}
            yield Hit(f"{name} → {fused}", calls=entry["tensors"], words=words)


def detect_zeroed(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Gradients filled with zeros rather than dropped: tensors of the shapes that are updated.

    Masks, counters, and what a module's constructor fills have other shapes, or are a small part.
    """
    updated = shapes_of(o for o in subject.capture.operators if o.phase == "optimiser")
    groups: dict[str | None, list[CapturedOperator]] = {}
    for operator in subject.capture.operators:
        if matches_name(operator, ("zero_", "_foreach_zero_")) and operator.phase == "other":
            groups.setdefault(operator.where, []).append(operator)
    for group in groups.values():
        found = shapes_of(group) & updated
        if found and sum(map(prod, found)) >= rule.limit("share") * sum(map(prod, updated)):
            filled = sum(o.calls * max(1, len(list(o.tensors()))) for o in group)
            what = Text("{filled} gradients filled with zeros", filled=filled)
            yield Hit(what, group[0].where, None, filled)


def shapes_of(operators: Iterable[CapturedOperator]) -> set[tuple[int, ...]]:
    """The shapes of their tensors, numbers left out."""
    return {tuple(t["shape"]) for o in operators for t in o.tensors() if t["shape"]}


def detect_transfer(subject: AdviceSubject, rule: AdviceRule, *, direction: str) -> Iterator[Hit]:
    """Copies between host and device inside a step; upwards those that the host waits for.

    Of the device's own work those that take `limits.share` of its time.
    """
    for copy in subject.capture.copies:
        share = copy.device_us / subject.capture.device_us if subject.capture.device_us else 0.0
        if WAYS[direction].search(copy.name) and share >= rule.limit("share"):
            what = Text("{name} by {operator}: {share} % of the device's time", name=copy.name,
                        operator=copy.operator or "nobody", share=f"{100 * share:.0f}")  # fmt: skip
            yield Hit(what, calls=copy.calls, self_us=copy.device_us)
    for operator in subject.capture.operators:
        if not matches_name(operator, ("_to_copy", "copy_", "_copy_from")):
            continue
        ends = transfer(operator)
        if ends is None or operator.calls < rule.limits.get("calls", 1):
            continue
        source, target = ends
        down = target == "cpu" and source != "cpu"
        up = source == "cpu" and target != "cpu"
        asynchronous = operator.kwargs.get("non_blocking") is True or True in operator.args[1:]
        *_, read = tensors(operator.args)
        strided = asynchronous and not contiguous(read)  # gathered on the host first
        waits = up and (strided or not asynchronous)
        if (direction == "down" and down) or (direction == "up" and waits):
            shape = read["shape"]
            if shape or direction == "down":
                said = "{operator} of {shape} from {source} to {target}"
                if strided:
                    said += ", which is not contiguous: the host gathers it first"
                yield hit(operator, said, shape=shape, source=source, target=target)


def transfer(operator: CapturedOperator) -> tuple[str, str] | None:
    """Device types that a copy goes from and to."""
    found = [t["device"].split(":")[0] for t in tensors(operator.args)]
    if operator.op.endswith("copy_") and len(found) > 1:
        return found[1], found[0]
    device = operator.kwargs.get("device")
    target = device.get("torch") if isinstance(device, dict) else None
    if not found:
        return None
    out = next((t["device"].split(":")[0] for t in tensors(operator.outputs)), None)
    return found[0], (target or out or found[0]).split(":")[0]


def detect_host_made(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Tensors made on the host and moved, where they could be made on the device.

    A buffer that the program fills through a view, or pins, is not of this kind.
    """
    makers = ("zeros*", "ones*", "arange*", "full*", "rand*", "eye*", "linspace*", "empty*")
    fills = ("fill_", "zero_", "normal_", "uniform_", "random_")
    capture = subject.capture
    memory: dict[int, int] = {}  # call → the call that made the memory of its output
    written = set()
    for at, (number, made) in enumerate(capture.stream):
        operator = capture.operators[number]
        first = memory.get(made[0], made[0]) if made else -1
        if is_view(operator.op, operator.overload):
            memory[at] = first
        elif operator.op.endswith("_") and not matches_name(operator, fills):
            memory[at] = first
            written.add(first)
        ends = transfer(operator) if matches_name(operator, ("_to_copy", "copy_")) else None
        if not made or ends is None or ends[0] != "cpu" or ends[1] == "cpu":
            continue
        source = memory.get(made[-1], made[-1])
        if source < 0 or source in written:
            continue
        maker = capture.operators[capture.stream[source][0]]
        if matches_name(maker, (*makers, *fills)):
            what = Text("{source} on the host, then moved", source=maker.name)
            yield Hit(what, operator.where, operator.module)


def detect_environment(
    subject: AdviceSubject,
    rule: AdviceRule,
    *,
    variable: str,
    values: Sequence[str],
    unset: bool = False,
) -> Iterator[Hit]:
    """An environment variable with a value that costs time (or without the one that helps)."""
    environment = subject.capture.header.get("environment") or {}
    variables = environment.get("variables") or {}
    value = variables.get(variable)
    if value is None:
        on_chip = subject.capture.header.get("device") == subject.chip.device
        if unset and on_chip and not subject.capture.header.get("rehearsal"):
            yield Hit(Text("{variable} is not set", variable=variable))
        return
    if any(fnmatch.fnmatchcase(str(value), pattern) for pattern in values):
        yield Hit(f"{variable}={value}")

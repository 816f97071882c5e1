"""Detectors for data loading: samples per second that the step needs against those delivered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from joymigrate.language import Text
from joymigrate.profile.advice.advise import AdviceSubject, Hit
from joymigrate.profile.advice.rules import AdviceRule
from joymigrate.profile.recorder.loading import libraries

SPAN = "loader_us"


@dataclass(frozen=True, slots=True)
class Supply:
    """Times of one step in µs: waiting in the loader's `next`, and all of it. `batch` in samples;
    None where the trace does not say."""

    wait_us: float
    step_us: float
    batch: float | None

    @property
    def share(self) -> float:
        """The part of the step in which everything waits for data."""
        return min(1.0, self.wait_us / self.step_us)

    def words(self, stalls: bool) -> str:
        """The verdict in a line."""
        size, unit = (self.batch, "samples") if self.batch else (1.0, "batches")
        rest = max(self.step_us - self.wait_us, 1.0)
        needed, delivered = (size * 1e6 / us for us in (rest, max(self.wait_us, 1.0)))
        verdict = (
            "data loading stalls the chip by {share} of the step"
            if stalls
            else "data loading keeps up: the chip waits {share} of the step"
        )
        return Text(
            "{verdict}: {needed} {unit}/s needed (step without the wait {rest} ms), {delivered} "
            "{unit}/s delivered (next() {wait} ms)",
            verdict=Text(verdict, share=f"{self.share:.0%}"),
            unit=unit,
            needed=f"{needed:.3g}",
            delivered=f"{delivered:.3g}",
            rest=f"{rest / 1000:.1f}",
            wait=f"{self.wait_us / 1000:.1f}",
        )


def supply(subject: AdviceSubject) -> Supply | None:
    """What the recording says; None where no loader was seen or no step was timed."""
    header, step = subject.capture.header, subject.capture.step_us
    wait = float((header.get("spans") or {}).get(SPAN, 0.0))
    if not wait or not step:
        return None
    return Supply(wait, step, header.get("samples") or None)


def find_libraries(subject: AdviceSubject) -> dict[str, str]:
    """Known libraries of the recording with what is to be done about each on the chip."""
    names = {str(name) for name in subject.capture.header.get("imports") or ()}
    seen = {operator.name for operator in subject.capture.operators}
    for name, entry in libraries().items():
        patterns = entry.get("operators", ())
        if any(fnmatchcase(op, pattern) for pattern in patterns for op in seen):
            names.add(name)
    return {name: describe(subject, name) for name in sorted(names & set(libraries()))}


def describe(subject: AdviceSubject, name: str) -> str:
    """One library in a line: whose time was measured, and the chip's advice."""
    parts: list[str] = [Text("{name} is used", name=name)]
    if libraries()[name].get("gpu"):
        parts.append("it works on the GPU, whose time this is: measure again with what replaces it")
    advice = subject.chip.import_advice(name)
    if advice is not None and advice.note:
        parts.append(advice.note)
    return Text.join("; ", parts)


def is_stalled(found: Supply | None, rule: AdviceRule) -> bool:
    """Whether waiting is above the rule's limits."""
    if found is None:
        return False
    return found.share >= rule.limit("share") or found.wait_us >= rule.limit("us")


def detect_stall(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Data loading that the step waits for."""
    found = supply(subject)
    if found is None or not is_stalled(found, rule):
        return
    yield Hit(found.words(stalls=True), self_us=found.wait_us)
    yield from (Hit(line) for line in find_libraries(subject).values())


def detect_supply(subject: AdviceSubject, rule: AdviceRule) -> Iterator[Hit]:
    """Data loading that keeps up, or that was not measured though a library for it is used."""
    found = supply(subject)
    if is_stalled(found, rule):
        return
    lines = list(find_libraries(subject).values())
    if found is not None:
        yield Hit(found.words(stalls=False), self_us=found.wait_us)
    elif lines:
        yield Hit("no time in a loader was seen in the timed steps: no verdict")
    yield from (Hit(line) for line in lines)

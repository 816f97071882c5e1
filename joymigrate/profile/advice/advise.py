"""Applies the rules to recordings and profiles, and ranks what they find."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import Text
from joymigrate.profile.advice.rules import AdviceRule
from joymigrate.profile.capture import Capture

EMPTY = Capture(Path(), {}, ())
Detect = Callable[..., Iterable["Hit"]]
TEXTS = ("problem", "action", "before", "after")
MOST_PLACES = 20  # per rule; the rest is counted


@dataclass(frozen=True, slots=True)
class Hit:
    """One place that a rule found. `calls` and `self_us` are of one step."""

    what: str
    where: str | None = None
    module: str | None = None
    calls: int = 1
    self_us: float = 0.0
    words: Mapping[str, str] = field(default_factory=dict)  # what the rule's texts name


@dataclass(frozen=True, slots=True)
class Advice:
    """One rule's advice on one recording: the places it applies to, the worst first."""

    rule: AdviceRule
    places: tuple[Hit, ...]
    more: int  # places that are not listed
    share: float | None  # of the step's time; None without times
    trace: str
    basis: str = "structural"  # or "chip_profile": times of the chip were seen

    @property
    def calls(self) -> int:
        """Calls of one step, over the listed places."""
        return sum(place.calls for place in self.places)

    @property
    def grade(self) -> str:
        """How well it is known: from a profile of the chip, else from what its source says."""
        return "measured" if self.basis == "chip_profile" else "documented"


@dataclass(frozen=True, slots=True)
class AdviceSubject:
    """What detectors look at. `support` (a `ChipSupport`) answers for operators on the chip."""

    capture: Capture
    chip: Chip
    support: Any = None
    profile: Any = None  # a profile made on the chip, for rules that need one


@cache
def detectors() -> Mapping[str, Detect]:
    """Every function `detect_*` of the files of this folder, by the rest of its name."""
    found: dict[str, Detect] = {}
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if info.name.startswith("find_"):
            module = importlib.import_module(f"{package}.{info.name}")
            found |= {
                name.removeprefix("detect_"): value
                for name, value in vars(module).items()
                if name.startswith("detect_")
            }
    return found


def advise(
    subject: AdviceSubject, rules: Sequence[AdviceRule], *, needs: str = "trace"
) -> Iterator[Advice]:
    """What the rules say of one recording."""
    for rule in rules:
        if rule.needs != needs:
            continue
        parameters = dict(rule.detect)
        by = str(parameters.pop("by", ""))
        detect = detectors().get(by)
        if detect is None:
            raise JoyError(
                f"no detector '{by}'.{did_you_mean(by, detectors())}",
                where=f"{rule.file} {rule.id}",
            )
        hits = merge_hits(detect(subject, rule, **parameters))
        if hits:
            yield sum_hits(hits, fill_words(rule, hits[0].words), subject)


def fill_words(rule: AdviceRule, words: Mapping[str, str]) -> AdviceRule:
    """The rule with what was found in its texts."""
    texts: dict[str, Any] = {key: Text.of(getattr(rule, key)).filled(**words) for key in TEXTS}
    return replace(rule, **texts) if words else rule


def merge_hits(hits: Iterable[Hit]) -> list[Hit]:
    """Hits of the same place as one, the costly first."""
    found: dict[tuple[str, str | None], Hit] = {}
    for hit in hits:
        key = (hit.what, hit.where)
        if old := found.get(key):
            calls, us = old.calls + hit.calls, old.self_us + hit.self_us
            hit = replace(old, calls=calls, self_us=us)
        found[key] = hit
    return sorted(found.values(), key=lambda h: (-h.self_us, -h.calls, h.where or "~"))


def sum_hits(hits: list[Hit], rule: AdviceRule, subject: AdviceSubject) -> Advice:
    """The advice with its share of the step's time."""
    times_us = [hit.self_us for hit in hits]
    step_us = subject.capture.step_us if subject.capture.timed else 0.0
    share: float | None = sum(times_us) / step_us if step_us else None
    if subject.profile is not None:
        share = subject.profile.share(times_us)
    listed = hits[:MOST_PLACES]
    name = subject.profile.path if subject.profile is not None else subject.capture.path
    basis = "structural" if subject.profile is None else "chip_profile"
    bounded = None if share is None else min(1.0, share)
    return Advice(rule, tuple(listed), len(hits) - len(listed), bounded, name.name, basis)


def rank(advice: Iterable[Advice]) -> list[Advice]:
    """Errors first, then by time, then by calls."""
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(advice, key=lambda a: (order[a.rule.level], -(a.share or 0), -a.calls, a.rule.id))

"""Seeded schedules of faults: which request to a fake backend goes wrong, and how."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean

KINDS: dict[str, str] = {
    "refuse": "the connection is dropped without an answer",
    "status_500": "500 instead of an answer",
    "status_503": "503 without Retry-After",
    "busy": "429 with Retry-After: back-pressure, not a failure",
    "error_after_200": "200, then an error object as the first event",
    "error_midway": "an error object in the middle of the stream",
    "truncate": "the stream ends in order, but too early",
    "missing_finish": "[DONE] without a finish_reason",
    "cut": "the connection closes in the middle of an event",
    "reset": "the connection is reset in the middle of the stream",
    "hang": "nothing is ever sent",
    "hang_midway": "the stream stops and the connection stays open",
    "drip": "events come slowly, but they come",
    "invalid_json": "an event that is not JSON",
    "garbage": "the text turns into !!!!!!!!",
    "status_400": "every question is a bad request",
    "status_401": "the key is not accepted",
    "status_404": "the path or the model is not there",
    "redirect": "302 to a page for people to sign in",
    "html": "200 with a page for people instead of an answer",
    "no_body": "200 without a body",
    "no_content": "204",
    "bare_object": "200 with {}",
    "wrong_type": "the right answer, said to be plain text",
    "silent": "an answer without a word",
    "refusing": "the model declines to answer",
    "short": "the text ends after its first token",
    "other_text": "another model answers",
    "slow": "the answer comes late, but whole",
}
HARMLESS = ("drip", "busy", "slow")  # what the gateway must not count as a failure
MIDWAY = (
    "error_midway",
    "truncate",
    "missing_finish",
    "cut",
    "reset",
    "hang_midway",
    "invalid_json",
    "garbage",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a schedule: `share` of the requests number `first` to `last`."""

    kind: str
    share: float = 1.0
    first: int = 1
    last: int | None = None

    def covers(self, number: int) -> bool:
        """Whether request `number` (from 1) can be hit."""
        return number >= self.first and (self.last is None or number <= self.last)


@dataclass(slots=True)
class Schedule:
    """The faults of one backend. Equal seeds give equal faults for equal request numbers."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0
    name: str = ""

    def of(self, number: int) -> tuple[str | None, random.Random]:
        """What happens to request `number`, and a generator for the details."""
        rng = random.Random(f"{self.seed} {self.name} {number}")
        for fault in self.faults:
            if fault.covers(number) and rng.random() < fault.share:
                return fault.kind, rng
        return None, rng


def parse(raw: Any, where: str) -> tuple[Fault, ...]:
    """Faults from YAML: `[{kind: reset, share: 0.01, first: 100, last: 900}, …]`."""
    if not isinstance(raw, list):
        raise JoyError(f"faults are a list, got {raw!r}", where=where, help=HELP)
    return tuple(one(item, where) for item in raw)


HELP = "for example `faults: [{kind: reset, share: 0.01}]`; see docs/drill.md"
KEYS = ("kind", "share", "first", "last")


def one(raw: Any, where: str) -> Fault:
    """One fault, checked."""
    if isinstance(raw, str):
        raw = {"kind": raw}
    if not isinstance(raw, Mapping) or "kind" not in raw:
        raise JoyError(f"a fault has a kind, got {raw!r}", where=where, help=HELP)
    for key in raw:
        if key not in KEYS:
            raise JoyError(
                f"unknown key '{key}' of a fault.{did_you_mean(str(key), KEYS)}",
                where=where,
                help=HELP,
            )
    kind, share = str(raw["kind"]), raw.get("share", 1.0)
    if kind not in KINDS:
        raise JoyError(
            f"unknown fault '{kind}'.{did_you_mean(kind, KINDS)}",
            where=where,
            help=f"one of {', '.join(KINDS)}",
        )
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise JoyError(f"share is above 0 and at most 1, got {share!r}", where=where, help=HELP)
    first, last = raw.get("first", 1), raw.get("last")
    whole = all(isinstance(value, int) for value in (first, last if last is not None else 1))
    if not whole or (last is not None and last < first):
        raise JoyError(
            f"first and last are request numbers, got {first!r} and {last!r}",
            where=where,
            help=HELP,
        )
    return Fault(kind, float(share), first, last)


@dataclass(frozen=True, slots=True)
class Drill:
    """A whole drill: load, faults by role, and what of the gateway is set differently.

    `gap_seconds` lies between the events of a stream; `gateway` are sections of gateway.yaml.
    """

    requests: int = 1000
    concurrency: int = 16
    stream_share: float = 0.8
    tokens: int = 24
    gap_seconds: float = 0.0
    seed: int = 0
    primary: tuple[Fault, ...] = ()
    standby: tuple[Fault, ...] = ()
    gateway: Mapping[str, Any] | None = None


def load(path: Path) -> Drill:
    """Read a schedule file."""
    from joymigrate.chips import read_yaml

    if not path.is_file():
        raise JoyError("no such schedule", where=str(path), help=HELP)
    raw = read_yaml(path)
    if not isinstance(raw, Mapping):
        raise JoyError("a schedule is a mapping", where=str(path), help=HELP)
    known = Drill.__slots__
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), known)}", where=str(path), help=HELP
            )
        if key in ("primary", "standby"):
            values[key] = parse(value, f"{path} {key}")
        elif key == "gateway":
            values[key] = value
        else:
            values[key] = positive(key, value, path)
    return Drill(**values)


def positive(key: str, value: Any, path: Path) -> float | int:
    """A number that makes sense for `key`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise JoyError(f"{key} is a number, got {value!r}", where=str(path), help=HELP)
    whole = key in ("requests", "concurrency", "tokens", "seed")
    if whole and (value != int(value) or (value < 1 and key != "seed")):
        raise JoyError(f"{key} is a whole number above 0", where=str(path), help=HELP)
    return int(value) if whole else float(value)

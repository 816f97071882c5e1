"""Streams of outcomes for the simulation: synthetic ones from a rate, recorded ones from a file.

A stream is an iterator of `UpstreamOutcome`: a run of successes, or one failure.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError

RUN = 1_000_000  # the longest run of successes that is handed over at once


@dataclass(frozen=True, slots=True)
class UpstreamOutcome:
    """`count` successes in a row, or one failure. `time` is in seconds where it was recorded."""

    failure: str | None
    count: int = 1
    time: float | None = None
    instance: str = ""


def bernoulli(rate: float, rng: random.Random) -> Iterator[UpstreamOutcome]:
    """Independent failures at `rate`, for ever."""
    if rate <= 0.0:
        while True:
            yield UpstreamOutcome(None, RUN)
    log_pass = math.log1p(-rate) if rate < 1.0 else 0.0
    while True:
        passes = int(math.log(1.0 - rng.random()) / log_pass) if rate < 1.0 else 0
        while passes > RUN:
            yield UpstreamOutcome(None, RUN)
            passes -= RUN
        if passes:
            yield UpstreamOutcome(None, passes)
        yield UpstreamOutcome("synthetic")


def resample(
    record: Sequence[UpstreamOutcome], block: int, rng: random.Random
) -> Iterator[UpstreamOutcome]:
    """Blocks of a recorded stream in random order, for ever: bursts inside a block stay whole."""
    while True:
        start = rng.randrange(max(1, len(record) - block + 1))
        yield from record[start : start + block]


def read(path: Path, upstream: str | None = None) -> list[UpstreamOutcome]:
    """A recorded stream: the gateway's request log (jsonl), a CSV, or a text of 0s and 1s.

    JSON lines and CSV rows have `failure` (empty or null for a success), and optionally `time`
    (seconds), `upstream` and `instance`. In a text 1 is a failure.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JoyError(
            f"cannot read the recorded stream: {error}",
            where=str(path),
            help="give a .jsonl, .csv or text file",
        ) from None
    if path.suffix == ".csv":
        rows: list[dict[str, object]] = [dict(row) for row in csv.DictReader(text.splitlines())]
        found = [parse(row, f"{path}:{number + 2}") for number, row in enumerate(rows)]
    elif path.suffix in (".jsonl", ".json", ".ndjson"):
        found = [
            parse(decode(line, f"{path}:{number + 1}"), f"{path}:{number + 1}")
            for number, line in enumerate(text.splitlines())
            if line.strip()
        ]
    else:
        found = [("", digit(mark, path)) for mark in text if not mark.isspace()]
    kept = [outcome for name, outcome in found if upstream in (None, name)]
    if not kept:
        raise JoyError(
            "the recorded stream has no requests" + (f" of '{upstream}'" if upstream else ""),
            where=str(path),
            help="name one of its upstreams with --upstream",
        )
    return kept


def decode(line: str, where: str) -> dict[str, object]:
    """One JSON line as a mapping."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise JoyError(f"not valid JSON: {error}", where=where, help="correct the line") from None
    if not isinstance(row, dict):
        raise JoyError(f"a line is an object, got {line[:40]!r}", where=where, help="correct it")
    return row


def parse(row: dict[str, object], where: str) -> tuple[str, UpstreamOutcome]:
    """The upstream's name and the outcome of one row."""
    if "failure" not in row:
        raise JoyError(
            f"a row needs 'failure', got {', '.join(map(str, row))}",
            where=where,
            help="see docs/how-to/gateway.md, 'The request log'",
        )
    failure = row["failure"]
    try:
        time = float(str(row["time"])) if row.get("time") not in (None, "") else None
    except ValueError:
        raise JoyError(
            f"'time' is a number of seconds, got {row['time']!r}", where=where, help="correct it"
        ) from None
    failed = failure not in (None, "", "0", 0, False, "null", "ok")
    outcome = UpstreamOutcome(
        str(failure) if failed else None, 1, time, str(row.get("instance") or "")
    )
    return str(row.get("upstream") or ""), outcome


def digit(mark: str, path: Path) -> UpstreamOutcome:
    """One character of a text of 0s (success) and 1s (failure)."""
    if mark not in "01":
        raise JoyError(
            f"a text stream has only 0 and 1, got {mark!r}",
            where=str(path),
            help="or give a .jsonl or .csv file with a 'failure' column",
        )
    return UpstreamOutcome("recorded" if mark == "1" else None)

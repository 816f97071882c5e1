"""Reads files of samples and pairs them by id as they stream past, in whatever order they lie.

Held in memory: a hash of every id, and the samples whose partner has not come yet; nothing more
for files in the same order.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError

DUPLICATES = ("error", "first", "number")
KEYS = ("prediction", "score", "tokens")


class AbsentKey:
    """What stands for a key that a sample does not have."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = AbsentKey()


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: what one side said about one input. Keys that are not there are `ABSENT`."""

    id: str
    prediction: Any = ABSENT
    reference: Any = ABSENT
    score: Any = ABSENT
    tokens: Any = ABSENT
    task: str | None = None
    line: int = 0
    cluster: str = ""  # samples that hang together; of one prompt, where nothing else is said


def read(path: Path) -> Iterator[Sample]:
    """The samples of a JSONL file (or `.jsonl.gz`); a bad line is an error that names it."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield sample(line, f"{path}:{number}", number)
    except (OSError, EOFError) as error:
        what = getattr(error, "strerror", None) or error
        raise JoyError(f"cannot read the samples: {what}", where=str(path)) from None


def sample(line: bytes, where: str, number: int) -> Sample:
    """One line as a sample."""
    shape = '{"id": "42", "prediction": …}'
    try:
        raw = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise JoyError(f"not a JSON line: {error}", where=where, help=shape) from None
    if not isinstance(raw, dict):
        raise JoyError(f"not an object but {type(raw).__name__}", where=where, help=shape)
    name = raw.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise JoyError(f"a sample needs an id, got {name!r}", where=where, help=shape)
    if not any(key in raw for key in KEYS):
        known = ", ".join(raw)
        raise JoyError(
            f"a sample needs one of {', '.join(KEYS)}; it has {known}", where=where, help=shape
        )
    score = raw.get("score", ABSENT)
    if score is not ABSENT and (isinstance(score, bool) or not isinstance(score, int | float)):
        raise JoyError(f"a score is a number, got {score!r}", where=where)
    if isinstance(score, float) and not math.isfinite(score):
        help = "repair or leave out the sample: a mean over it would be no number either"
        raise JoyError(f"a score is a finite number, got {score!r}", where=where, help=help)
    task = raw.get("task")
    return Sample(
        str(name),
        raw.get("prediction", ABSENT),
        raw.get("reference", ABSENT),
        score,
        raw.get("tokens", ABSENT),
        None if task is None else str(task),
        number,
        str(raw.get("cluster", name)),
    )


@dataclass(slots=True)
class Join:
    """Pairs the samples of several files. After iterating, `counts` and `unmatched` are final.

    `duplicates`: error; first (later ones of an id are counted and left out); number (the first
    of one side goes with the first of the other, and so on; one id is one cluster).
    """

    paths: Sequence[Path]
    duplicates: str = "error"
    counts: list[int] = field(init=False)
    repeated: list[int] = field(init=False)
    unmatched: dict[str, list[Sample | None]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.paths)
        self.repeated = [0] * len(self.paths)

    def __iter__(self) -> Iterator[tuple[Sample, ...]]:
        seen: dict[bytes, int] = {}
        streams: list[Iterator[Sample] | None] = [read(path) for path in self.paths]
        while any(streams):
            for side, stream in enumerate(streams):
                one = next(stream, None) if stream is not None else None
                if one is None:
                    streams[side] = None
                    continue
                found = self.placed(side, one, seen)
                if found is not None:
                    yield found
        for side, path in enumerate(self.paths):
            if not self.counts[side]:
                raise JoyError(
                    "there is no sample in this file",
                    where=str(path),
                    help="one JSON object per line; did the run that wrote it end early?",
                )

    def placed(self, side: int, one: Sample, seen: dict[bytes, int]) -> tuple[Sample, ...] | None:
        """Put one sample beside its partners; the whole row once it is complete."""
        self.counts[side] += 1
        key = one.id
        mark = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        bit = 1 << side
        if seen.get(mark, 0) & bit:
            self.repeated[side] += 1
            if self.duplicates == "error":
                raise JoyError(
                    f"the id '{key}' occurs twice",
                    where=f"{self.paths[side]}:{one.line}",
                    help="--duplicates first counts its first line, --duplicates number pairs the "
                    "first with the first, the second with the second",
                )
            if self.duplicates == "first":
                return None
        while seen.get(mark, 0) & bit:
            key += "\0"
            mark = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        seen[mark] = seen.get(mark, 0) | bit
        row = self.unmatched.setdefault(key, [None] * len(self.paths))
        row[side] = one
        complete = tuple(sample for sample in row if sample is not None)
        if len(complete) < len(row):
            return None
        del self.unmatched[key]
        return complete

    def missing(self, side: int) -> list[str]:
        """Ids that this side does not have and another does."""
        return [key.rstrip("\0") for key, row in self.unmatched.items() if row[side] is None]

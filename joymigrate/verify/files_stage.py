"""S5F: files that both programs wrote (`--outputs`). No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joymigrate.language import Text
from joymigrate.verify.judge import ErrorSeries, Judge, Key
from joymigrate.verify.model import Difference, Phase, RecordStatus
from joymigrate.verify.text_numbers import columns, distances
from joymigrate.verify.watch_stage import ALONE, CHOSEN, UNTOLD, first_only
from joymigrate.verify.written_files import MOST_FILES

STAGE = "S5F"


@dataclass(slots=True)
class WrittenFiles:
    """What was judged of the files, and what was not."""

    judge: Judge
    chosen: bool = False  # the program may have chosen otherwise by rounding
    rows: list[Difference] = field(default_factory=list)
    uncovered: list[dict[str, Any]] = field(default_factory=list)
    compared: int = 0
    of: int = 0

    def leave_out(self, name: str, reason: Any) -> None:
        """A file that was not compared."""
        self.uncovered.append(
            {"what": "files", "count": 1, "reason": Text.join(": ", (name, reason))}
        )


def judge_files(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], judge: Judge, chosen: bool = False
) -> WrittenFiles:
    """Every file of the baseline by the target's of the same name."""
    made = WrittenFiles(judge, chosen)
    a, b = ours.get("files", {}), theirs.get("files", {})
    made.of = len(a)
    matched = ours.get("matched", {})
    for name in ours.get("patterns", ()):
        if not matched.get(name, len(a)):
            made.leave_out(name, "the baseline wrote no such file")
        elif matched.get(name, 0) > MOST_FILES:
            made.leave_out(name, "more files than are kept")
    for order, (name, mine) in enumerate(a.items()):
        other = b.get(name)
        if other is None and not theirs:
            made.leave_out(name, "the target was replayed without --outputs")
        elif other is None:
            old = name in theirs.get("stale", ())
            reason = "it is older than the target's run" if old else "the target does not write it"
            made.rows.append(row(name, "", RecordStatus.FAIL, None, reason, order))
            made.compared += 1
        else:
            rows = list(of_file(name, mine, other, order, made))
            made.compared += bool(rows)
            made.rows += rows
    for name in sorted(b.keys() - a.keys()):
        made.leave_out(name, "only the target writes it")
    made.rows = first_only(made.rows)
    return made


def of_file(
    name: str, mine: Mapping[str, Any], other: Mapping[str, Any], order: int, made: WrittenFiles
) -> Iterator[Difference]:
    """One file."""
    if mine["kind"] != other["kind"]:
        reason = Text("{golden} became {target}", golden=mine["kind"], target=other["kind"])
        yield row(name, "", RecordStatus.FAIL, None, reason, order)
    elif mine["kind"] == "arrays":
        yield from of_arrays(name, mine["arrays"], other["arrays"], order, made)
    elif mine["kind"] == "text":
        yield from of_text(name, mine["lines"], other["lines"], order, made)
    elif mine.get("sha256") and mine.get("sha256") == other.get("sha256"):
        yield row(name, "", RecordStatus.IDENTICAL, 0.0, None, order)
    else:
        made.leave_out(
            name, Text("its bytes differ, and it can't be read ({why})", why=mine["why"])
        )


def of_arrays(
    name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], order: int, made: WrittenFiles
) -> Iterator[Difference]:
    """Arrays by their names."""
    for key, mine in ours.items():
        other = theirs.get(key)
        if other is None:
            yield row(
                name, key, RecordStatus.FAIL, None, "the target's file has no such array", order
            )
        elif mine["shape"] != other["shape"]:
            words = Text(
                "shape {golden} became {target}", golden=mine["shape"], target=other["shape"]
            )
            yield row(name, key, RecordStatus.FAIL, None, words, order)
        elif "sha256" in mine and mine["sha256"] == other.get("sha256"):
            yield row(name, key, RecordStatus.IDENTICAL, 0.0, None, order)
        elif "sketch" not in mine or "sketch" not in other:
            yield row(name, key, RecordStatus.FAIL, None, "the contents differ", order)
        elif mine["nonfinite"] != other["nonfinite"]:
            words = Text(
                "{target} values are not finite, {golden} in the baseline",
                target=other["nonfinite"],
                golden=mine["nonfinite"],
            )
            yield row(name, key, RecordStatus.FAIL, None, words, order)
        else:
            yield from judge_distance(name, key, distance(mine, other), order, made)
    for key in theirs.keys() - ours.keys():
        yield row(
            name, key, RecordStatus.WARN, None, "only the target's file has this array", order
        )


def distance(mine: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Relative L2 distance by sketches."""
    a, b = np.asarray(mine["sketch"]), np.asarray(other["sketch"])
    scale = max(float(mine["norm"]), 1e-30)
    gap = max(float(np.linalg.norm(a - b)), abs(float(mine["norm"]) - float(other["norm"])))
    return min(1e300, gap / scale)


def of_text(
    name: str, ours: list[str], theirs: list[str], order: int, made: WrittenFiles
) -> Iterator[Difference]:
    """Text: the same words on as many lines, and numbers that agree."""
    if len(ours) != len(theirs):
        words = Text("{golden} lines became {target}", golden=len(ours), target=len(theirs))
        yield row(name, "lines", RecordStatus.FAIL, None, words, order)
        return
    mine, other = columns(ours), columns(theirs)
    words_differ = {c.template for c in mine} != {c.template for c in other}
    plain = [(a, b) for a, b in zip(ours, theirs, strict=True) if not has_number(a) and a != b]
    if words_differ or plain:
        at = f"'{plain[0][0][:60]}' → '{plain[0][1][:60]}'" if plain else ""
        words = Text("the words differ {at}", at=at)
        yield row(name, "text", RecordStatus.FAIL, None, words, order)
        return
    yield from judge_distance(name, "numbers", number_distance(ours, theirs), order, made)


def number_distance(ours: list[str], theirs: list[str]) -> float:
    """The largest relative distance of two texts' numbers."""
    mine, other = columns(ours), columns(theirs)
    found = [
        error
        for column, numbers in mine.items()
        if not column.measures and column in other
        for _, error in distances(numbers, other[column], rounded=False).points
    ]
    return min(max(found, default=0.0), 1e300)


def observe_files(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[Key, ErrorSeries]:
    """How far every file is from the baseline's, array by array."""
    found: dict[Key, ErrorSeries] = {}
    there = theirs.get("files", {})
    for name, mine in ours.get("files", {}).items():
        other = there.get(name, {})
        if mine["kind"] != other.get("kind"):
            continue
        if mine["kind"] == "text":
            found["file", f"{name} numbers"] = single(
                number_distance(mine["lines"], other["lines"])
            )
        for key, array in mine.get("arrays", {}).items():
            twin = other["arrays"].get(key, {})
            if "sketch" in array and "sketch" in twin:
                found["file", f"{name} {key}"] = single(distance(array, twin))
    return found


def single(error: float) -> ErrorSeries:
    """A series of one error."""
    return ErrorSeries([(0, error)])


def has_number(line: str) -> bool:
    """Whether a line has a number of its own."""
    return bool(columns([line]))


def judge_distance(
    name: str, key: str, error: float, order: int, made: WrittenFiles
) -> Iterator[Difference]:
    """By the distance; nothing where it can't be told."""
    decided = made.judge.decide(("file", f"{name} {key}"), single(error))
    if decided.at is not None:
        status = RecordStatus.WARN if made.chosen else RecordStatus.FAIL
        reason = CHOSEN if made.chosen else "the results differ"
        yield row(name, key, status, error, reason, order, decided.limit)
    elif error and decided.untold <= 0:
        made.leave_out(name, UNTOLD if made.judge.nulls else ALONE)
    else:
        status = RecordStatus.IDENTICAL if error == 0 else RecordStatus.PASS
        yield row(name, key, status, error, None, order, decided.limit)


def row(
    name: str,
    key: str,
    status: RecordStatus,
    value: float | None,
    reason: Any,
    order: int,
    limit: float | None = None,
) -> Difference:
    """One value of a file."""
    return Difference(
        module=name,
        call=0,
        phase=Phase.OUTPUT.value,
        op=key or "file",
        metric="written",
        value=value,
        limit=limit,
        status=status,
        stage=STAGE,
        reason=reason,
        order=order,
    )

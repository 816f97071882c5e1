"""S5F: files that both programs wrote (`--outputs`). No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from joymigrate.language import Text
from joymigrate.verify.findings import Findings, by_step, keep_first
from joymigrate.verify.judge import ErrorSeries, Judge, Key
from joymigrate.verify.model import Difference, Phase, RecordStatus
from joymigrate.verify.text_numbers import columns, distances
from joymigrate.verify.watch_stage import CHOSEN, is_untold, tell
from joymigrate.verify.written_files import MOST_FILES

STAGE = "S5F"


def judge_files(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], judge: Judge, found: Findings
) -> list[Difference]:
    """Every file of the baseline by the target's of the same name."""
    a, b = ours.get("files", {}), theirs.get("files", {})
    found.recorded["files"] = len(a)
    matched = ours.get("matched", {})
    for name in ours.get("patterns", ()):
        if not matched.get(name, len(a)):
            leave_out(found, name, "the baseline wrote no such file")
        elif matched.get(name, 0) > MOST_FILES:
            leave_out(found, name, "more files than are kept")
    made: list[Difference] = []
    for order, (name, mine) in enumerate(a.items()):
        other = b.get(name)
        if other is None and not theirs:
            leave_out(found, name, "the target was replayed without --outputs")
            continue
        if other is None:
            old = name in theirs.get("stale", ())
            reason = "it is older than the target's run" if old else "the target does not write it"
            rows = [row(name, "", RecordStatus.FAIL, None, reason, order)]
        else:
            rows = list(of_file(name, mine, other, order, judge, found))
        found.compared["files"] += bool(rows)
        made += rows
    for name in sorted(b.keys() - a.keys()):
        leave_out(found, name, "only the target writes it")
    found.doubts += [row for row in made if row.reason == CHOSEN]
    return keep_first(made, by_step)


def leave_out(found: Findings, name: str, reason: Any) -> None:
    """A file that was not compared."""
    found.leave_out("files", 1, Text.join(": ", (name, reason)))


def of_file(
    name: str,
    mine: Mapping[str, Any],
    other: Mapping[str, Any],
    order: int,
    judge: Judge,
    found: Findings,
) -> Iterator[Difference]:
    """One file."""
    if mine["kind"] != other["kind"]:
        reason = Text("{golden} became {target}", golden=mine["kind"], target=other["kind"])
        yield row(name, "", RecordStatus.FAIL, None, reason, order)
    elif mine["kind"] == "arrays":
        yield from of_arrays(name, mine["arrays"], other["arrays"], order, judge, found)
    elif mine["kind"] == "text":
        yield from of_text(name, mine["lines"], other["lines"], order, judge, found)
    elif mine.get("sha256") and mine.get("sha256") == other.get("sha256"):
        yield row(name, "", RecordStatus.IDENTICAL, 0.0, None, order)
    else:
        why = Text("its bytes differ, and it can't be read ({why})", why=mine["why"])
        leave_out(found, name, why)


def of_arrays(
    name: str,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    order: int,
    judge: Judge,
    found: Findings,
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
            yield from judge_distance(name, key, distance(mine, other), order, judge, found)
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
    name: str, ours: list[str], theirs: list[str], order: int, judge: Judge, found: Findings
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
    error = number_distance(ours, theirs)
    yield from judge_distance(name, "numbers", error, order, judge, found)


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
    name: str, key: str, error: float, order: int, judge: Judge, found: Findings
) -> Iterator[Difference]:
    """By the distance; nothing where it can't be told."""
    series, chosen = single(error), found.may_choose
    decided = judge.decide(("file", f"{name} {key}"), series)
    if not is_untold(judge, found, series, decided, name):
        same = RecordStatus.IDENTICAL if error == 0 else RecordStatus.PASS
        blank = row(name, key, same, error, None, order)
        yield tell(blank, decided, CHOSEN if chosen else "the results differ", chosen)


def row(
    name: str,
    key: str,
    status: RecordStatus,
    value: float | None,
    reason: Any,
    order: int,
) -> Difference:
    """One value of a file."""
    return Difference(
        module=name,
        phase=Phase.OUTPUT.value,
        op=key or "file",
        metric="written",
        value=value,
        status=status,
        stage=STAGE,
        reason=reason,
        order=order,
    )

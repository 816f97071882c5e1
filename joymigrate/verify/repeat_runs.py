"""The baseline's other runs: the same program on the same machine, with every result moved by
rounding. What they make otherwise, a target may make otherwise as well. No torch.

`verify record` makes two of them and keeps what they saw: series of every step, printed numbers,
files, and how far each record of a step was. They are the null of every limit (`judge.py`). Of a
long program they see the recorded steps, and more where they fit a time: what comes after has no
null and is not judged by one.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.verify.bundle import Bundle, Rank, open_bundle
from joymigrate.verify.bundle.write import MANIFEST, RankWriter, complete
from joymigrate.verify.calls import same_value
from joymigrate.verify.files_stage import observe_files
from joymigrate.verify.free import compare_step, record_key, resolution, without_numbers
from joymigrate.verify.identity import owner_of
from joymigrate.verify.judge import ErrorSeries, Judge, Key
from joymigrate.verify.module_stage import other_numbers
from joymigrate.verify.printed_stage import observe_prints
from joymigrate.verify.rest_stage import UNREPEATED, key_of
from joymigrate.verify.series import observe_run
from joymigrate.verify.settings import RecordingSettings
from joymigrate.verify.tolerance_file import JudgeLimits
from joymigrate.verify.watch_ranks import whole_steps

AGAIN = "again.json"
RUNS = 2
SHARED = ("loss", "update", "growth", "weight", "held")  # series whose siblings share their nulls
ROLES = ("other", "table")  # of values that come from elsewhere; others follow from a run
ANEW = 1e-3  # relative: a plain number that is another one, and not the same but for rounding
SECONDS = 30.0  # of the first run's time that each of the others is given, or the recorded steps


def judge_of(
    rank: Rank,
    limits: JudgeLimits,
    outputs: Mapping[str, Any],
    coarser: float = 1.0,
    processes: int = 1,
) -> Judge:
    """The judge of one process out of so many, which share one rate of false alarms: its other
    runs, held against the first, are the null, for a target that rounds so many times coarser."""
    runs, end = runs_of(rank), ended_at(rank)
    watch, lines = rank.json("watch.json"), rank.json("printed.json").get("lines", [])
    nulls = [
        share_siblings(observe_run(whole_steps(watch, end), whole_steps(run["watch"], end), {}))
        | observe_prints(lines, run["printed"])
        | observe_files(outputs, run.get("outputs", {}))
        | dict(null_records(rank, run["tables"]))
        for run in runs
        if watch and run["watch"]
    ]
    tests = sum(map(len, watch.get("series", {}).values())) + len(lines)
    tests += max((sum(map(len, run["tables"].values())) for run in runs), default=0)
    tables = [rank.table(step) for step in rank.steps]
    kinds = {pair for table in tables for pair in zip(table.kind, table.dtype, strict=True)}
    grain = max((resolution(dtype) for _, dtype in kinds), default=0.0)
    weights = max((resolution(dtype) for kind, dtype in kinds if kind == "param"), default=0.0)
    tests, usual = max(tests, 1) * processes, usual_error(rank, runs)
    return Judge(limits, nulls, tests, usual, coarser, grain, end, weights)


def share_siblings(series: Mapping[Key, ErrorSeries]) -> dict[Key, ErrorSeries]:
    """Every loss with the largest errors of all, and a weight's series with those of the same
    weight of modules that are called alike but for numbers: where rounding flips a choice in a
    model, one run shows it in this loss, layer or expert, and another in the next."""
    most: dict[Key, dict[int, float]] = {}  # of all siblings, by step
    for (kind, name), one in series.items():
        if kind in SHARED:
            shared = most.setdefault((kind, without_numbers(name)), {})
            for at, error in one.points:
                shared[at] = max(shared.get(at, 0.0), error)
    points = {key: sorted(shared.items()) for key, shared in most.items()}
    return {
        (kind, name): replace(one, points=points[kind, without_numbers(name)])
        if kind in SHARED
        else one
        for (kind, name), one in series.items()
    }


def usual_error(rank: Rank, runs: Sequence[Mapping[str, Any]]) -> float:
    """What the models' outputs are usually off by in the other runs: a single number that happened
    to move less in them will not do so in every clean run."""
    found: list[float] = []
    for step in rank.steps:
        kinds = rank.table(step).kind
        for errors in zip(*(run["tables"].get(str(step), ()) for run in runs), strict=False):
            found.append(max((error or 0.0 for error in errors), default=0.0))
        found = [e for e, kind in zip(found, kinds, strict=False) if kind == "out" and e]
        break  # later steps have drifted
    return min(statistics.median(found), 1.0) if found else 0.0


def null_records(
    rank: Rank, tables: Mapping[str, Sequence[float | None]]
) -> Iterator[tuple[Key, ErrorSeries]]:
    """The records of the recorded steps."""
    for step in map(int, tables):
        types = rank.table(step).dtype
        for row, error in enumerate(tables[str(step)]):
            if error is not None:
                yield (
                    record_key(step, row),
                    ErrorSeries([(step, error)], floor=resolution(types[row])),
                )


def settings_of(
    settings: RecordingSettings, folder: Path, number: int, until: int | None = None
) -> RecordingSettings:
    """The settings of another run of a baseline, which ends behind the step `until`."""
    made = replace(settings, bundle=str(folder), batches_bytes=0, arguments=(), quiet=True)
    return replace(made, again=True, noise=1.0, noise_seed=number, until=until)


def last_step(first_run: Bundle, last: int, seconds: float) -> int | None:
    """The step behind which the other runs end, where the first run took so many seconds; None
    where they go to the program's own end. `last` is the last recorded step."""
    steps = int(first_run.ranks[0].json("watch.json").get("steps", 0))
    until = max(last, int(steps * SECONDS / max(seconds, SECONDS)))
    return until if until < steps - 1 else None


def open_run(folder: Path, code: int, first_run: Bundle, until: int | None) -> Bundle | None:
    """Another run, which ended with this exit code; None where that is an error and not all of its
    processes were through with the step `until`, behind which it was to be ended."""
    if code == 0:
        return open_bundle(folder)
    try:
        again = open_bundle(folder)
    except JoyError:
        return None
    steps = [int(rank.json("watch.json").get("steps", 0)) - 1 for rank in again.ranks]
    through = until is not None and all(step > until for step in steps)
    return again if through and len(steps) == len(first_run.ranks) else None


def ended_at(rank: Rank) -> float:
    """The first step that the other runs did not see; infinite where they saw all."""
    return float(rank.json(AGAIN).get("end") or math.inf)


def runs_of(rank: Rank) -> list[dict[str, Any]]:
    """What the other runs saw; empty for a baseline that was run once."""
    found: list[dict[str, Any]] = rank.json(AGAIN).get("runs", [])
    return found


def describe_run(rank: Rank, again: Rank) -> dict[str, Any]:
    """What is kept of another run of one process."""
    steps = set(rank.steps) & set(again.steps)
    return {
        "watch": again.json("watch.json"),
        "printed": again.json("printed.json").get("lines", []),
        "tables": {str(step): table_errors(rank, again, step) for step in sorted(steps)},
    }


def table_errors(rank: Rank, again: Rank, step: int) -> list[float | None]:
    """How far each record of a step is from the first run's; None where the other has none."""
    found = compare_step(rank.table(step), again.table(step), {}).errors
    return [None if math.isnan(e) else min(float(e), 1e300) for e in found]


def find_unrepeated(ours: Rank, again: Rank, end: float = math.inf) -> dict[str, Any]:
    """What is another one for other reasons than rounding: values that events are made from and
    plain numbers in their calls (by position), and numbers that models are called with. And weights
    that are others when their model is first called: training has made them. From the step `end` on
    what is known of the same place in earlier steps holds."""
    found: dict[str, Any] = {"events": {}, "numbers": {}}
    weights, others = (one.program.get("weights", {}) for one in (ours, again))
    # Of a run that ended before a model was called nobody knows.
    ended: dict[str, Any] | None = {} if end < math.inf else None
    found["weights"] = sorted(
        name
        for name, one in weights.items()
        if (other := others.get(name, ended)) is not None and other.get("sha256") != one["sha256"]
    )
    there = {key_of(event): event for event in again.json("tape.json").get("events", [])}
    by_place: dict[tuple[str, int, str], dict[str, list[int]]] = {}
    for event in ours.json("tape.json").get("events", []):
        kind, step, number, where = moment = key_of(event)
        twin = there.get(moment)
        one = of_event(event, twin) if twin is not None else {}
        if step >= end:
            one = by_place.get((kind, number, where), {})
        by_place[kind, number, where] = one
        if one:
            found["events"][repr(moment)] = one
    given = [one.program.get("scalars", {}) for one in (ours, again)]
    for entry in ours.json("forced.json").get("lessons", []):
        place = f"{entry['root']}:{entry['path']}"
        mine, other = (side.get(place, {}) for side in given)
        if numbers := other_numbers(mine, other):
            key = entry["root"], entry["path"], entry["number"]
            found["numbers"][repr(key)] = sorted(numbers)
    return found


def own_arithmetic(twins: Sequence[Rank]) -> dict[str, dict[str, float]]:
    """How far the values of each event are from float64 in other runs, at the most: where they are
    made by cancelling, rounding in between moves them by far more than their type."""
    found: dict[str, dict[str, float]] = {}
    for event in (e for twin in twins for e in twin.json("tape.json").get("events", [])):
        known = found.setdefault(repr(key_of(event)), {})
        for name, sink in event.get("sinks", {}).items():
            if "native" in sink:
                known[name] = max(known.get(name, 0.0), sink["native"])
    return {key: known for key, known in found.items() if known}


def find_trained(rank: Rank) -> Callable[[str], bool]:
    """Tells which weights training has made, of those that a baseline had at first calls: those
    that are watched beside it (`held`), of modules of which another run has any weight otherwise:
    in 16 bits some of them come to the same by chance."""
    series = rank.json("watch.json").get("series", {})
    held = {name.removeprefix("held ") for name in series if name.startswith("held ")}
    if runs_of(rank):
        moved = {owner_of(name)[0] for name in rank.json(UNREPEATED).get("weights", ())}
        held = {name for name in held if owner_of(name)[0] in moved}
    return held.__contains__


def of_event(event: Mapping[str, Any], twin: Mapping[str, Any]) -> dict[str, list[int]]:
    """The same of one event."""
    sides = [one.get("externals", []) for one in (event, twin)]
    made: dict[str, list[int]] = {"given": [], "constants": []}
    if [e["role"] for e in sides[0]] == [e["role"] for e in sides[1]]:
        made["given"] = [
            number
            for number, (mine, other) in enumerate(zip(*sides, strict=True))
            if is_given_anew(mine, other)
        ]
    numbers = [one.get("constants", ()) for one in (event, twin)]
    if len(numbers[0]) == len(numbers[1]):
        pairs = enumerate(zip(*numbers, strict=True))
        made["constants"] = [n for n, (mine, other) in pairs if not same_value(mine, other, ANEW)]
    return {key: value for key, value in made.items() if value}


def is_given_anew(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a value that an event is made from is another one in a second run, and not the same
    but for rounding: a tensor that is made of a measured time is."""
    if "norm" in mine and "norm" in other:
        return not same_value(mine["norm"], other["norm"], ANEW)
    return mine["role"].partition(":")[0] in ROLES and mine["content"] != other["content"]


def keep(bundle: Bundle, others: Sequence[Bundle], until: int | None = None) -> None:
    """Write into a bundle what its program's other runs saw; they ended behind step `until`."""
    for rank in bundle.ranks:
        twins = [one for b in others for one in b.ranks if one.number == rank.number]
        if len(twins) < len(others):
            continue
        runs = [describe_run(rank, twin) for twin in twins]
        if rank is bundle.ranks[0] and until is None:
            for run, other in zip(runs, others, strict=True):
                run["outputs"] = other.outputs
        facts = {k: v for k, v in rank.manifest.items() if k not in ("schema", "files")}
        writer = RankWriter(rank.folder, facts)
        writer.files = dict(rank.manifest["files"])
        writer.add_json(AGAIN, {"runs": runs, "end": None if until is None else until + 1})
        end = math.inf if until is None else until + 1
        told = {**find_unrepeated(rank, twins[0], end), "native": own_arithmetic(twins)}
        writer.add_json(UNREPEATED, told)
        writer.commit()
    told = json.loads((Path(bundle.path) / MANIFEST).read_bytes())
    outputs = bundle.outputs or None
    left = ("schema", "complete", "ranks", "files")
    complete(bundle.path, {k: v for k, v in told.items() if k not in left}, outputs)

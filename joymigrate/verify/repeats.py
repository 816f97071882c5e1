"""What a program does not repeat when it is run twice on one machine: values made of the clock, of
a process's number, of addresses. No torch.

`verify record --twice` runs the original again and keeps which of its values are others then. A
target's may be others as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.bundle.write import MANIFEST, RankWriter, complete
from joymigrate.verify.module_stage import other_numbers
from joymigrate.verify.rest_model import UNREPEATED
from joymigrate.verify.rest_stage import key_of
from joymigrate.verify.series_errors import ALIKE, first_other_input
from joymigrate.verify.text_numbers import columns, errors

ROLES = ("other", "table", "made")  # of values that come from elsewhere; others follow from a run


def find_unrepeated(ours: Rank, again: Rank) -> dict[str, Any]:
    """What differs between two recordings of one program: values that events are made from and
    plain numbers in their calls (by position), numbers that models are called with, inputs, and
    what is printed."""
    found: dict[str, Any] = {"events": {}, "numbers": {}, "inputs": [], "printed": []}
    there = {key_of(event): event for event in again.json("tape.json").get("events", [])}
    for event in ours.json("tape.json").get("events", []):
        twin = there.get(key_of(event))
        if twin is not None and (one := of_event(event, twin)):
            found["events"][repr(key_of(event))] = one
    calls = {call_of(entry): entry for entry in again.json("forced.json").get("lessons", [])}
    for entry in ours.json("forced.json").get("lessons", []):
        start = f"{entry['path']}#0"
        twin_call = calls.get(call_of(entry), {})
        given = [e.get("scalars", {}).get(start, {}) for e in (entry, twin_call)]
        if other := other_numbers(*given):
            found["numbers"][repr(call_of(entry))] = sorted(other)
    series = again.json("watch.json").get("series", {})
    for name, items in ours.json("watch.json").get("series", {}).items():
        if name.startswith("input ") and first_other_input(items, series.get(name, ())) is not None:
            found["inputs"].append(name)
    printed = [columns(one.json("printed.json").get("lines", ())) for one in (ours, again)]
    for column, numbers in printed[0].items():
        if max(errors(numbers, printed[1].get(column, ())), default=0.0) > ALIKE:
            found["printed"].append([column.template, column.index])
    return found


def of_event(event: Mapping[str, Any], twin: Mapping[str, Any]) -> dict[str, list[int]]:
    """The same of one event."""
    sides = [one.get("externals", []) for one in (event, twin)]
    made: dict[str, list[int]] = {"given": [], "constants": []}
    if [e["role"] for e in sides[0]] == [e["role"] for e in sides[1]]:
        made["given"] = [
            number
            for number, (mine, other) in enumerate(zip(*sides, strict=True))
            if mine["role"].partition(":")[0] in ROLES and mine["content"] != other["content"]
        ]
    numbers = [one.get("constants", ()) for one in (event, twin)]
    if len(numbers[0]) == len(numbers[1]):
        pairs = enumerate(zip(*numbers, strict=True))
        made["constants"] = [n for n, (mine, other) in pairs if mine != other]
    return {key: value for key, value in made.items() if value}


def call_of(entry: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Which taught call this is."""
    return entry["root"], entry["path"], entry["number"]


def keep(bundle: Bundle, again: Bundle) -> int:
    """Write into a bundle what it does not repeat; returns how many values that are."""
    count = 0
    for rank in bundle.ranks:
        twin = next((one for one in again.ranks if one.number == rank.number), None)
        if twin is None:
            continue
        found = find_unrepeated(rank, twin)
        lists = [value for one in found["events"].values() for value in one.values()]
        count += sum(
            map(len, [*lists, *found["numbers"].values(), found["inputs"], found["printed"]])
        )
        facts = {k: v for k, v in rank.manifest.items() if k not in ("schema", "files")}
        writer = RankWriter(rank.folder, facts)
        writer.files = dict(rank.manifest["files"])
        writer.add_json(UNREPEATED, found)
        writer.commit()
    told = json.loads((Path(bundle.path) / MANIFEST).read_bytes())
    outputs = bundle.outputs or None
    left = ("schema", "complete", "ranks", "files")
    complete(bundle.path, {k: v for k, v in told.items() if k not in left}, outputs)
    return count

"""A bundle's contents for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from joymigrate.verify.crash import exit_words


def render(document: Mapping[str, Any]) -> str:
    """The whole text."""
    return "\n".join(lines(document)) + "\n"


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """What was run, what was kept, and the tables that were asked for."""
    state = "complete" if document["complete"] else "cut short: what was flushed"
    stop = document.get("stopped")
    if stop:
        state = f"cut short at step {stop['step']}: {stop['why']}"
    if document.get("exit_code"):
        state = f"{state}; the program ended with {exit_words(document['exit_code'])}"
    size = f"{document['bytes'] / 1e6:.1f} MB"
    yield f"{document['path']}: {size}, level {document['level']}, {state}"
    yield f"  {' '.join(document['command'] or [])}"
    for rank in document["ranks"]:
        yield from of_rank(rank)
    for item in document.get("privacy", ()):
        yield f"{item['holds']:<12} {item['bytes']:>12,} {item['file']}: {item['what']}"
    for item in document.get("records", ()):
        numbers = " ".join(f"{key} {item[key]:.6g}" for key in ("max", "min", "mean", "norm"))
        shape = "×".join(map(str, item["shape"])) or "scalar"
        where = f"step {item['step']} call {item['call']} {item['kind']} {item['leaf']}".rstrip()
        yield f"{where}: {item['dtype']} {shape} {numbers}"


def of_rank(rank: Mapping[str, Any]) -> Iterator[str]:
    """One process."""
    records = sum(step["records"] for step in rank["steps"])
    steps = ", ".join(str(step["step"]) for step in rank["steps"])
    yield f"rank {rank['rank']}: steps {steps}; {records:,} records"
    for root in rank["roots"]:
        yield f"  {root['name']}: {root['class']}, {root['parameters']} parameters"
    for lesson in rank["taught"]:
        yield f"  taught: {lesson['root']} at step {lesson['step']}, {lesson['cuts']} values"
    packages = rank["environment"].get("packages", {})
    yield "  " + ", ".join(f"{name} {version}" for name, version in packages.items())
    for note in rank["notes"]:
        yield f"  note: {note}"

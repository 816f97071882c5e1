"""Any document → titled tables. Nothing is left out: what a table cannot hold stands as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.report.documents.view import View

SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Block:
    """A titled table; `head` is empty where it holds (field, value) pairs. Cells are plain text;
    numbers stay numbers, so that they sort."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def blocks(document: Mapping[str, Any], view: View) -> list[Block]:
    """The summary first, with the view's `first` fields on top, then a block per larger part."""
    shown = {key: value for key, value in document.items() if key not in view.hide}
    order = [key for key in view.first if key in shown]
    order += [key for key in shown if key not in order]
    small = [(key, shown[key]) for key in order if is_small(shown[key])]
    found = [Block(SUMMARY, (), tuple((name(key), cell(value)) for key, value in small))]
    for key in order:
        if not is_small(shown[key]):
            found += parts(name(key), shown[key])
    return [block for block in found if block.rows]


def parts(title: str, value: Any) -> Iterator[Block]:
    """The blocks of one larger field."""
    if isinstance(value, Mapping) and is_table(list(value.values())):
        rows = [{title: key, **row} for key, row in value.items()]
        yield table(title, rows)
    elif isinstance(value, Mapping):
        flat = [(key, one) for key, one in value.items() if is_small(one)]
        if flat:
            yield Block(title, (), tuple((name(key), cell(one)) for key, one in flat))
        for key, one in value.items():
            if not is_small(one):
                yield from parts(f"{title}: {name(key)}", one)
    elif is_table(value):
        yield table(title, value)
    else:
        yield Block(title, (), tuple((number, cell(one)) for number, one in enumerate(value, 1)))


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Block:
    """One row per object; nested objects become columns of their own."""
    flat = [dict(flatten(row)) for row in rows]
    head = tuple(dict.fromkeys(key for row in flat for key in row))
    cells = tuple(tuple(cell(row.get(key, "")) for key in head) for row in flat)
    return Block(title, tuple(map(name, head)), cells)


def flatten(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of nested objects under their dotted path."""
    for key, value in row.items():
        if isinstance(value, Mapping) and value and not before:
            yield from flatten(value, f"{key}.")
        else:
            yield f"{before}{key}", value


def is_small(value: Any) -> bool:
    """Whether a value fits into one line: no object, and no list of objects or of many things."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, list):
        return len(value) <= 12 and not any(isinstance(one, Mapping | list) for one in value)
    return True


def is_table(value: Any) -> bool:
    """Whether it is a list of objects."""
    return isinstance(value, list) and bool(value) and all(isinstance(o, Mapping) for o in value)


def name(key: object) -> str:
    """A field's name for people."""
    return str(key).replace("_", " ")


def cell(value: Any) -> object:
    """A value as a cell: numbers as they are, lists joined, objects as JSON."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return value
    if isinstance(value, list) and not any(isinstance(one, Mapping | list) for one in value):
        return ", ".join(str(cell(one)) for one in value) or "–"
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) if value else "–"
    return str(value)

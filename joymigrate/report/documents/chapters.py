"""Any document → chapters of tables. What a table cannot hold stands as text: nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joymigrate.report.blocks import Block, Cell, Chapter, TableBlock, TileRow, facts
from joymigrate.report.documents.view import DocumentView
from joymigrate.report.html.page import Tile
from joymigrate.report.renderers._words import plain


def chapters(document: Mapping[str, Any], view: DocumentView) -> list[Chapter]:
    """The summary first, with the view's `first` fields large, then one per larger part."""
    shown = {key: value for key, value in document.items() if key not in view.hide}
    order = [key for key in view.first if key in shown]
    order += [key for key in shown if key not in order]
    small = {key: cell(shown[key]) for key in order if is_small(shown[key])}
    tiles = [Tile(plain(small[key]), name(key)) for key in view.first if key in small]
    rest = [(name(key), value) for key, value in small.items() if key not in view.first]
    top: list[Block] = [TileRow(tiles)] if tiles else []
    found: list[tuple[str, list[Block]]] = [("summary", [*top, facts(rest)] if rest else top)]
    for key in order:
        if not is_small(shown[key]):
            found += ((title, [table]) for title, table in tables(name(key), shown[key]))
    return [
        Chapter(f"part-{at}", title.capitalize(), blocks, count_rows(blocks))
        for at, (title, blocks) in enumerate(found)
        if blocks
    ]


def count_rows(blocks: Sequence[Block]) -> int | None:
    """The number behind a chapter's title: the rows of its table."""
    table = blocks[-1]
    return len(table.rows) if isinstance(table, TableBlock) and table.head else None


def tables(title: str, value: Any) -> Iterator[tuple[str, TableBlock]]:
    """The titled tables of one larger field."""
    if isinstance(value, Mapping) and is_table(list(value.values())):
        rows = [{title: key, **row} for key, row in value.items()]
        yield title, table(title, rows)
    elif isinstance(value, Mapping):
        flat = [(key, one) for key, one in value.items() if is_small(one)]
        if flat:
            yield title, facts([(name(key), cell(one)) for key, one in flat])
        for key, one in value.items():
            if not is_small(one):
                yield from tables(f"{title}: {name(key)}", one)
    elif is_table(value):
        yield title, table(title, value)
    else:
        yield title, facts([(f"{number:,}", cell(one)) for number, one in enumerate(value, 1)])


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> TableBlock:
    """One row per object; nested objects become columns of their own."""
    flat = [dict(flatten(row)) for row in rows]
    head = tuple(dict.fromkeys(key for row in flat for key in row))
    cells = [[cell(row.get(key, "")) for key in head] for row in flat]
    return TableBlock(tuple(map(name, head)), cells)


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


def cell(value: Any) -> Cell:
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

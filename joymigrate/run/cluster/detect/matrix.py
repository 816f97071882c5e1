"""Reads link matrices as topology tools print them: a head of card names, a row per card."""

from __future__ import annotations

import re

from joymigrate.errors import JoyError
from joymigrate.run.cluster.detect import LinkTable

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def read(text: str, card: str, where: str, help: str) -> LinkTable:
    """The table whose columns match the pattern `card` (one group: the id).

    Columns after the cards that a tool adds (NICs, NUMA, GPU ids) are skipped; the first one of
    them is taken as the CPU affinity.
    """
    lines = [ANSI.sub("", line).rstrip() for line in text.splitlines()]
    head_at = next((i for i, line in enumerate(lines) if is_head(line, card)), None)
    if head_at is None:
        raise JoyError("no link table", where=where, help=help)
    columns = [int(number) for number in re.findall(rf"(?<!\S){card}(?!\S)", lines[head_at])]
    rows: dict[int, list[str]] = {}
    for line in lines[head_at + 1 :]:
        cells = split_row(line, len(columns))
        name = re.fullmatch(card, cells[0]) if cells else None
        if name is None:
            if rows and len(rows) >= len(columns):
                break
            continue
        rows[int(name.group(1))] = cells[1:]
    missing = [number for number in columns if number not in rows]
    if missing or any(len(rows[number]) < len(columns) for number in columns):
        raise JoyError(
            f"the link table is cut off: {len(rows)} of {len(columns)} rows",
            where=where,
            help=help,
        )
    others = len(re.findall(r"(?<!\S)(?:NIC\d+|mlx\S+)(?!\S)", lines[head_at]))
    width = len(columns)
    links = tuple(tuple(rows[number][:width]) for number in columns)
    affinity = tuple(
        rows[number][width + others] if len(rows[number]) > width + others else ""
        for number in columns
    )
    return LinkTable(tuple(columns), links, affinity)


def split_row(line: str, columns: int) -> list[str]:
    """The cells of a row, by tabs where it has them: an empty one is no cell of the next column."""
    cells = [cell.strip() for cell in line.split("\t")]
    return cells if len(cells) > columns else line.split()


def is_head(line: str, card: str) -> bool:
    """Whether a line is the head: a card name, then another one, a NIC, `CPU` or nothing."""
    cells = line.split()
    if not cells or not re.fullmatch(card, cells[0]):
        return False
    return len(cells) == 1 or re.fullmatch(rf"{card}|CPU|NIC\d+|mlx\S+", cells[1]) is not None

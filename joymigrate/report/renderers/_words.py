"""What all renderers do alike with a cell and with a table that is too long."""

from __future__ import annotations

from joymigrate.language import tell
from joymigrate.report.blocks import (
    Amount,
    Badge,
    Cell,
    CellBar,
    CellFold,
    CellStack,
    Code,
    CodeRow,
    FilterLink,
    TableBlock,
)

NUMBER = "{:,.6g}"


def plain(cell: Cell) -> str:
    """A cell on one line: numbers in few digits, controls as blanks."""
    match cell:
        case Badge(said, _):
            return tell(said)
        case Code(said) | Amount(said, _) | FilterLink(said, _):
            pass
        case CellStack(cells):
            return "; ".join(filter(None, map(plain, cells)))
        case CodeRow(pieces):
            said = ", ".join(pieces)
        case CellBar() | CellFold():
            return ""
        case str():
            said = tell(cell)
        case int():
            return f"{cell:,}"
        case float():
            return NUMBER.format(cell)
    return " ".join(said.split())


def cut_rows(table: TableBlock, most: int) -> tuple[TableBlock, str]:
    """The first rows of a table, and a sentence about the others."""
    hidden = len(table.rows) - most
    if hidden <= 0:
        return table, ""
    said = tell("{count} more rows are in the document", count=f"{hidden:,}")
    return TableBlock(table.head, table.rows[:most], table.right), said

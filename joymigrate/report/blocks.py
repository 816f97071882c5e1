"""A document of typed blocks: what a report says, apart from how a format shows it.

A noun builds one `BlockDocument`; a renderer per format (`report.renderers`) shows any of them.
Every str is said in the reader's language where a catalogue has it; text in `backticks` is code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joymigrate.report.html.page import BarPart, Html, Tile


@dataclass(frozen=True, slots=True)
class Badge:
    """A cell: a status; its tone is one of `html.page.TONES`."""

    text: str
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class Code:
    """A cell: a name of the program, a place or a command, which no language changes."""

    text: str


@dataclass(frozen=True, slots=True)
class Amount:
    """A cell: a number as it is shown, and what its column sorts by."""

    shown: str
    value: float


@dataclass(frozen=True, slots=True)
class CellStack:
    """A cell of several, one below the other."""

    cells: Sequence[Cell]


Cell = str | int | float | Badge | Code | Amount | CellStack


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text; a badge before it where it has a mark."""

    text: str
    mark: Badge | None = None


@dataclass(frozen=True, slots=True)
class Preformatted:
    """Lines that stay as they are; `language` colours them where a format can."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A plain list."""

    items: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class TileRow:
    """The figures that matter most, large where a format can."""

    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class StackedBar:
    """Parts of a whole, with a legend."""

    parts: Sequence[BarPart]


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table. Without a head it holds (what, value) pairs. Columns of numbers are set right, and
    those named by `right`, whose cells are texts."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: Sequence[int] = ()

    def numbers(self) -> list[int]:
        """The columns that are set right."""
        return [
            at
            for at in range(len(self.rows[0]) if self.rows and any(self.head) else 0)
            if at in self.right or all(is_number(row[at]) for row in self.rows)
        ]


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart as inline SVG, on pages alone."""

    svg: Html
    caption: str


@dataclass(frozen=True, slots=True)
class PictureRow:
    """Charts side by side, on pages alone."""

    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that can be folded away."""

    title: str
    blocks: Sequence[Block]
    opened: bool = False


Block = (
    Paragraph
    | Preformatted
    | Listing
    | TileRow
    | StackedBar
    | TableBlock
    | Picture
    | PictureRow
    | Fold
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """One titled part; `id` is its anchor, `menu` its short name, `count` the number behind it."""

    id: str
    title: str
    blocks: Sequence[Block]
    count: int | None = None
    menu: str = ""


@dataclass(frozen=True, slots=True)
class BlockDocument:
    """What one report says. `data` travels inside a page for its scripts and its readers."""

    title: str
    subtitle: str
    chapters: Sequence[Chapter]
    footer: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


def is_number(cell: Cell) -> bool:
    """Whether a cell is a number."""
    return isinstance(cell, int | float | Amount)


def facts(rows: Sequence[tuple[str, Cell]]) -> TableBlock:
    """(what, value) pairs."""
    return TableBlock((), rows)

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


@dataclass(frozen=True, slots=True)
class CodeRow:
    """A cell: pieces of source side by side."""

    pieces: Sequence[str]


@dataclass(frozen=True, slots=True)
class CellBar:
    """A cell: parts of a whole, on pages alone; other formats leave out a column of them."""

    parts: Sequence[BarPart]


@dataclass(frozen=True, slots=True)
class CellFold:
    """A cell: text that a page folds away, and that other formats leave out."""

    title: str
    text: str
    address: str = ""  # a link below the text


@dataclass(frozen=True, slots=True)
class FilterLink:
    """A cell: a rule or a path; on a page, a link to the findings of it alone."""

    text: str
    by: str = "rule"  # or "text"


Cell = (
    str
    | int
    | float
    | Badge
    | Code
    | CodeRow
    | Amount
    | CellStack
    | CellBar
    | CellFold
    | FilterLink
)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text; a badge before it where it has a mark. A note is set in a soft colour."""

    text: str
    mark: Badge | None = None
    note: bool = False


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
    those named by `right`, whose cells are texts. A terminal shows the `first` rows, 0 for all."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: Sequence[int] = ()
    first: int = 0

    def numbers(self) -> list[int]:
        """The columns that are set right."""
        return [
            at
            for at in range(len(self.rows[0]) if self.rows and any(self.head) else 0)
            if at in self.right or all(is_number(row[at]) for row in self.rows)
        ]

    def without_bars(self) -> TableBlock:
        """The table without columns that only a page can draw."""
        kept = [
            at
            for at in range(max(map(len, self.rows), default=0))
            if not all(isinstance(row[at], CellBar) for row in self.rows)
        ]
        if len(kept) == max(map(len, self.rows), default=0):
            return self
        head = [self.head[at] for at in kept]
        rows = [[row[at] for at in kept] for row in self.rows]
        return TableBlock(head, rows, [kept.index(at) for at in self.right if at in kept])


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


@dataclass(frozen=True, slots=True)
class Scripted:
    """Markup that a page's script fills, and what formats without scripts show instead."""

    page: Html
    others: Sequence[Block]


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
    | Scripted
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """One titled part; `id` is its anchor, `menu` its short name, `count` the number behind it.

    An `extra` one stands on pages alone: Markdown goes into comments, which are to be short.
    """

    id: str
    title: str
    blocks: Sequence[Block]
    count: int | None = None
    menu: str = ""
    extra: bool = False


@dataclass(frozen=True, slots=True)
class BlockDocument:
    """What one report says. `data` travels inside a page for its `scripts` and its readers; the
    `closing` lines end the other formats, where a page has its footer."""

    title: str
    subtitle: str
    chapters: Sequence[Chapter]
    footer: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    scripts: Sequence[str] = ()
    closing: Sequence[str] = ()


def is_number(cell: Cell) -> bool:
    """Whether a cell is a number."""
    return isinstance(cell, int | float | Amount)


def facts(rows: Sequence[tuple[str, Cell]]) -> TableBlock:
    """(what, value) pairs."""
    return TableBlock((), rows)

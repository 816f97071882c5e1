"""A document of blocks as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joymigrate.language import columns, pad, tell, tidy, width
from joymigrate.report.blocks import (
    Block,
    BlockDocument,
    Fold,
    Listing,
    Paragraph,
    Picture,
    PictureRow,
    Preformatted,
    Scripted,
    StackedBar,
    TableBlock,
    TileRow,
)
from joymigrate.report.renderers._words import cut_rows, plain

MOST_ROWS = 200
WIDTH = 120  # columns of a terminal that a table may take; the widest of its own stand below then
EMPTY = ("", "–")


def render(document: BlockDocument) -> str:
    """The whole text, in the language that is spoken."""
    lines = [tell(document.title), *([tell(document.subtitle)] if document.subtitle else ())]
    for chapter in document.chapters:
        body = [] if chapter.extra else list(draw_all(chapter.blocks))
        if body:
            lines += ["", f"{tell(chapter.title)}:", *body]
    lines += ["", *map(tell, document.closing)] if document.closing else []
    return tidy("\n".join(lines)) + "\n"


def draw_all(blocks: Sequence[Block]) -> Iterator[str]:
    """Lines of blocks below each other, two columns in."""
    for block in blocks:
        yield from (f"  {line}".rstrip() for line in draw(block))


def draw(block: Block) -> Iterator[str]:
    """The lines of one block; pictures have none."""
    match block:
        case Paragraph(text, mark, _):
            yield (f"{plain(mark)}: " if mark else "") + plain(text)
        case Preformatted(text):
            yield from (f"  {line}" for line in text.splitlines())
        case Listing(items):
            yield from map(plain, items)
        case TileRow(tiles):
            yield from columns(
                [(tell(one.label), tell(one.value), tell(one.note)) for one in tiles]
            )
        case StackedBar(parts):
            yield ", ".join(f"{tell(part.label)} {part.value:,.0f}" for part in parts)
        case TableBlock():
            table, more = cut_rows(block.without_bars(), block.first or MOST_ROWS)
            yield from draw_table(table)
            if more:
                yield more
        case Fold(title, blocks):
            yield f"{tell(title)}:"
            yield from draw_all(blocks)
        case Scripted(_, others):
            yield from draw_all(others)
        case Picture() | PictureRow():
            return


def draw_table(table: TableBlock) -> Iterator[str]:
    """A table in columns. Where not all fit, the last that makes room for the others, or else the
    widest, stand below their rows by their names; one alone comes last, and stands below where it
    does not fit. A list of one column needs no head, and of two columns none where they do not
    fit."""
    head = [tell(one) for one in table.head]
    rows = [[plain(cell) for cell in row] for row in table.rows]
    if not head:
        yield from columns(rows)
        return
    if len(head) == 1:
        yield from (row[0] for row in rows)
        return
    shown = [at for at in range(len(head)) if any(row[at] not in EMPTY for row in rows)]
    numbers, below = table.numbers(), list[int]()
    wide = {at: max(width(row[at]) for row in [head, *rows]) for at in shown}
    while (over := sum(wide[at] + 2 for at in shown) - WIDTH) > 0 and len(shown) > 1:
        enough = [at for at in shown[1:] if wide[at] + 2 >= over and at not in numbers]
        # A name stays in front where it is no sentence, and others keep their order.
        named = shown if wide[shown[0]] > WIDTH / 2 else shown[1:]
        moved = enough[-1] if enough else max(named, key=wide.__getitem__)
        shown.remove(moved)
        below = sorted([*below, moved])
    right = [shown.index(at) for at in numbers if at in shown]
    title, *lines = columns([[row[at] for at in shown] for row in [head, *rows]], right=right)
    if below and len(head) == 2:
        yield from (f"{row[0]}: {row[1]}" if row[1] not in EMPTY else row[0] for row in rows)
        return
    room = max(map(width, [title, *lines]))
    beside = below.pop() if len(below) == 1 else None  # on its row where it fits there
    yield title if beside is None else f"{pad(title, room)}  {head[beside]}"
    for line, row in zip(lines, rows, strict=True):
        cell = "" if beside is None or row[beside] in EMPTY else row[beside]
        fits = room + 2 + width(cell) <= WIDTH - 2
        yield f"{pad(line, room)}  {cell}".rstrip() if fits else line
        yield from () if fits else [f"    {cell}"]
        yield from (f"    {head[at]}: {row[at]}" for at in below if row[at] not in EMPTY)

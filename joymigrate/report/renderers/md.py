"""A document of blocks as Markdown: for a pull request, a job's page or a wiki."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from joymigrate.language import tell
from joymigrate.report.blocks import (
    Badge,
    Block,
    BlockDocument,
    Cell,
    CellStack,
    Code,
    CodeRow,
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

MARKUP = re.compile(r"[\\*_\[\]#~]")
CUT = "… The rest is left out here: it would be too long."
MOST_ROWS = 200
ROOM = 100  # characters for the ends of what a cut leaves open


def render(document: BlockDocument, most: int | None = None) -> str:
    """The whole text, in the language that is spoken, or what of it `most` characters hold."""
    lines = [f"# {escape(tell(document.title))}", ""]
    if document.subtitle:
        lines += [escape(tell(document.subtitle)), ""]
    for chapter in document.chapters:
        body = [] if chapter.extra else list(draw_all(chapter.blocks))
        if body:
            lines += [f"## {escape(tell(chapter.title))}", "", *body]
    closing = "\n\n".join(escape(tell(line)) for line in document.closing)
    text = "\n".join(lines).rstrip("\n") + "\n"
    if most is not None:
        text = shorten(text, most - len(closing))
    return f"{text}\n{closing}\n" if closing else text


def shorten(text: str, most: int) -> str:
    """Text of at most `most` characters, cut at a line's end, with what was open there closed."""
    if len(text) <= most:
        return text
    kept = text[: most - ROOM].rpartition("\n")[0]
    fences = re.findall(r"(?m)^ *(`{3,})", kept)
    kept += f"\n{fences[-1]}" if len(fences) % 2 else ""
    left = kept.count("<details>") - kept.count("</details>")
    return f"{kept}\n{'</details>' * left}\n\n{tell(CUT)}\n"


def draw_all(blocks: Sequence[Block]) -> Iterator[str]:
    """Lines of blocks below each other, an empty one behind each."""
    for block in blocks:
        lines = list(draw(block))
        if lines:
            yield from lines
            yield ""


def draw(block: Block) -> Iterator[str]:
    """The lines of one block; pictures have none."""
    match block:
        case Paragraph(text, mark, _):
            yield (f"**{draw_cell(mark)}** " if mark else "") + draw_cell(text)
        case Preformatted(text, language):
            fence = "`" * max(3, 1 + longest_run(text, "`"))
            yield from (f"{fence}{language}", *text.splitlines(), fence)
        case Listing(items):
            yield from (f"- {draw_cell(item)}" for item in items)
        case TileRow(tiles):
            for tile in tiles:
                note = f" ({escape(tell(tile.note))})" if tile.note else ""
                yield f"- {escape(tell(tile.label))}: **{escape(tell(tile.value))}**{note}"
        case StackedBar(parts):
            yield ", ".join(f"{escape(tell(part.label))} {part.value:,.0f}" for part in parts)
        case TableBlock():
            table, more = cut_rows(block.without_bars(), MOST_ROWS)
            head = table.head or ("",) * len(table.rows[0])
            yield from draw_table(head, table.rows, table.right)
            if more:
                yield from ("", escape(more))
        case Fold(title, blocks):
            yield from (f"<details><summary>{html.escape(tell(title))}</summary>", "")
            yield from draw_all(blocks)
            yield "</details>"
        case Scripted(_, others):
            yield from draw_all(others)
        case Picture() | PictureRow():
            return


def draw_table(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[int] = ()
) -> Iterator[str]:
    """A table; columns of numbers and those of `right` are set right."""
    numbers = TableBlock(head, rows, right).numbers()
    yield "| " + " | ".join(escape(tell(title)) for title in head) + " |"
    marks = (" ---: " if at in numbers else " --- " for at in range(len(head)))
    yield "|" + "|".join(marks) + "|"
    for row in rows:
        yield "| " + " | ".join(map(draw_in_table, row)) + " |"


def draw_in_table(cell: Cell) -> str:
    """A cell of which no bar ends its column."""
    return draw_cell(cell).replace("|", "\\|")


def draw_cell(cell: Cell) -> str:
    """A cell on one line."""
    match cell:
        case Code(text):
            return f"`{' '.join(text.replace('`', chr(39)).split())}`" if text.strip() else ""
        case CodeRow(pieces):
            return ", ".join(draw_cell(Code(piece)) for piece in pieces)
        case CellStack(cells):
            return "<br>".join(filter(None, map(draw_cell, cells)))
        case Badge() | str():
            return escape(plain(cell))
    return plain(cell)


def escape(text: str) -> str:
    """Text in which nothing is markup, except `code` in pairs of backticks."""
    text = " ".join(text.split())
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick would swallow what follows
        parts = [text.replace("`", "'")]
    for index in range(0, len(parts), 2):
        part = parts[index].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        parts[index] = MARKUP.sub(r"\\\g<0>", part)
    return "`".join(parts)


def longest_run(text: str, sign: str) -> int:
    """Length of the longest run of one character."""
    return max(map(len, re.findall(f"{re.escape(sign)}+", text)), default=0)

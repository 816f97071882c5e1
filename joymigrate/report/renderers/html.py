"""A document of blocks as one HTML page."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from joymigrate.language import tell
from joymigrate.report.blocks import (
    Amount,
    Badge,
    Block,
    BlockDocument,
    Cell,
    CellBar,
    CellFold,
    CellStack,
    Code,
    CodeRow,
    FilterLink,
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
from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Page, Section
from joymigrate.report.html.plots import beside
from joymigrate.report.renderers._words import NUMBER, cut_rows

MOST_ROWS = 20_000
BLOCKS = ("<div", "<details")


def render(document: BlockDocument) -> str:
    """The page, in the language that is spoken."""
    return Page(
        title=document.title,
        subtitle=document.subtitle,
        sections=[
            Section(one.id, one.title, draw_all(one.blocks), one.count, one.menu)
            for one in document.chapters
        ],
        footer=document.footer,
        data=document.data,
        scripts=document.scripts,
    ).render()


def draw_all(blocks: Iterable[Block]) -> Html:
    """Blocks below each other."""
    return Html("".join(map(draw, blocks)))


def draw(block: Block) -> Html:
    """One block as markup."""
    match block:
        case Paragraph(text, mark, note):
            before = f"{draw_cell(mark)} " if mark else ""
            kind = ' class="note"' if note else ""
            return Html(f"<p{kind}>{before}{draw_cell(text)}</p>")
        case Preformatted(text):
            return Html(f"<pre>{page.escape(text)}</pre>")
        case Listing(items):
            return page.notes(map(draw_cell, items))
        case TileRow(tiles):
            return page.tiles(tiles)
        case StackedBar(parts):
            return page.bar(parts, legend=True)
        case TableBlock():
            return draw_table(block)
        case Picture(svg, caption):
            return page.figure(svg, caption)
        case PictureRow(pictures):
            return beside(*map(draw, pictures))
        case Fold(title, blocks, opened):
            return page.details(title, draw_all(blocks), opened=opened)
        case Scripted(markup):
            return markup


def draw_table(whole: TableBlock) -> Html:
    """A table that sorts, and a sentence about rows that a page could not hold."""
    table, more = cut_rows(whole, MOST_ROWS)
    rows = [[draw_sortable(cell) for cell in row] for row in table.rows]
    head = table.head or ("",) * max(map(len, rows), default=2)
    made = page.table(head, rows, right=table.numbers())
    return Html(f"{made}<p>{page.escape(more)}</p>") if more else made


def draw_sortable(cell: Cell) -> object:
    """A cell as `page.table` takes it: with what its column sorts by where that is not its text."""
    match cell:
        case Amount(shown, value):
            return shown, value
        case float():
            return NUMBER.format(cell), cell
        case int():
            return cell
    return draw_cell(cell)


def draw_cell(cell: Cell) -> Html:
    """A cell as markup."""
    match cell:
        case Badge(text, tone):
            return page.badge(text, tone)
        case Code(text):
            return Html(f"<code>{page.escape(text)}</code>")
        case CellStack(cells):
            return stack_markup(map(draw_cell, cells))
        case CodeRow(pieces):
            shown = " ".join(f"<code>{page.escape(piece)}</code>" for piece in pieces)
            return Html(f'<div class="samples">{shown}</div>')
        case CellBar(parts):
            return page.bar(parts)
        case CellFold(title, text, address):
            link = f"<p>{draw_link(address)}</p>" if address else ""
            return page.details(title, Html(f"<p>{page.code(tell(text))}</p>{link}"))
        case FilterLink(text, by):
            kind = "" if by == "rule" else 'class="path" '
            shown = page.escape(text)
            return Html(f'<a {kind}href="#findings" data-{by}="{shown}">{shown}</a>')
        case str():
            return page.code(tell(cell))
    return page.escape(cell.shown if isinstance(cell, Amount) else cell)


def stack_markup(parts: Iterable[str]) -> Html:
    """Parts one below the other; those that are blocks break the line by themselves."""
    lines = list(parts)
    made = lines[:1]
    for before, one in itertools.pairwise(lines):
        whole = one.startswith(BLOCKS) or before.startswith(BLOCKS)
        made.append(one if whole else f"<br>{one}")
    return Html("".join(made))


def draw_link(reference: str) -> Html:
    """A reference, as a link when it is an address."""
    shown = page.escape(reference)
    if reference.startswith(("https://", "http://")) and " " not in reference.strip():
        return Html(f'<a href="{shown}" rel="noreferrer">{shown}</a>')
    return shown

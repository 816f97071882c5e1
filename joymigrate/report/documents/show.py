"""An opened document as text, Markdown or a page."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.language import columns, current_language, tell, width
from joymigrate.report.documents.blocks import SUMMARY, Block, blocks
from joymigrate.report.documents.opening import Opened
from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Page, Section, Tile
from joymigrate.report.labels import Labels
from joymigrate.report.verdict_parts import escape, table

FORMATS = ("html", "md", "text")
MOST_LINES = 200  # rows of a table on a terminal and in Markdown
MOST_ROWS = 20_000  # rows of a table on a page
WIDTH = 120  # columns of a terminal that a table may take before its rows become paragraphs
NUMBER = "{:,.6g}"


def show(opened: Opened, format: str) -> str:
    """The document in one of `FORMATS`."""
    return {"text": text, "md": markdown, "html": html}[format](opened)


def words(value: object) -> str:
    """A cell as text: numbers in few digits, controls as blanks."""
    if isinstance(value, float):
        return NUMBER.format(value)
    if isinstance(value, int):
        return f"{value:,}"
    return " ".join(str(value).split())


def cut(block: Block, most: int) -> tuple[Block, str]:
    """The first rows of a block, and a sentence about the others."""
    if len(block.rows) <= most:
        return block, ""
    said = tell("{count} more rows are in the document", count=f"{len(block.rows) - most:,}")
    return Block(block.title, block.head, block.rows[:most]), said


def text(opened: Opened) -> str:
    """For a terminal."""
    lines = [tell(opened.view.title), tell(opened.view.what)]
    for whole in blocks(opened.document, opened.view):
        block, more = cut(whole, MOST_LINES)
        lines += ["", f"{tell(block.title)}:"]
        rows = [[words(one) for one in row] for row in block.rows]
        lines += table_lines(block, rows)
        if more:
            lines.append(f"  {more}")
    return "\n".join(lines) + "\n"


def table_lines(block: Block, rows: list[list[str]]) -> Iterator[str]:
    """A table in columns; a paragraph per row where the columns do not fit. A list of one column
    needs no head, and of two columns none where they do not fit."""
    if len(block.head) == 1:
        yield from (f"  {row[0]}" for row in rows)
        return
    grid = [[tell(one) for one in block.head], *rows] if block.head else rows
    made = columns(grid)
    if block.head and max(map(width, made)) + 2 > WIDTH:
        for row in rows:
            if len(row) == 2 and "–" not in row and "" not in row:
                yield f"  {row[0]}: {row[1]}"
                continue
            pairs = zip(grid[0], row, strict=True)
            yield "  " + "; ".join(f"{key} {one}" for key, one in pairs if one not in ("", "–"))
        return
    yield from (f"  {line}".rstrip() for line in made)


def markdown(opened: Opened) -> str:
    """For a pull request or a wiki."""
    lines = [f"# {escape(opened.view.title)}", "", escape(opened.view.what)]
    for whole in blocks(opened.document, opened.view):
        block, more = cut(whole, MOST_LINES)
        lines += ["", f"## {escape(block.title)}", ""]
        lines += table(
            block.head or ("field", "value"), [[words(o) for o in r] for r in block.rows]
        )
        if more:
            lines += ["", escape(more)]
    return "\n".join(lines) + "\n"


def html(opened: Opened) -> str:
    """For a browser: one file."""
    sections = []
    for number, whole in enumerate(blocks(opened.document, opened.view)):
        block, more = cut(whole, MOST_ROWS)
        right = [
            index
            for index in range(len(block.rows[0]))
            if all(isinstance(row[index], int | float) for row in block.rows)
        ]
        rows = [[sortable(one) for one in row] for row in block.rows]
        body = page.table(block.head or ("field", "value"), rows, right=right if block.head else ())
        if block.title == SUMMARY:
            body = Html(tiles(opened, block) + body)
        if more:
            body = Html(f"{body}<p>{page.escape(more)}</p>")
        count = len(whole.rows) if block.head else None
        sections.append(Section(f"part-{number}", block.title.capitalize(), body, count))
    return Page(
        title=opened.view.title,
        subtitle=opened.view.what,
        sections=sections,
        say=Labels(current_language()),
        footer=f"{opened.path.name} · {opened.view.schema}",
    ).render()


def sortable(value: object) -> object:
    """A cell with what its column sorts by."""
    return (words(value), value) if isinstance(value, float) else value


def tiles(opened: Opened, block: Block) -> str:
    """The fields that the view puts first, large."""
    first = {key.replace("_", " ") for key in opened.view.first}
    return (
        page.tiles(Tile(words(value), str(key)) for key, value in block.rows if key in first)
        if first & {key for key, _ in block.rows}
        else ""
    )

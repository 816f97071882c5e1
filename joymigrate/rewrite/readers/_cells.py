"""The code cells of a notebook as one Python text, every character with its place in the JSON.

Cells that are not Python (`%%bash`) stand in the text as blanks; lines with magics are replaced
by code of the same length. `plain` is the same text with nothing replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from joymigrate.rewrite.readers._tree import Mapping, Node, ScalarNode, SequenceNode
from joymigrate.rewrite.source import Unreadable

PIECE = re.compile(r"\\u(?P<hex>[0-9a-fA-F]{4})|\\(?P<short>.)|(?P<plain>[^\\])", re.DOTALL)
SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
MAGIC = re.compile(r"(?P<indent>[ \t]*)(?:(?P<name>\w[\w., ]*?)[ \t]*=[ \t]*)?(?P<sign>[%!])")
CELL_MAGIC = re.compile(r"[ \t\r\n]*%%(?P<name>\S+)(?P<rest>[^\n]*)")
# Cell magics whose cell is Python all the same.
PYTHON_CELLS = frozenset(("time", "timeit", "capture", "prun", "python", "python3", "px", "debug"))
TIMES = re.compile(r"%(?:time|timeit|prun|memit)[ \t]+(?=[^\s-])")


@dataclass(slots=True)
class NotebookCell:
    """One code cell: where it stands in the joined text, and how its source is laid out."""

    index: int  # among all cells of the notebook, from 0
    first_line: int  # in the joined text, from 1
    start: int
    end: int
    between: str | None  # what separates two lines of a list; None for a single string
    magic: str = ""  # of the whole cell: `bash`, `writefile run.sh`
    shell: list[tuple[int, int]] = field(default_factory=list)  # lines for a shell
    magics: list[tuple[int, int]] = field(default_factory=list)  # other replaced lines


@dataclass(slots=True)
class NotebookText:
    """All code cells of one notebook. `places[k]` is the raw span of the k-th character, or None
    for a line end that the notebook does not hold."""

    plain: str
    python: str
    places: list[tuple[int, int] | None]
    cells: list[NotebookCell]


def join(root: Node, text: str) -> NotebookText:
    """Read the code cells of a notebook (nbformat 3 and 4).

    Raises `Unreadable` for JSON that is no notebook.
    """
    joined = NotebookText("", "", [], [])
    parts: list[str] = []
    length, line = 0, 1
    for index, cell in enumerate(cells_of(root)):
        source = cell.get("source") or cell.get("input")
        if cell.text("cell_type") != "code" or source is None:
            continue
        chars, places = characters(source, text)
        if chars and not chars.endswith("\n"):
            chars += "\n"
            places.append(None)
        start, length = length, length + len(chars)
        joined.cells.append(NotebookCell(index, line, start, length, separator(source, text)))
        line += chars.count("\n")
        parts.append(chars)
        joined.places += places
    joined.plain = "".join(parts)
    joined.python = "".join(mask_cell(joined.plain, cell) for cell in joined.cells)
    return joined


def cells_of(root: Node) -> Iterator[Mapping]:
    """Every cell in order."""
    if not isinstance(root, Mapping):
        raise Unreadable("not a notebook: the top of the file is no object")
    lists = [root.get("cells")]
    sheets = root.get("worksheets")
    if isinstance(sheets, SequenceNode):
        lists = [sheet.get("cells") for sheet in sheets.items if isinstance(sheet, Mapping)]
    if not any(isinstance(each, SequenceNode) for each in lists):
        raise Unreadable("not a notebook: it has no list of cells")
    for each in lists:
        for cell in each.items if isinstance(each, SequenceNode) else ():
            if isinstance(cell, Mapping):
                yield cell


def characters(source: Node, text: str) -> tuple[str, list[tuple[int, int] | None]]:
    """The text of a cell and the raw place of each of its characters."""
    items = source.items if isinstance(source, SequenceNode) else [source]
    chars: list[str] = []
    places: list[tuple[int, int] | None] = []
    for item in items:
        if not isinstance(item, ScalarNode) or text[item.start : item.start + 1] != '"':
            continue
        for char, start, end in decode(text, item.start + 1, item.end - 1):
            chars.append(char)
            places.append((start, end))
    return "".join(chars), places


def decode(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Characters of a JSON string with their raw places; a surrogate pair is one character."""
    high: tuple[int, int] | None = None
    for match in PIECE.finditer(text, start, end):
        if match["hex"]:
            code = int(match["hex"], 16)
            if 0xD800 <= code < 0xDC00:
                high = (code, match.start())
                continue
            if high and 0xDC00 <= code < 0xE000:
                char = chr(0x10000 + ((high[0] - 0xD800) << 10) + code - 0xDC00)
                yield char, high[1], match.end()
                high = None
                continue
            yield chr(code) if not 0xDC00 <= code < 0xE000 else "?", *match.span()
        elif match["short"]:
            yield SHORT.get(match["short"], match["short"]), *match.span()
        else:
            yield match["plain"], *match.span()


def separator(source: Node, text: str) -> str | None:
    """What stands between two lines of a source that is a list: `,` with white space."""
    if not isinstance(source, SequenceNode):
        return None
    if len(source.items) > 1:
        return text[source.items[0].end : source.items[1].start]
    if source.items:
        return "," + text[source.start + 1 : source.items[0].start]
    return ", "


def mask_cell(plain: str, cell: NotebookCell) -> str:
    """A cell as Python of the same length; notes in `cell` what was replaced."""
    text = plain[cell.start : cell.end]
    magic = CELL_MAGIC.match(text)
    if magic and magic["name"] not in PYTHON_CELLS:
        cell.magic = f"{magic['name']}{magic['rest'].rstrip()}"
        return re.sub(r"[^\n]", " ", text)
    lines, at, open_text = [], cell.start, False
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        body = line.rstrip("\r\n")
        if not open_text and cell.magics and goes_on(plain, cell, at):
            extend(cell, at + len(body))
            lines.append(re.sub(r"[^\n]", " ", line))
        elif open_text or not is_replaced(body):
            lines.append(line)
            open_text ^= odd(body)
        else:
            lines.append(as_code(body, cell, at) + line[len(body) :])
        at += len(line)
    return "".join(lines)


def goes_on(plain: str, cell: NotebookCell, at: int) -> bool:
    """Whether the line at `at` continues a magic on the line before it."""
    end = cell.magics[-1][1]
    return plain[end:at].strip("\r") == "\n" and plain[:end].endswith("\\")


def extend(cell: NotebookCell, end: int) -> None:
    """Let the last magic reach to `end`."""
    start, before = cell.magics[-1]
    cell.magics[-1] = (start, end)
    if cell.shell and cell.shell[-1][1] == before:
        cell.shell[-1] = (cell.shell[-1][0], end)


def odd(line: str) -> bool:
    """Whether a line opens or closes a text in triple quotes."""
    return (line.count('"""') + line.count("'''")) % 2 == 1


def is_replaced(line: str) -> bool:
    """Whether a line is none of Python's."""
    if line.strip().startswith("?") or re.fullmatch(r"[\w. \t]+\?{1,2}\s*", line):
        return True
    match = MAGIC.match(line)
    if match is None:
        return False
    rest = line[match.end() :]
    return bool(re.match(r"[%!]?[A-Za-z_./{$~(-]|\s+\w", rest))


def as_code(line: str, cell: NotebookCell, at: int) -> str:
    """Code of the same length in place of a magic; notes where shell text stands."""
    match = MAGIC.match(line)
    end = at + len(line)
    if match is None:
        cell.magics.append((at, end))
        return filler(line, 0)
    times = TIMES.match(line, match.start("sign"))
    if times and not match["name"]:
        head = times.end() - match.start("sign")
        return line[: match.start("sign")] + "if 1:".ljust(head) + line[times.end() :]
    start = at + match.end()
    word = re.match(r"\w*", line[match.end() :])
    name = word.group() if word else ""
    if match["sign"] == "!" or name in ("pip", "conda", "mamba", "run", "sx", "system"):
        cell.shell.append((start, end))
    cell.magics.append((at, end))
    return filler(line, match.start("sign"))


def filler(line: str, start: int) -> str:
    """`line` with everything from `start` on replaced by a statement or a value."""
    head = line[:start]
    room = len(line) - start
    return head + ("None" if room >= 4 else "0").ljust(room)

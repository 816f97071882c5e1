"""Jupyter notebooks: the code cells as one module, edited inside the JSON they are written in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from joymigrate.language import Text
from joymigrate.model import Edit, Finding, Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers import _cells, shell
from joymigrate.rewrite.readers._cells import NotebookCell, NotebookText
from joymigrate.rewrite.readers._json_tree import tree
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.source import SourceText, Unreadable

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module, Project

PATTERNS = ("*.ipynb",)
SHELLS = re.compile(r"(?:script\s+)?(?:.*/)?(?:ba|z|k|da)?sh\b|system\b|cmd\b")


def read(source: SourceText, context: Context) -> list[Finding]:
    """Findings of one notebook by itself. Outputs and metadata are never looked at."""
    return look(source, context, None)[0]


def look(
    source: SourceText, context: Context, project: Project | None, *helper: str | None
) -> tuple[list[Finding], Module | None, list[Finding], dict[int, int]]:
    """Findings of one notebook of a project; its Python code as a module, with those findings
    of it by their lines there, and the first line of each cell there.

    `helper` is the statement that imports the generated helper, and why it can't be written.
    """
    joined = _cells.join(tree(source.text), source.text)
    if not prefilter(joined.plain, context):
        return [], None, [], {}
    broken, module, inside = of_python(source, joined, context, project, *helper)
    found = [*broken, *of_shell(source, joined, context)]
    if module is not None:
        found += place_findings(inside, source, joined, module.source.text)
    first = {cell.index: cell.first_line for cell in joined.cells}
    return sorted(found, key=lambda f: (f.cell or 0, f.line, f.column)), module, inside, first


def prefilter(text: str, context: Context) -> bool:
    """Whether any rule could match the code."""
    from joymigrate.rewrite import prefilter  # whose rules import the readers

    return prefilter.prefilter(text, context)


def virtual(path: str, text: str) -> SourceText:
    """The joined cells as a file of their own."""
    return SourceText(path, text.encode("utf-8", "surrogatepass"), text)


def of_python(
    source: SourceText,
    joined: NotebookText,
    context: Context,
    project: Project | None,
    *helper: str | None,
) -> tuple[list[Finding], Module | None, list[Finding]]:
    """The Python code: reports of cells that don't parse, the module of all others, its findings.

    Those are by the lines of the joined text.
    """
    from joymigrate.rewrite import python  # which loads libcst
    from joymigrate.rewrite.module import Module

    text, broken = joined.python, []
    for _ in range(len(joined.cells) + 1):
        try:
            module = Module.parse(virtual(source.path, text), context, project)
        except Unreadable as error:
            cell = cell_at(joined, error.line)
            if cell is None:
                break
            broken.append(report_broken(joined, cell, error, source, context))
            blank = re.sub(r"[^\n]", " ", text[cell.start : cell.end])
            if blank == text[cell.start : cell.end]:
                break
            text = text[: cell.start] + blank + text[cell.end :]
            continue
        return broken, module, python.find_alone(module, *helper)  # type: ignore[arg-type]
    return broken, None, []


def cell_at(joined: NotebookText, line: int) -> NotebookCell | None:
    """The cell that holds a line of the joined text."""
    found = [cell for cell in joined.cells if cell.first_line <= line and cell.end > cell.start]
    return found[-1] if found else None


def report_broken(
    joined: NotebookText,
    cell: NotebookCell,
    error: Unreadable,
    source: SourceText,
    context: Context,
) -> Finding:
    """JM000 for one cell."""
    rule = context.rules["JM000"]
    line = error.line - cell.first_line + 1
    file_line = line_in_file(source, joined, cell.start)
    return Finding(
        rule=rule.id,
        name=rule.name,
        tier=Tier.REPORT,
        path=source.path,
        line=line,
        column=error.column,
        end_line=line,
        end_column=error.column,
        message=rule.message,
        before="",
        reason=error.reason,
        cell=cell.index,
        file_line=file_line,
        area=rule.area,
        weight=rule.weight,
    )


def of_shell(source: SourceText, joined: NotebookText, context: Context) -> Iterator[Finding]:
    """Findings of lines with `!` and `%`, and of cells for another program."""
    sites = Sites.of(virtual(source.path, joined.plain), context)
    sites.floor, sites.doubt = Tier.UNSAFE, "a command inside a notebook"
    for cell in joined.cells:
        if cell.magic:
            head = joined.plain.find("\n", joined.plain.index("%%", cell.start)) + 1
            script = cell.magic.rpartition(" ")[2].endswith((".sh", ".bash", ".slurm"))
            if SHELLS.match(cell.magic) or script:
                shell.script(sites, head, cell.end)
            else:
                opaque(
                    sites, head, cell.end, Text("a cell for {magic}", magic=cell.magic.split()[0])
                )
            continue
        for start, end in cell.shell:
            shell.script(sites, start, end)
        for start, end in cell.magics:
            if not (set_variable(sites, start, end) or found_between(sites, start, end)):
                opaque(sites, start, end, "a line with a magic")
    yield from place_findings(sites.ordered(), source, joined, joined.plain)


def found_between(sites: Sites, start: int, end: int) -> bool:
    """Whether some finding begins in `start:end`."""
    starts = sites.source.starts
    return any(start <= starts[f.line - 1] + f.column - 1 <= end for f in sites.found)


def set_variable(sites: Sites, start: int, end: int) -> bool:
    """`%env NAME=value` and `%env NAME value`."""
    text = sites.source.text
    match = re.compile(r"[ \t]*%(?:set_)?env[ \t]+(?P<name>[A-Za-z_]\w*)").match(text, start, end)
    known = sites.moves.variable(match["name"]) if match else None
    if match is None or known is None:
        return False
    rule, advice = known
    first, last = match.span("name")
    to = advice.to if advice.to != match["name"] else None
    if to is None or not sites.moves.agnostic:
        subject = f"variable {to}"
        sites.add(
            rule, first, last, to, tier=advice.tier, reason=advice.note or None, subject=subject
        )
    elif to not in text:
        line = text[start:end]
        copy = f"\n{text[start:first]}{to}{text[last:end]}"
        sites.add(rule, start, end, line + copy, tier=advice.tier, edits=[(end, end, copy)])
    return True


def opaque(sites: Sites, start: int, end: int, what: str) -> None:
    """Report text that no reader knows, where it mentions the origin."""
    origin = sites.context.origin
    word = re.compile(rf"(?<![A-Za-z0-9])(?:{origin.device}|{origin.backend})(?![A-Za-z])", re.I)
    match = word.search(sites.source.text, start, end)
    if match:
        sites.add("JM900", *match.span(), reason=Text("{what}: nothing here reads it", what=what))


def place_findings(
    found: Iterable[Finding], source: SourceText, joined: NotebookText, text: str
) -> Iterator[Finding]:
    """Findings of `text`, which has the places of the joined text, as findings of the notebook."""
    ascii_only = text.isascii()
    data = b"" if ascii_only else text.encode("utf-8", "surrogatepass")

    def offset(at: int) -> int:
        return at if ascii_only else len(data[:at].decode("utf-8", "surrogatepass"))

    starts = virtual(source.path, text).starts
    for finding in found:
        cell = cell_at(joined, finding.line)
        if cell is None:
            continue
        edits = tuple(
            edit_in_file(
                source,
                joined,
                offset(edit.start),
                offset(edit.end),
                edit.text.decode("utf-8", "surrogatepass"),
            )
            for edit in finding.edits
        )
        at = starts[finding.line - 1] + finding.column - 1
        yield replace(
            finding,
            line=finding.line - cell.first_line + 1,
            end_line=finding.end_line - cell.first_line + 1,
            edits=edits,
            cell=cell.index,
            file_line=line_in_file(source, joined, at),
        )


def line_in_file(source: SourceText, joined: NotebookText, at: int) -> int:
    """The line of the notebook file that holds a character of the joined text."""
    for place in joined.places[at:]:
        if place is not None:
            return source.position(place[0])[0]
    return 1


def edit_in_file(source: SourceText, joined: NotebookText, start: int, end: int, text: str) -> Edit:
    """An edit of the joined text as an edit of the notebook's bytes."""
    places = joined.places
    if start == end:
        return insert_text(source, joined, start, text)
    inside = [place for place in places[start:end] if place is not None]
    if not inside:
        return insert_text(source, joined, end, text)
    first, last = inside[0][0], inside[-1][1]
    cell = next(cell for cell in joined.cells if cell.start <= start < cell.end)
    if text or (cell.between is None and places[end - 1] is not None):
        return source.edit(first, last, write_json(text, cell, source.text[last : last + 1] == '"'))
    before = places[start - 1] if start > cell.start else None
    if places[end - 1] is None and before is not None and joined.plain[start - 1] == "\n":
        return source.edit(before[0], last, "")  # the last line goes with the end of the one above
    if cell.between is not None:
        first, last = whole_items(source.text, first, last, cell.between)
    return source.edit(first, last, "")


def insert_text(source: SourceText, joined: NotebookText, at: int, text: str) -> Edit:
    """New text. Between two cells it belongs to the upper one: the lower may be no Python."""
    places = joined.places
    above = next((cell for cell in joined.cells if cell.start < cell.end == at), None)
    here = places[at] if at < len(places) else None
    if above is None and here is not None:
        cell = next(cell for cell in joined.cells if cell.start <= at < cell.end)
        return source.edit(here[0], here[0], write_json(text, cell, False))
    cell = above or next(cell for cell in joined.cells if cell.start <= at < cell.end)
    last = next(place for place in reversed(places[:at]) if place is not None)[1]
    if places[at - 1] is None:
        return source.edit(last, last, write_json("\n" + text.removesuffix("\n"), cell, True))
    new_item = cell.between is not None and joined.plain[at - 1] == "\n"
    head = f'"{cell.between}"' if new_item else ""
    return source.edit(last, last, head + write_json(text, cell, True))


def whole_items(text: str, first: int, last: int, between: str) -> tuple[int, int]:
    """What to take away so that no empty item stays where every character of some items goes."""
    if text[first - 1 : first] != '"' or text[last : last + 1] != '"':
        return first, last
    if text.startswith(between, last + 1):
        return first - 1, last + 1 + len(between)
    if text[: first - 1].endswith(between):
        return first - 1 - len(between), last + 1
    return first, last


def write_json(text: str, cell: NotebookCell, closes: bool) -> str:
    """New text as JSON; in a list of lines every line becomes an item of its own.

    `closes`: the string ends right behind, so a last line end begins no new item.
    """
    escaped = json.dumps(text)[1:-1]
    if cell.between is None:
        return escaped
    lines = text.split("\n")
    if closes and lines[-1] == "" and len(lines) > 1:
        lines[-2:] = [lines[-2] + "\n"]
    pieces = [json.dumps(line)[1:-1] for line in lines]
    return f'\\n"{cell.between}"'.join(pieces)

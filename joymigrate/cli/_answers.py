"""What commands answer: one registry of formats, and one way to write a document in any of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.cli._output import emit, one_of

# Every document has these: its own text, its JSON, and what the renderers make of its blocks.
ALWAYS = ("text", "json", "md", "html")
# What some kinds of documents have beside them; tables of `report.tables` are added.
MORE: Mapping[str, tuple[str, ...]] = {
    "coverage": ("sarif", "junit", "trace"),
    "advice": ("sarif",),
    "journey": ("junit",),
}


def formats_of(noun: str) -> tuple[str, ...]:
    """The formats of one kind of document: `scan` of `joymigrate.scan/1`."""
    from joymigrate.report import tables

    return (*ALWAYS, *MORE.get(noun, ()), *(tables.FORMATS if noun in tables.ROWS else ()))


def check_format(form: str, noun: str) -> str:
    """`form` when such a document has it; `JoyError` with the nearest name otherwise."""
    return one_of(form, formats_of(noun), "--format")


def write_answer(
    document: Mapping[str, Any], form: str, text: str, output: Path | None = None
) -> None:
    """Write a document with its `schema` in a format that `check_format` let pass.

    `text` is what a terminal shows of it; Markdown and pages show all its fields as tables.
    """
    from joymigrate.report import documents, json_, tables

    if form in tables.FORMATS:
        tables.write(tables.frame_of(document), form, output)
    elif form == "text":
        emit(text, output)
    elif form == "json":
        emit(json_.dumps(document), output)
    else:
        view = documents.view_of(document.get("schema"), "this answer")
        emit(documents.show(documents.Opened(document, view, Path("joymigrate")), form), output)

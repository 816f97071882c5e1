"""The documents that joymigrate reads and writes, as JSON Schema for editors and tests."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._common_options import OUTPUT
from joymigrate.cli._output import complain, emit, one_of
from joymigrate.errors import Exit, JoyError

FORMATS = ("text", "json", "md")


def command(
    name: str | None = typer.Argument(
        None, metavar="NAME", help="The document, as in job; without it, all are listed."
    ),
    check: Path | None = typer.Option(
        None, "--check", metavar="FILE", help="Check a YAML, JSON or TOML file: every mistake."
    ),
    format: str | None = typer.Option(
        None, "--format", help="text, json or md (default: json for one, text for the list)."
    ),
    output: Path | None = OUTPUT,
) -> int:
    """Print the JSON Schema (draft 2020-12) of a document, or list all documents.

    A schema of an input lets an editor complete and check the file. A schema of an output says
    what a program may rely on: its keys stay, others may be added.
    """
    from joymigrate.report import json_
    from joymigrate.report import schemas as pages
    from joymigrate.schema import find, json_schema, load_file, mistakes, names

    form = one_of(format or ("json" if name else "text"), FORMATS, "--format")
    if check is not None:
        if name is None:
            raise JoyError("no document to check against", help="joymigrate schema job --check F")
        wanted = find(name)
        if wanted.kind is None:
            raise JoyError(f"'{name}' is written by joymigrate, not read", help="joymigrate schema")
        found = mistakes(wanted.kind, *wanted.within(*load_file(check)))
        complain(str(error) for error in found)
        return Exit.FOUND if found else Exit.OK
    documents = [find(name)] if name else [find(one) for one in names()]
    if form == "md":
        emit(pages.page(documents), output)
    elif form == "text":
        emit(pages.listing(documents), output)
    elif name:
        emit(json_.dumps(json_schema(documents[0])), output)
    else:
        emit(json_.dumps({one.schema: json_schema(one) for one in documents}), output)
    return Exit.OK

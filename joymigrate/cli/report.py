"""Show a result that joymigrate wrote as JSON in another format: a page, a comment, SARIF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._output import emit, one_of, talk
from joymigrate.cli._scanning import View
from joymigrate.errors import Exit, JoyError, did_you_mean

FORMATS = ("html", "md", "text", "sarif", "github")
LANGUAGES = ("en", "zh")


def command(
    file: Path = typer.Argument(..., metavar="FILE", help="A JSON result of joymigrate."),
    format: str = typer.Option("html", "--format", help="html, md, text, sarif or github."),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="FILE", help="Write to FILE."
    ),
    root: Path | None = typer.Option(
        None, "--root", help="Where the sources are now (default: where they were)."
    ),
    lang: str = typer.Option("en", "--lang", help="Language of md and html: en or zh."),
    statistics: bool = typer.Option(False, "--statistics", help="Counts by rule, no findings."),
) -> int:
    """Show a result that joymigrate wrote as JSON in another format."""
    one_of(format, FORMATS, "--format")
    one_of(lang, LANGUAGES, "--lang")
    document = read(file)
    view = View(format, output, lang, "auto", statistics)
    emit(scan(document, file, root, view), output)
    if output is not None:
        talk([f"wrote {output}"])
    return Exit.OK


def read(file: Path) -> dict[str, Any]:
    """The JSON document, with a schema that this command knows."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise JoyError(
            f"cannot read: {error.strerror}", where=str(file), help="name a file that exists"
        ) from None
    except ValueError as error:
        raise JoyError(f"not JSON: {error}", where=str(file), help="name a JSON result") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    known = ("joymigrate.scan/1",)
    if schema not in known:
        raise JoyError(
            f"no report for the schema {schema!r}.{did_you_mean(str(schema), known)}",
            where=str(file),
            help=f"known: {', '.join(known)}",
        )
    return dict(document)


def scan(document: dict[str, Any], file: Path, root: Path | None, view: View) -> str:
    """A `joymigrate.scan/1` document in another format."""
    from dataclasses import replace

    from joymigrate import config
    from joymigrate.cli.scan import render
    from joymigrate.report import json_, result

    found = json_.read(document, str(file))
    if root is not None:
        found = replace(found, root=root)
    effort = config.load(found.root if found.root.exists() else Path.cwd())["effort"]
    baseline = document.get("baseline")
    shown = replace(
        result.build(found, effort),
        known=baseline["known"] if baseline else None,
        base=document.get("since"),
        show_kept="kept" in document,
        statistics=view.statistics,
    )
    return render(shown, view, terminal=False)

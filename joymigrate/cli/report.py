"""Show a result in another format, or a project's page: as a file, or live with --serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import language_of
from joymigrate.cli._output import emit, one_of, split, talk
from joymigrate.cli._scanning import ScanView
from joymigrate.errors import Exit, JoyError, did_you_mean

WANTS = {"package:matplotlib": "the plots of a project's page"}
FORMATS = ("html", "md", "text", "sarif", "github")
JOURNEY = "joymigrate.journey/1"


def command(
    file: Path = typer.Argument(
        Path("."), metavar="PATH", help="A JSON result of joymigrate, or a project's folder."
    ),
    serve: bool = typer.Option(False, "--serve", help="Show the project's page, live."),
    port: int = typer.Option(9310, "--port", min=0, max=65535, help="With --serve; 0: a free one."),
    host: str = typer.Option("127.0.0.1", "--host", help="With --serve: the address to listen on."),
    format: str = typer.Option("html", "--format", help="html, md, text, sarif or github."),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="FILE", help="Write to FILE."
    ),
    root: Path | None = typer.Option(
        None, "--root", help="Where the sources are now (default: where they were)."
    ),
    lang: str | None = LANG,
    statistics: bool = typer.Option(False, "--statistics", help="Counts by rule, no findings."),
    fail_on: str = typer.Option(
        "", "--fail-on", help="Of a rehearsal: exit 1 with fallbacks, traps, refusals …"
    ),
) -> int:
    """Show a result that joymigrate wrote as JSON in another format, or a project's page."""
    from joymigrate.cli import _report_live
    from joymigrate.report import rehearsal

    one_of(format, FORMATS, "--format")
    lang = language_of(lang)
    if serve:
        return _report_live.live(file, host, port, lang)
    if file.is_dir():
        return _report_live.still(file, format, lang, output)
    document = read(file)
    on = rehearsal.grounds(split([fail_on]) if fail_on else [])
    if on and document["schema"] != rehearsal.SCHEMA:
        raise JoyError("--fail-on belongs to a rehearsal", where=str(file), help="leave it out")
    if document["schema"] == JOURNEY:
        emit(_report_live.rendered(document, file.resolve().parent, format, lang, output), output)
        return Exit.OK
    if document["schema"] == rehearsal.SCHEMA:
        one_of(format, rehearsal.FORMATS, "--format of a rehearsal")
        folder = root or Path.cwd()
        emit(rehearsal.render(document, format, folder), output)
        return Exit.FOUND if rehearsal.fails(document, on, folder) else Exit.OK
    view = ScanView(format, output, lang, "auto", statistics)
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
    known = ("joymigrate.scan/1", JOURNEY, "joymigrate.rehearsal/1")
    if schema not in known:
        raise JoyError(
            f"no report for the schema {schema!r}.{did_you_mean(str(schema), known)}",
            where=str(file),
            help=f"known: {', '.join(known)}",
        )
    return dict(document)


def scan(document: dict[str, Any], file: Path, root: Path | None, view: ScanView) -> str:
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
    return render(shown, view, terminal=False, texts=document.get("texts"))

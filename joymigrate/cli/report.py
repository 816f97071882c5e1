"""Show a result in another format, or a project's page: as a file, or live with --serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.cli._common_options import OUTPUT
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import language_of
from joymigrate.cli._output import emit, one_of, split, talk
from joymigrate.cli._scanning import ScanView
from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.report.documents import Opened

ENDINGS = {".md": "md", ".txt": "text", ".sarif": "sarif", ".sarif.json": "sarif", ".csv": "csv"}
OF_SCANS = ("sarif", "github", "csv")  # beside what the renderers draw
JOURNEY, SCAN, REHEARSAL = (f"joymigrate.{noun}/1" for noun in ("journey", "scan", "rehearsal"))
VERDICT = "joymigrate.verdict/1"


def command(
    file: Path = typer.Argument(
        Path("."),
        metavar="PATH",
        help="A file that joymigrate wrote (JSON, JSON lines, .jmb, a trace), or a project.",
    ),
    finding: str | None = typer.Argument(
        None, metavar="[FINDING]", help="After `repro`: the case of a kit, or its operator."
    ),
    score: Path = typer.Option(
        Path("score.json"),
        "--score",
        metavar="FILE",
        help="With `repro`: a score of a kit, a seal, or JSON of a rehearsal, coverage, verdict.",
    ),
    serve: bool = typer.Option(False, "--serve", help="Show the project's page, live."),
    port: int = typer.Option(9310, "--port", min=0, max=65535, help="With --serve; 0: a free one."),
    host: str = typer.Option("127.0.0.1", "--host", help="With --serve: the address to listen on."),
    format: str = typer.Option(
        "",
        "--format",
        help="html, md or text; of findings sarif, github, csv too. Not given: by FILE's ending, "
        "else text on a terminal and html elsewhere.",
    ),
    output: Path | None = OUTPUT,
    bundle: Path | None = typer.Option(
        None, "--bundle", metavar="ZIP", help="Pack the journey and its evidence, to be sent."
    ),
    summary: bool = typer.Option(
        False, "--summary", help="Of a journey: one page for whoever decides."
    ),
    pull_request: bool = typer.Option(
        False, "--pull-request", help="One Markdown page for the reviewer of a migration."
    ),
    root: Path | None = typer.Option(
        None, "--root", help="Where the sources are now (default: where they were)."
    ),
    lang: str | None = LANG,
    statistics: bool = typer.Option(
        False, "--statistics", help="In text: counts by rule, no findings."
    ),
    fail_on: str = typer.Option(
        "", "--fail-on", help="Of a rehearsal: exit 1 with fallbacks, traps, refusals …"
    ),
) -> int:
    """Show what joymigrate wrote in another format, or a project's page.

    `report repro FINDING` writes a short script that shows a finding of the chip-day kit.
    """
    from joymigrate.cli import _report_live
    from joymigrate.report import documents, rehearsal, renderers

    format = format or format_of(output)
    one_of(format, (*renderers.FORMATS, *OF_SCANS), "--format")
    lang = language_of(lang)
    if finding is not None:
        return write_repro(file, finding, score, output)
    if serve:
        return _report_live.live(file, host, port, lang)
    if bundle is not None:
        return _report_live.pack(file, bundle, lang)
    if summary:
        return _report_live.summary(file, format, lang, output)
    if pull_request:
        return _report_live.pull_request(file, lang, output)
    if file.is_dir() and not is_recording(file):
        return _report_live.still(file, format, lang, output)
    opened = documents.open_file(file)
    schema = opened.view.schema
    on = rehearsal.grounds(split([fail_on]) if fail_on else [])
    if on and schema != REHEARSAL:
        raise JoyError("--fail-on belongs to a rehearsal", where=str(file), help="leave it out")
    folder = root or Path.cwd()
    view = ScanView(format, output, lang, statistics)
    emit(render(opened, file, root, view), output)
    if output is not None:
        talk([f"wrote {output}"])
    fails = schema == REHEARSAL and rehearsal.fails(opened.document, on, folder)
    return Exit.FOUND if fails else Exit.OK


def format_of(output: Path | None) -> str:
    """The format that nobody named: a page of HTML is nothing to read on a terminal."""
    if output is not None:
        name = output.name.lower()
        return next((form for end, form in ENDINGS.items() if name.endswith(end)), "html")
    return "text" if sys.stdout.isatty() else "html"


def write_repro(word: Path, finding: str, score: Path, output: Path | None) -> int:
    """The script of a finding, for the vendor's tracker."""
    from joymigrate.files import read_json
    from joymigrate.run.kit import divergence_script, prediction_script, repro, seal
    from joymigrate.run.kit.score import check, judge_rows

    if str(word) != "repro":
        raise JoyError(f"one file at a time: '{finding}' is too much", help="report repro FINDING")
    raw = read_json(score)
    if isinstance(raw, dict) and raw.get("schema") in prediction_script.SCHEMAS:
        read = seal.read(score) if raw["schema"] == prediction_script.SEAL else raw
        emit(prediction_script.script(read, finding), output)
        return Exit.OK
    if isinstance(raw, dict) and raw.get("schema") == divergence_script.SCHEMA:
        emit(divergence_script.script(raw, finding), output)
        return Exit.OK
    document = {**check(raw, str(score))}
    document["results"] = judge_rows(document)
    emit(repro.script(document, repro.find(document, finding)), output)
    return Exit.OK


def is_recording(path: Path) -> bool:
    """Whether a folder is a recording and no project."""
    from joymigrate.report.documents.formats import bundle

    return bundle.matches(path, b"")


def render(opened: Opened, file: Path, root: Path | None, view: ScanView) -> str:
    """A document in a format: with the page of its own where there is one, else as tables."""
    from joymigrate.cli import _report_live, _verdicts
    from joymigrate.language import Language, speaking
    from joymigrate.report import documents, rehearsal, renderers

    document, format = dict(opened.document), view.format
    if opened.view.schema == SCAN:
        return scan(document, file, root, view)
    if opened.view.schema == REHEARSAL and format in rehearsal.FORMATS:
        return rehearsal.render(document, format, root or Path.cwd())
    if opened.view.schema == REHEARSAL and format in renderers.DRAWN:
        from joymigrate.report import rehearsal_document

        with speaking(Language(view.lang, document.get("texts"))):
            return renderers.render(rehearsal_document.describe(document), format)
    one_of(format, documents.FORMATS, f"--format of {opened.view.schema}")
    if opened.view.schema == JOURNEY:
        folder = file.resolve().parent
        with speaking(Language(view.lang)):
            return _report_live.answer_of(document, folder, view.output).draw(format)
    if opened.view.schema == VERDICT:
        shown = _verdicts.answer_of(document, _verdicts.VerdictView(format, view.lang))
        with speaking(Language(view.lang, document.get("texts"))):
            return shown.draw(format)
    with speaking(Language(view.lang, document.get("texts"))):
        return documents.show(opened, format)


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

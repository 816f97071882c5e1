"""Find what keeps a project on its current accelerators; never writes source."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.cli._color import use_color
from joymigrate.cli._common_options import OUTPUT
from joymigrate.cli._language import language_of
from joymigrate.cli._options import spread
from joymigrate.cli._output import emit, one_of, split, talk
from joymigrate.cli._portfolio import rank
from joymigrate.cli._scanning import (
    ScanOptions,
    ScanView,
    configure,
    must_exist,
    now,
    pause_searches,
)
from joymigrate.cli._why import explain_place
from joymigrate.errors import Exit, JoyError
from joymigrate.language import Language, speaking
from joymigrate.report import renderers

if TYPE_CHECKING:
    from joymigrate.config import Config
    from joymigrate.model import Scan
    from joymigrate.report.result import ScanResult

WANTS = {"program:git": "--diff BASE"}

FORMATS = ("text", "json", "sarif", "github", *renderers.DRAWN, "csv")
ALSO = {".json": "json", ".sarif": "sarif", ".md": "md", ".html": "html", ".csv": "csv"}
PORTFOLIO_FORMATS = ("text", "json", *renderers.DRAWN)


@spread
def command(
    *,
    paths: list[Path] | None = typer.Argument(None, metavar="PATH...", help="Files and folders."),
    asked: ScanOptions,
    format: str = typer.Option(
        "text", "--format", help="text, json, sarif, github, md, html or csv."
    ),
    output: Path | None = OUTPUT,
    also: list[Path] = typer.Option(
        [], "--also", metavar="FILE", help="Write to FILE too: .json, .sarif, .md, .html or .csv."
    ),
    follow_imports: list[str] = typer.Option(
        [], "--follow-imports", metavar="PACKAGE", help="Scan this installed package as well."
    ),
    statistics: bool = typer.Option(
        False, "--statistics", help="In text: counts by rule, no findings."
    ),
    baseline: Path | None = typer.Option(
        None, "--baseline", metavar="FILE", help="Leave out the findings that FILE knows."
    ),
    write_baseline: Path | None = typer.Option(
        None, "--write-baseline", metavar="FILE", help="Write all findings to FILE as known ones."
    ),
    diff: str | None = typer.Option(
        None, "--diff", metavar="BASE", help="Only sites on lines new since this git revision."
    ),
    portfolio: Path | None = typer.Option(
        None, "--portfolio", metavar="FILE", help="Rank the repositories that this YAML names."
    ),
    exit_zero: bool = typer.Option(False, "--exit-zero", help="Exit 0 also with findings."),
    why: str | None = typer.Option(
        None, "--why", metavar="FILE:LINE", help="The lines that decided about a place; no report."
    ),
    show_kept: bool = typer.Option(False, "--show-kept", help="Also mentions that stay, and why."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Also files that were not read."),
) -> int:
    """Find what keeps a project on its current accelerators; never writes source.

    Exit code 1 with findings, 0 without.
    """
    pause_searches()
    one_of(format, FORMATS if portfolio is None else PORTFOLIO_FORMATS, "--format")
    lang = language_of(asked.lang, paths[0] if paths else None)
    view = ScanView(format, output, lang, statistics, show_kept, verbose, asked.quiet)
    others = [replace(view, format=form_of(path), output=path) for path in also]
    overrides = {
        **asked.overrides(),
        "follow_imports": split(follow_imports),
        "baseline": None if baseline is None else str(baseline),
    }
    if portfolio is not None:
        alone = {"PATH": paths, "--diff": diff, "--baseline": baseline, "--also": also,
                 "--write-baseline": write_baseline}  # fmt: skip
        for option in (name for name, given in alone.items() if given):
            raise JoyError(f"--portfolio and {option} don't go together", help="leave one out")
        sites = rank(portfolio, asked.origin, overrides, view)
        return Exit.FOUND if sites and not exit_zero else Exit.OK
    if not paths:
        raise JoyError("no PATH to scan", help="joymigrate scan PATH, or --portfolio repos.yaml")
    must_exist(paths)
    settings = configure(paths[0], overrides)
    scan = asked.scan(paths, settings, want_kept=show_kept)
    if why is not None:
        emit(explain_place(scan, why, lang), output)
        return Exit.OK
    if write_baseline is not None:
        return save_baseline(scan, write_baseline)
    result = result_of(scan, settings, paths, diff, view)
    show(result, view)
    for other in others:
        emit(render(result, other, False), other.output)
    return Exit.FOUND if result.scan.findings and not exit_zero else Exit.OK


def form_of(path: Path) -> str:
    """The format that the name of a file says."""
    if path.suffix not in ALSO:
        raise JoyError(f"--also {path}: the name says no format", help=f"one of {', '.join(ALSO)}")
    return ALSO[path.suffix]


def result_of(
    scan: Scan, settings: Config, paths: list[Path], diff: str | None, view: ScanView
) -> ScanResult:
    """The scan after the baseline and `--diff`, with its summary and its rules."""
    from joymigrate.report import result
    from joymigrate.rewrite import baseline, new_lines

    compared = None
    if settings["baseline"] is not None:
        file = baseline_file(settings)
        compared = baseline.compare(scan, baseline.read(file), file.resolve().parent, paths)
        scan = compared.scan
    if diff is not None:
        folders = {path if path.is_dir() else path.parent for path in paths}
        changed = [new_lines.new_lines(diff, folder) for folder in sorted(folders)]
        scan = new_lines.only_new(
            scan, {file: spans for one in changed for file, spans in one.items()}
        )
    return replace(
        result.build(scan, settings["effort"]),
        known=compared.known if compared else None,
        stale=compared.stale if compared else (),
        base=diff,
        show_kept=view.show_kept,
        statistics=view.statistics,
    )


def baseline_file(settings: Config) -> Path:
    """The baseline; one named in a configuration file counts from that file's folder."""
    return settings.folder("baseline") / Path(settings["baseline"])


def save_baseline(scan: Scan, path: Path) -> int:
    """Write all findings as known ones."""
    from joymigrate.report.result import count_words
    from joymigrate.rewrite import baseline

    emit(baseline.render(scan, path.resolve().parent), path)
    talk([f"wrote {count_words(len(scan.findings), 'site')} to {path}"])
    return Exit.OK


def show(result: ScanResult, view: ScanView) -> None:
    """Render the result where it belongs, and say on stderr what it leaves out."""
    from joymigrate.report import text
    from joymigrate.report.result import translate

    result = translate(result, Language(view.lang))
    terminal = view.output is None and view.format == "text" and sys.stdout.isatty()
    color = use_color(sys.stderr)
    lines = text.warnings(result, color=color)
    if view.verbose:
        lines += text.skipped_lines(result)
    if view.format == "text" and not terminal:
        lines += text.readiness(result, color=color).splitlines()
    elif view.output is not None:
        lines.append(f"{result.say('wrote')} {view.output}: {result.last_line()}")
    if terminal and not view.quiet:
        talk(lines)  # above the findings, so that the closing line closes
    emit(render(result, view, terminal), view.output)
    if not terminal and not view.quiet:
        talk(lines)


def render(
    result: ScanResult, view: ScanView, terminal: bool, texts: Mapping[str, Any] | None = None
) -> str:
    """The result in its format and language; `texts` come with a JSON document."""
    from joymigrate.report import csv, github, json_, sarif, scan_document, text
    from joymigrate.report.result import translate

    result = translate(result, Language(view.lang, texts))
    if view.format == "text":
        color = view.output is None and use_color(sys.stdout)
        summary = terminal and not view.quiet
        return text.render(result, terminal=terminal, color=color, summary=summary)
    if view.format in renderers.DRAWN:
        with speaking(Language(view.lang)):
            document = scan_document.describe(result, now())
            return renderers.render(document, view.format, most=scan_document.MOST)
    if view.format == "github":
        return github.render(result)
    if view.format == "csv":
        return csv.render(result)
    return sarif.render(result) if view.format == "sarif" else json_.render(result)

"""The whole journey of a project in one command: scan to serving, with gates and one report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._output import emit, one_of
from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from joymigrate.journey import Gates, Journey, Outcome, Planned

FORMATS = ("text", "json", "md", "junit", "html")
WIDTH = 10


def command(
    path: Path = typer.Argument(Path("."), metavar="PATH", help="The project."),
    entry: str = typer.Option("", "--entry", help="How to start it: 'python train.py --steps 3'."),
    to: str | None = typer.Option(None, "--to", help="The chip; `joymigrate chips list`."),
    style: str = typer.Option("agnostic", "--style", help="agnostic (runs on both) or direct."),
    steps: str = typer.Option("0-2", "--steps", help="Optimiser steps that are compared."),
    serve: Path | None = typer.Option(None, "--serve", help="A folder of weights to try serving."),
    map: Path | None = typer.Option(None, "--map", help="Renamed modules, for the comparison."),
    unsafe: bool = typer.Option(False, "--unsafe", help="Also edits that need a look."),
    allow_dirty: bool = typer.Option(False, "--allow-dirty", help="Uncommitted changes are fine."),
    until: str | None = typer.Option(None, "--until", metavar="STEP", help="Stop after this step."),
    fresh: bool = typer.Option(False, "--fresh", help="Begin anew, whatever was done before."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the plan, do nothing."),
    ci: bool = typer.Option(
        False, "--ci", help="Quiet; also write SARIF, JUnit and Markdown for a pull request."
    ),
    ci_output: Path | None = typer.Option(
        None, "--ci-output", metavar="DIR", help="Where --ci writes (.joymigrate/journey/ci)."
    ),
    report: Path | None = typer.Option(
        None,
        "--report",
        metavar="FILE",
        help="The page (default: .joymigrate/journey/report.html).",
    ),
    format: str = typer.Option("text", "--format", help="text, json, md, junit or html."),
    lang: str = typer.Option("en", "--lang", help="en or zh."),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="No progress."),
) -> int:
    """Take PATH from CUDA to another chip, step by step, as far as the gates let it."""
    from joymigrate import chips, config
    from joymigrate.cli import _program
    from joymigrate.journey import Request, plan, read_gates, travel

    one_of(format, FORMATS, "--format")
    one_of(lang, ("en", "zh"), "--lang")
    one_of(style, ("agnostic", "direct"), "--style")
    if not path.is_dir():
        raise JoyError("the project is a folder", where=str(path), help="joymigrate migrate FOLDER")
    settings = config.load(path)
    gates = read_gates(settings["gates"], settings.sources["gates"])
    chip = chips.target(to or settings["to"])
    words = tuple(shlex.split(entry))
    request = Request(
        project=path.resolve(),
        entry=words,
        command=tuple(_program.resolve(words)) if words else (),
        chip=chip.name,
        style=style,
        steps=steps,
        serve=serve.resolve() if serve else None,
        map=map.resolve() if map else None,
        unsafe=unsafe,
        allow_dirty=allow_dirty,
    )
    if dry_run:
        emit(planned_text(plan(request), gates))
        return Exit.OK
    here = is_here(chip.name)
    journey = travel(
        request, gates, until=until, fresh=fresh, chip_here=here, tell=teller(quiet or ci)
    )
    folder = (ci_output or journey.folder / "ci") if ci else None
    written = write_reports(journey, report, folder, lang)
    emit(rendered(journey, format, lang))
    if not quiet:
        print(f"report: {written}", file=sys.stderr)
    return Exit.FOUND if journey.verdict == "fail" else Exit.OK


def is_here(name: str) -> bool:
    """Whether the chip itself is in this machine."""
    from joymigrate import chips
    from joymigrate.chips import hide_driverless
    from joymigrate.device import why_not

    hide_driverless()
    return why_not(chips.get(name)) is None


def planned_text(steps: list[Planned], gates: Gates) -> str:
    """The plan, and the gates that hold."""
    from dataclasses import asdict

    lines = [
        f"  {number}  {step.name:<{WIDTH}} {step.title}"
        + (f"  (left out: {step.skip})" if step.skip else "")
        for number, step in enumerate(steps, 1)
    ]
    held = ", ".join(f"{name} = {value}" for name, value in asdict(gates).items())
    return "\n".join([*lines, "", f"gates: {held}"]) + "\n"


def teller(quiet: bool) -> Callable[[str, Planned, Outcome | None], None]:
    """Progress: a line per step on stderr; on a terminal the running step shows at once."""
    terminal = sys.stderr.isatty()

    def tell(event: str, planned: Planned, outcome: Outcome | None) -> None:
        if quiet:
            return
        if outcome is None:
            if terminal:
                print(f"  …     {planned.name:<{WIDTH}} {planned.title}", end="\r", file=sys.stderr)
            return
        from joymigrate.report.journey_text import MARKS

        mark = "kept" if event == "kept" else MARKS[outcome.status.value]
        clear = "\033[K" if terminal else ""
        print(f"  {mark}  {planned.name:<{WIDTH}} {outcome.summary}{clear}", file=sys.stderr)

    return tell


def rendered(journey: Journey, format: str, lang: str) -> str:
    """The result in the form that was asked for."""
    import json

    from joymigrate.journey.model import to_json
    from joymigrate.report import journey_html, journey_text

    document = to_json(journey)
    if format == "json":
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if format == "md":
        return journey_text.markdown(document, lang)
    if format == "junit":
        return journey_text.junit(document)
    if format == "html":
        return journey_html.render(document, journey.folder, lang)
    return journey_text.text(document, lang)


def write_reports(journey: Journey, report: Path | None, ci: Path | None, lang: str) -> Path:
    """Write the page, and what a pull request wants; returns where the page lies."""
    import os
    import shutil

    from joymigrate.journey.model import to_json
    from joymigrate.report import journey_html, journey_text

    document = to_json(journey)
    target = (report or journey.folder / "report.html").resolve()
    link = os.path.relpath(journey.folder, target.parent)
    page = journey_html.render(
        document, journey.folder, lang, link="" if link == "." else f"{link}/"
    )
    emit(page, target)
    if ci is not None:
        ci.mkdir(parents=True, exist_ok=True)
        emit(journey_text.junit(document), ci / "junit.xml")
        emit(journey_text.markdown(document, lang), ci / "summary.md")
        findings = journey.folder / "scan" / "scan.sarif"
        if findings.is_file():
            shutil.copyfile(findings, ci / "scan.sarif")
    return target

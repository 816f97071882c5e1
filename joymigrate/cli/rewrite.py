"""Rewrite a project for another accelerator; every write can be undone."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.errors import Exit, JoyError, did_you_mean

if TYPE_CHECKING:
    from joymigrate.ledger import Ledger
    from joymigrate.model import Patch, Scan
    from joymigrate.rewrite.outcome import Outcome

FORMATS = ("text", "json")
STYLES = ("direct", "agnostic", "shim")


def command(
    paths: list[Path] = typer.Argument(..., metavar="PATH", help="Files and folders."),
    to: str | None = typer.Option(None, "--to", help="The chip to migrate to; `joymigrate chips list`."),
    origin: str | None = typer.Option(None, "--from", help="The platform to migrate from."),
    style: str | None = typer.Option(
        None, "--style", help="direct (one chip), agnostic (runs on both) or shim (entry line)."
    ),
    diff: bool = typer.Option(False, "--diff", help="Print the diff, write nothing; 1 if any."),
    check: bool = typer.Option(False, "--check", help="Write nothing; 1 if anything would change."),
    unsafe: bool = typer.Option(False, "--unsafe", help="Also edits that need a look."),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Write a rewritten copy of the tree to DIR."
    ),
    select: list[str] = typer.Option([], "--select", help="Only these rules (ids or prefixes)."),
    ignore: list[str] = typer.Option([], "--ignore", help="Not these rules (ids or prefixes)."),
    exclude: list[str] = typer.Option([], "--exclude", help="Paths to leave out (gitignore form)."),
    allow_dirty: bool = typer.Option(
        False, "--allow-dirty", help="Write even with uncommitted changes in tracked files."
    ),
    chip_version: str | None = typer.Option(
        None, "--chip-version", help="Version of the chip's torch package."
    ),
    format: str = typer.Option("text", "--format", help="text or json."),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Only the last line."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Every site that was left."),
    jobs: int | None = typer.Option(None, "-j", "--jobs", help="Processes; default: one per core."),
) -> int:
    """Rewrite a project for another accelerator, in place or as a copy.

    Safe edits by default, all files or none, as one step that `joymigrate rollback` takes back.
    """
    known(format, FORMATS, "format")
    if output is not None and (diff or check):
        raise JoyError(
            "-o writes a copy, --diff and --check write nothing", help="leave one of them out"
        )
    ledger = one_project(paths)
    overrides = {
        "to": to,
        "style": style,
        "select": split(select),
        "ignore": split(ignore),
        "exclude": exclude,
        "chip_version": chip_version,
        "jobs": jobs,
    }
    scan, patches = find(paths, ledger, origin, unsafe, overrides)
    if diff or check:
        return show(scan, patches, ledger, as_diff=diff, format=format, flags=(verbose, quiet))
    outcome = write(scan, patches, paths, ledger, output, unsafe, allow_dirty)
    emit(outcome, format, wrote=True, verbose=verbose, quiet=quiet)
    return Exit.OK


def known(value: str, names: tuple[str, ...], what: str) -> None:
    """Refuse a value that is not one of `names`."""
    if value not in names:
        raise JoyError(
            f"unknown {what} '{value}'.{did_you_mean(value, names)}",
            help=f"one of {', '.join(names)}",
        )


def split(values: list[str]) -> list[str]:
    """`--select JM101,JM110 --select JM2` as one list."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def one_project(paths: list[Path]) -> Ledger:
    """The ledger that all PATHs share; an interrupted command there is ended first."""
    from joymigrate.ledger import Ledger

    for path in paths:
        if not path.exists():
            raise JoyError("no such file or folder", where=str(path), help="check the path")
    ledgers = {ledger.root: ledger for ledger in map(Ledger.of, paths)}
    if len(ledgers) > 1:
        raise JoyError(
            "the paths belong to several projects: " + ", ".join(map(str, ledgers)),
            help="rewrite one project at a time, so that each can be rolled back",
        )
    ledger = next(iter(ledgers.values()))
    recovered = ledger.recover()
    if recovered is not None:
        state = "completed" if recovered.completed else "taken back"
        print(f"note: the interrupted step {recovered.step.id} was {state}", file=sys.stderr)
    return ledger


def find(
    paths: list[Path], ledger: Ledger, origin: str | None, unsafe: bool, overrides: dict[str, Any]
) -> tuple[Scan, list[Patch]]:
    """Scan and turn findings into patches, under the project's configuration."""
    from joymigrate import chips, config, rewrite
    from joymigrate.model import Style

    settings = config.load(paths[0], overrides)
    known(settings["style"], STYLES, "style")
    scan = rewrite.scan(
        paths,
        chip=chips.target(settings["to"]),
        origin=chips.get(origin) if origin else chips.origin(),
        style=Style(settings["style"]),
        select=settings["select"],
        ignore=settings["ignore"],
        exclude=settings["exclude"],
        follow_imports=(),
        jobs=settings["jobs"],
        chip_version=settings["chip_version"],
    )
    return scan, list(rewrite.patches(scan, unsafe=unsafe))


def show(
    scan: Scan,
    patches: list[Patch],
    ledger: Ledger,
    *,
    as_diff: bool,
    format: str,
    flags: tuple[bool, bool],
) -> int:
    """`--diff` and `--check`: say what would change, write nothing."""
    from joymigrate.rewrite.outcome import Outcome, diff

    patches = [patch for patch in patches if patch.before != patch.after]
    outcome = Outcome(scan, tuple(patches), ledger)
    if as_diff and format == "text":
        sys.stdout.buffer.write(diff(patches, scan.root))
        sys.stdout.flush()
        from joymigrate.report.rewriting import last_line

        print(last_line(outcome, wrote=False), file=sys.stderr)
    else:
        emit(outcome, format, wrote=False, verbose=flags[0], quiet=flags[1])
    return Exit.FOUND if patches else Exit.OK


def write(
    scan: Scan,
    patches: list[Patch],
    paths: list[Path],
    ledger: Ledger,
    output: Path | None,
    unsafe: bool,
    allow_dirty: bool,
) -> Outcome:
    """Write in place, or a copy."""
    from joymigrate.rewrite import outcome

    line = shlex.join(["joymigrate", *sys.argv[1:]])
    patches = [patch for patch in patches if patch.before != patch.after]
    if output is not None:
        return outcome.to_copy(scan, patches, paths, output, command=line, unsafe=unsafe)
    return outcome.in_place(
        scan, patches, ledger, command=line, unsafe=unsafe, allow_dirty=allow_dirty
    )


def emit(outcome: Outcome, format: str, *, wrote: bool, verbose: bool, quiet: bool) -> None:
    """Print the outcome; paths may hold what the terminal's encoding cannot show."""
    from joymigrate.report import rewriting

    if format == "json":
        text = rewriting.as_json(outcome, wrote=wrote)
    else:
        text = rewriting.text(outcome, wrote=wrote, verbose=verbose, quiet=quiet)
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.flush()

"""Rewrite a project for another accelerator; every write can be undone."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._language import language_of
from joymigrate.cli._options import spread
from joymigrate.cli._output import emit, one_of, talk
from joymigrate.cli._scanning import ScanOptions, configure, must_exist, pause_searches
from joymigrate.errors import Exit, JoyError
from joymigrate.language import Language

if TYPE_CHECKING:
    from joymigrate.config import Config
    from joymigrate.ledger import Ledger
    from joymigrate.model import Patch, Scan
    from joymigrate.rewrite.outcome import RewriteOutcome

WANTS = {"program:git": "the check for uncommitted changes"}

FORMATS = ("text", "json", "csv")
SHOWN = 10  # names of files in one line


@spread
def command(
    *,
    paths: list[Path] = typer.Argument(..., metavar="PATH", help="Files and folders."),
    asked: ScanOptions,
    diff: bool = typer.Option(False, "--diff", help="Print the diff, write nothing; 1 if any."),
    check: bool = typer.Option(False, "--check", help="Write nothing; 1 if anything would change."),
    unsafe: bool = typer.Option(False, "--unsafe", help="Also edits that need review."),
    tests: bool = typer.Option(False, "--tests", help="Also tests that need the device."),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Write a rewritten copy of the tree to DIR."
    ),
    multi_card: bool = typer.Option(
        False, "--multi-card", help="Instead: make training scripts for one card run on several."
    ),
    prove: bool = typer.Option(
        False, "--prove", help="Run `-- CMD` before and after in copies; leave out what differs."
    ),
    prove_timeout: float = typer.Option(
        600.0, "--prove-timeout", metavar="SECONDS", help="Longest time of one such run."
    ),
    allow_dirty: bool = typer.Option(
        False, "--allow-dirty", help="Write even with uncommitted changes in tracked files."
    ),
    format: str = typer.Option("text", "--format", help="text, json or csv."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Every site that was left."),
) -> int:
    """Rewrite a project for another accelerator, in place or as a copy.

    Safe edits by default, all files or none, as one step that `joymigrate rollback` takes back.
    """
    pause_searches()
    one_of(format, FORMATS, "--format")
    program: list[str] = []
    if prove:
        paths, program = split_command(paths)
    must_exist(paths)
    lang = language_of(asked.lang, paths[0])
    if output is not None and (diff or check):
        raise JoyError(
            "-o writes a copy, --diff and --check write nothing", help="leave one of them out"
        )
    settings = configure(paths[0], asked.overrides())
    ledger = one_project(paths)

    from joymigrate import rewrite
    from joymigrate.rewrite import device_tests, project_python

    if multi_card and (prove or unsafe or tests or asked.style or asked.select or asked.ignore):
        raise JoyError(
            "--multi-card goes alone: it writes no chip's words",
            help="joymigrate rewrite --multi-card train.py, then joymigrate rewrite train.py",
        )
    if multi_card:
        scan, proven = for_many_cards(paths, asked, settings)
    else:
        if prove and settings["style"] not in ("accelerator", "agnostic"):
            raise JoyError(
                "only code for every machine can run here before and after",
                help="add --style agnostic or --style accelerator",
            )
        scan = asked.scan(paths, settings)
        if tests:
            scan = device_tests.include(scan)
        if prove:
            scan, proven = prove_patches(scan, program, unsafe, prove_timeout, ledger.root)
        else:
            proven = rewrite.patches(scan, unsafe=unsafe)
    kept, notes = project_python.check_patches(proven, ledger.root)
    notes = [*notes, *(scripts_that_stay(scan) if multi_card else ())]
    notes += device_tests.tell_waiting(scan) if not (multi_card or unsafe) else []
    if prove and len(kept) < len(proven):
        notes.append("without these files the others were not run: prove them after this rewrite")
    made = [p for p in kept if p.before != p.after]
    if diff and format == "text":
        return show_diff(scan, made, ledger, lang, notes)
    if diff or check:
        outcome = rewrite_outcome(scan, made, ledger)
    else:
        outcome = write(scan, made, paths, ledger, output, unsafe, allow_dirty)
    outcome = replace(outcome, notes=(*outcome.notes, *notes))
    wrote = not (diff or check)
    if format == "csv":
        emit(in_csv(outcome, wrote=wrote, lang=lang))
    elif format == "json":
        emit(in_json(outcome, wrote=wrote, diff=diff, lang=lang))
    else:
        emit(in_text(outcome, wrote=wrote, verbose=verbose, quiet=asked.quiet, lang=lang))
    return Exit.FOUND if made and not wrote else Exit.OK


def for_many_cards(
    paths: list[Path], asked: ScanOptions, settings: Config
) -> tuple[Scan, list[Patch]]:
    """The scan of `--multi-card`, which looks for nothing else, and its patches."""
    from joymigrate.rewrite.cards import MultiCard, multi_card

    scan = asked.scan(paths, settings, only=MultiCard)
    if not scan.findings:
        raise JoyError(
            "no training script: nothing makes an optimiser of torch over a model's parameters",
            where=", ".join(map(str, paths)),
            help="name the script that trains",
        )
    return scan, multi_card(scan)


def scripts_that_stay(scan: Scan) -> list[str]:
    """What `--multi-card` did not understand, and where."""
    from joymigrate.language import Text

    told = Text("{place} stays as it is: {reason}")
    return [
        told.filled(place=f"{each.path}:{each.line}", reason=str(each.reason))
        for each in scan.findings
        if not each.edits
    ]


def split_command(words: list[Path]) -> tuple[list[Path], list[str]]:
    """PATHs and the command after `--`. Click takes the dashes away; without them in sight the
    command starts with the first word that is no file or folder.

    The command's words stand as they were typed: a `Path` would make `run.sh` of `./run.sh`.
    """
    if "--" in sys.argv:
        program = sys.argv[sys.argv.index("--") + 1 :]
        at = len(words) - len(program)
    else:
        at = next((n for n, word in enumerate(words) if not word.exists()), len(words))
        program = [str(word) for word in words[at:]]
    if not program or not at:
        raise JoyError(
            "--prove needs PATHs and a command", help="joymigrate rewrite . --prove -- pytest -q"
        )
    return words[:at], program


def prove_patches(
    scan: Scan, program: list[str], unsafe: bool, timeout_s: float, project: Path
) -> tuple[Scan, list[Patch]]:
    """The scan with what the program does not stand told as such, and the patches that it stands;
    says what was run, compared and left out."""
    from joymigrate.language import Text
    from joymigrate.rewrite.patch import unit
    from joymigrate.rewrite.prove import prove

    home = project if scan.root.is_relative_to(project) else scan.root
    done = prove(scan, program, unsafe=unsafe, timeout_s=timeout_s, project=home)
    if done is None:
        talk([f"nothing to prove: no edit; `{shlex.join(program)}` was not run"])
        return scan, []
    counts = ", ".join(f"{number} {word}" for number, word in done.before.tests)
    losses, types = len(done.before.losses), len(done.before.types)
    numbers = done.before.numbers.total()
    lines = [
        f"proven with {done.runs} runs of `{shlex.join(program)}`: exit code {done.before.code}, "
        f"{counts or 'no tests'}, {losses} losses, {types} data types "
        f"and {numbers} lines with numbers compared"
    ]
    if not (counts or losses or types or numbers):
        lines.append("note: the program printed no result: only its exit code was compared")
    if counts and done.before.passed == 0:
        lines.append("note: no test passed before any edit: little is proven")
    lines += say_loaded(done.loaded, done.unseen)
    lines += [f"left out, as the program behaves otherwise with it: {one}" for one in done.left]
    talk(lines)
    why = Text("left out by --prove: the program behaves otherwise with it")
    findings = (replace(f, reason=why) if unit(f) in done.left else f for f in scan.findings)
    return replace(scan, findings=tuple(findings)), list(done.patches)


def say_loaded(seen: tuple[str, ...], unseen: tuple[str, ...]) -> list[str]:
    """Which of the changed files the program ran or read."""
    if not seen and not unseen:
        return ["no edit is left"]
    if not seen:
        return ["note: the program loaded none of the changed files: nothing is proven about them"]
    lines = [f"it loaded {len(seen)} of {len(seen) + len(unseen)} changed files"]
    if unseen:
        more = f" and {len(unseen) - SHOWN} more" if len(unseen) > SHOWN else ""
        lines.append(f"nothing is said about {', '.join(unseen[:SHOWN])}{more}")
    return lines


def one_project(paths: list[Path]) -> Ledger:
    """The ledger that all PATHs share; an interrupted command there is ended first."""
    from joymigrate.ledger import Ledger

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
        talk([f"note: the interrupted step {recovered.step.id} was {state}"])
    return ledger


def rewrite_outcome(scan: Scan, made: list[Patch], ledger: Ledger) -> RewriteOutcome:
    """What would be done."""
    from joymigrate.rewrite.outcome import RewriteOutcome

    return RewriteOutcome(scan, tuple(made), ledger)


def show_diff(scan: Scan, made: list[Patch], ledger: Ledger, lang: str, notes: list[str]) -> int:
    """`--diff`: the patch to stdout as bytes, the count to stderr."""
    from joymigrate.report.rewriting import last_line
    from joymigrate.rewrite.outcome import diff

    sys.stdout.flush()
    sys.stdout.buffer.write(diff(made, scan.root))
    sys.stdout.flush()
    say = Language(lang)
    told = [f"{say('note')}: {say(note)}" for note in notes]
    talk([*told, last_line(rewrite_outcome(scan, made, ledger), say, wrote=False)])
    return Exit.FOUND if made else Exit.OK


def write(
    scan: Scan,
    made: list[Patch],
    paths: list[Path],
    ledger: Ledger,
    output: Path | None,
    unsafe: bool,
    allow_dirty: bool,
) -> RewriteOutcome:
    """Write in place, or a copy."""
    from joymigrate.rewrite import outcome

    line = shlex.join(["joymigrate", *sys.argv[1:]])
    if output is not None:
        return outcome.to_copy(scan, made, paths, output, command=line, unsafe=unsafe)
    return outcome.in_place(
        scan, made, ledger, command=line, unsafe=unsafe, allow_dirty=allow_dirty
    )


def in_text(outcome: RewriteOutcome, *, wrote: bool, verbose: bool, quiet: bool, lang: str) -> str:
    """The outcome for people."""
    from joymigrate.report.rewriting import text

    return text(outcome, wrote=wrote, verbose=verbose, quiet=quiet, lang=lang)


def in_csv(outcome: RewriteOutcome, *, wrote: bool, lang: str) -> str:
    """One row for each site, written or left."""
    from joymigrate.report.csv import of_rewrite

    return of_rewrite(outcome, Language(lang), wrote=wrote)


def in_json(outcome: RewriteOutcome, *, wrote: bool, diff: bool, lang: str) -> str:
    """The outcome for machines, with the diff itself under `--diff`."""
    from joymigrate.report.rewriting import as_json
    from joymigrate.rewrite.outcome import diff as diff_of

    patch = diff_of(outcome.patches, outcome.scan.root) if diff else None
    return as_json(outcome, wrote=wrote, diff=patch, lang=lang)

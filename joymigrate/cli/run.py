"""Run an unchanged program on a chip: its source is rewritten in memory as it loads."""

from __future__ import annotations

import sys

import typer

from joymigrate.cli._common_options import TO

NEEDS = ("chip",)

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def command(
    program: list[str] | None = typer.Argument(None, metavar="-- COMMAND"),
    to: str | None = TO,
    switch: str = typer.Option(
        "rules", "--switch", help="rules: joymigrate's own; vendor: the vendor's shim."
    ),
    follow_imports: list[str] = typer.Option(
        [], "--follow-imports", metavar="PACKAGE", help="Rewrite this installed package as well."
    ),
    fill: bool = typer.Option(
        False, "--fill", help="Compute operators that the chip lacks out of those it has."
    ),
    module: str | None = typer.Option(None, "-m", help="Run a module, like python -m."),
    quiet: bool = typer.Option(False, "-q", "--quiet"),
) -> int:
    """Run COMMAND on the chip. Its output and exit code are its own; no file is changed."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from joymigrate import chips, config, launching
    from joymigrate.blame.text import unread_lines
    from joymigrate.cli import _fill, _switch
    from joymigrate.run.door.notes import read_notes

    chip = chips.target(to or config.load(Path.cwd())["to"])
    arguments = [*(["-m", module] if module else []), *(program or [])]
    resolved = launching.resolve(arguments)
    base = launching.environment()
    if fill:
        base = _fill.fill_environment(base, chip.name)
    with TemporaryDirectory(prefix="joymigrate-run-") as notes:
        with _switch.switch_to(
            resolved, base, chip=chip, kind=switch, follow_imports=follow_imports, quiet=quiet,
            notes=notes,
        ) as environment:  # fmt: skip
            code = launching.run_with_hooks(resolved, environment)
        if not quiet:
            for line in unread_lines(read_notes(Path(notes))["words"]):
                print(f"switch: {line}", file=sys.stderr)
    if code and not quiet:
        for line in _switch.no_chip(chip, arguments):
            print(line, file=sys.stderr)
    return code

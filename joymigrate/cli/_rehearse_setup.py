"""`rehearse setup`: the vendor's package in a folder of its own, which only rehearsals see."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import typer

from joymigrate.errors import Exit, JoyError


def run(arguments: list[str]) -> int:
    """Parse what follows `joymigrate rehearse setup`, and do it."""
    found = parser().main(
        args=arguments, prog_name="joymigrate rehearse setup", standalone_mode=False
    )
    return int(found or 0)


def parser() -> Any:
    """The sub-command as click knows it; `rehearse` itself takes any program's words."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command("setup")(command)
    return typer.main.get_command(app)


def command(
    release: str | None = typer.Option(
        None, "--release", metavar="VERSION", help="This release, not the one for this torch."
    ),
    listed: bool = typer.Option(False, "--list", help="Only list the releases that are there."),
    show: bool = typer.Option(False, "--show", help="Only print pip's command."),
) -> int:
    """Put the chip's package that fits this torch into joymigrate's cache.

    Only rehearsals see it; nothing else in this environment changes. Several releases lie side by
    side. pip checks the hash of what it downloads.
    """
    from joymigrate.run.rehearse import releases

    if listed:
        for one in releases.list_kept():
            print(f"{one.version:<16} {one.folder}")
        return Exit.OK
    if show:
        print(by_hand(release))
        return Exit.OK
    made = releases.set_up(release, tell=tell)
    print(f"{releases.PACKAGE} {made.version} for rehearsals: {made.folder}")
    torch = releases.torch_version()
    if not releases.fits(made.version, torch):
        tell(f"rehearsals here do not take it: it fits another torch than {torch}")
    return Exit.OK


def by_hand(release: str | None = None) -> str:
    """pip's command for the release."""
    from joymigrate.run.rehearse import releases

    folder = releases.root() / f"{release or 'VERSION'}-{releases.tag()}"
    return shlex.join(releases.pip_command(releases.requirement(release), folder))


def offer(*, yes: bool) -> None:
    """Get the package where a rehearsal would find none: asked for, or after a question.

    Without a terminal nothing is downloaded unasked: the rehearsal's own error names the command.
    """
    from joymigrate.run.rehearse import releases

    if releases.available():
        return
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        question = (
            f"A rehearsal runs the vendor's own package, and it is missing. Get "
            f"{releases.requirement()} into {releases.root()}? Nothing else changes."
        )
        if not typer.confirm(question, default=True, err=True):
            raise JoyError(
                f"a rehearsal needs {releases.PACKAGE}", help="joymigrate rehearse setup"
            )
    releases.set_up(tell=tell)


def tell(line: str) -> None:
    """Talk, on stderr."""
    print(line, file=sys.stderr, flush=True)

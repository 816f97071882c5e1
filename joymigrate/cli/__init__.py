"""The command line. One file here is one command; nothing lists them.

A module `cli/<name>.py` whose name does not start with an underscore is the command `<name>`
(underscores become dashes). Its docstring's first line is the summary that `joymigrate --help`
shows, read without importing the module, so that help stays fast. The module defines either
`command`, a typer function, or `app`, a `typer.Typer` with sub-commands.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and leave the process with the command's exit code."""
    try:
        from joymigrate.cli._main import run

        code = run()
    except KeyboardInterrupt:  # while the command line itself was loading
        code = 130
    raise SystemExit(code)

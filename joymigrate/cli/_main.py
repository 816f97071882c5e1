"""Finds the commands, runs one, and turns every outcome into an exit code."""

from __future__ import annotations

import importlib
import io
import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from joymigrate.cli import _color, _examples, _shared_options
from joymigrate.cli._commands import COMMANDS, command_names
from joymigrate.cli._failures import bug, leave_stdout, outside, show_error, usage_error
from joymigrate.errors import Exit, JoyError, did_you_mean
from joymigrate.extras import absent


def summary(name: str) -> str:
    """First line of the command module's docstring, without importing the module."""
    head = (COMMANDS / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")[:400]
    match = re.match(r'\s*(?:"""|\'\'\')(.+?)(?:\n|"""|\'\'\')', head)
    return match.group(1).strip() if match else ""


@dataclass(frozen=True, slots=True)
class CompletionOffer:
    """What a shell shows for a word that may follow; named as typer's shells read it."""

    value: str
    help: str
    type: str = "plain"


class Commands(TyperGroup):
    """A group whose members are the modules of `joymigrate.cli`, imported when used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in command_names():
            return None
        return load(cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`joymigrate help scan` is `joymigrate scan --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in command_names() and not args[0].startswith("-"):
            hint = did_you_mean(args[0], command_names())
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Commands with their summaries; without importing them, for the user waits."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        names = [name for name in command_names() if name.startswith(incomplete)]
        return [
            CompletionOffer(name, textwrap.shorten(summary(name), 60, placeholder="..."))
            for name in names
        ]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Plain help: importing every command for its help text would load torch and libcst."""
        formatter.write(help_text(shutil.get_terminal_size((100, 24)).columns) + "\n")


OPTIONS = {
    "--version": "Show the version and exit.",
    "--settings FILE": "The configuration file (default: the nearest joymigrate.toml or "
    "pyproject.toml with [tool.joymigrate]).",
    "--color WHEN": "Colour in the output: auto, always or never.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show the completion script for the current shell.",
    "-h, --help": "Show this message and exit.",
}

START = ("scan .", "migrate . --dry-run")


def help_text(columns: int) -> str:
    """The help of the whole program, as wide as the terminal."""
    about = (
        "Move PyTorch workloads from NVIDIA GPUs to other accelerators, and prove that they still "
        "compute the same thing."
    )
    columns = max(40, min(columns, 100))
    usage = "Usage: joymigrate [OPTIONS] COMMAND [ARGS]..."
    last = "`joymigrate COMMAND --help` explains one command."
    lines = [*textwrap.wrap(usage, columns), "", *textwrap.wrap(about, columns)]
    tables = {"Commands": {name: summary(name) for name in command_names()}, "Options": OPTIONS}
    for title, table in tables.items():
        lines += ["", f"{title}:"]
        width = max(map(len, table))
        for name, text in table.items():
            start, rest = f"  {name:<{width}}  ", " " * (width + 4)
            if columns - len(rest) < 24:  # too narrow for two columns
                lines.append(f"  {name}")
                start = rest = " " * 6
            lines += textwrap.wrap(text, columns, initial_indent=start, subsequent_indent=rest)
    shown = ["", "Examples:", *(f"  joymigrate {line}" for line in START), ""]
    return "\n".join([*lines, *shown, *textwrap.wrap(last, columns)])


def load(name: str) -> Any:
    """Import the module of command `name` and turn it into a click command."""
    module = importlib.import_module(f"joymigrate.cli.{name.replace('-', '_')}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        kind = getattr(module, "COMMAND_CLASS", TyperCommand)
        app.command(name, cls=kind, context_settings=settings)(module.command)
    command = typer.main.get_command(app)
    command.name = name
    _examples.attach(command, name)
    _shared_options.equip(command)
    if "_JOYMIGRATE_COMPLETE" in os.environ:
        from joymigrate.cli._completion import equip

        equip(command, name)
    return command


def version(value: bool) -> None:
    """Print the version and stop, for `--version`."""
    if value:
        from joymigrate import __version__

        typer.echo(f"joymigrate {__version__}")
        raise typer.Exit()


root = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@root.callback()
def options(
    settings: Path | None = typer.Option(None, "--settings", help="The configuration file."),
    show_version: bool = typer.Option(False, "--version", callback=version, is_eager=True),
    color: str | None = typer.Option(None, "--color", metavar="WHEN", callback=_color.choose),
) -> None:
    """Options before the command; `--color` may also stand behind it, and counts there."""
    if settings is not None:
        os.environ["JOYMIGRATE_SETTINGS"] = str(settings)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code (see `joymigrate.errors.Exit`)."""
    open_streams()
    prepare_environment()
    command = typer.main.get_command(root)
    try:
        with _shared_options.keep_process():
            result = command.main(args=arguments, prog_name="joymigrate", standalone_mode=False)
        sys.stdout.flush()
    except JoyError as error:
        return show_error(error)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error of this program.
        leave_stdout()
        return Exit.OK
    except Exception as error:
        known = outside(error) or (absent(error) if isinstance(error, ImportError) else None)
        if known is not None:
            return show_error(known)
        return usage_error(error) if hasattr(error, "format_message") else bug(error)
    return int(result) if isinstance(result, int) else Exit.OK


def open_streams() -> None:
    """Streams that can be written to, whatever the process was started with (`>&-`, LC_ALL=C)."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # a name that the locale can't show is shown escaped
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def prepare_environment() -> None:
    """Keep torch from loading a chip's package, which may fail where there is no SDK.

    Whoever starts the user's program restores the value it came with (JOYMIGRATE_CALLER_AUTOLOAD).
    """
    if "JOYMIGRATE_CALLER_AUTOLOAD" not in os.environ:
        os.environ["JOYMIGRATE_CALLER_AUTOLOAD"] = os.environ.get(
            "TORCH_DEVICE_BACKEND_AUTOLOAD", ""
        )
    if not os.environ.get("JOYMIGRATE_REHEARSE"):
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

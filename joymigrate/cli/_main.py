"""Finds the commands, runs one, and turns every outcome into an exit code."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from joymigrate.errors import Exit, JoyError, did_you_mean

COMMANDS = Path(__file__).parent


def command_names() -> list[str]:
    """Names of all commands, from the files of this folder."""
    return sorted(
        path.stem.replace("_", "-") for path in COMMANDS.glob("*.py") if path.stem[0] != "_"
    )


def summary(name: str) -> str:
    """First line of the command module's docstring, without importing the module."""
    head = (COMMANDS / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")[:400]
    match = re.match(r'\s*(?:"""|\'\'\')(.+?)(?:\n|"""|\'\'\')', head)
    return match.group(1).strip() if match else ""


class Commands(TyperGroup):
    """A group whose members are the modules of `joymigrate.cli`, imported when used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in command_names():
            return None
        return load(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in command_names() and not args[0].startswith("-"):
            hint = did_you_mean(args[0], command_names())
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Plain help: importing every command for its help text would load torch and libcst."""
        names = command_names()
        width = max(map(len, names))
        lines = [
            "Usage: joymigrate [OPTIONS] COMMAND [ARGS]...",
            "",
            "Move PyTorch workloads from NVIDIA GPUs to other accelerators, and prove that they",
            "still compute the same thing.",
            "",
            "Commands:",
            *(f"  {name:<{width}}  {summary(name)}" for name in names),
            "",
            "Options:",
            "  --version             Show the version and exit.",
            "  --settings FILE       The configuration file (default: the nearest joymigrate.toml",
            "                        or pyproject.toml with [tool.joymigrate]).",
            "  --install-completion  Install completion for the current shell.",
            "  --show-completion     Show the completion script for the current shell.",
            "  --help                Show this message and exit.",
            "",
            "`joymigrate COMMAND --help` explains one command.",
        ]
        formatter.write("\n".join(lines) + "\n")


def load(name: str) -> Any:
    """Import the module of command `name` and turn it into a click command."""
    module = importlib.import_module(f"joymigrate.cli.{name.replace('-', '_')}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        app.command(name, context_settings=settings)(module.command)
    command = typer.main.get_command(app)
    command.name = name
    return command


def version(value: bool) -> None:
    """Print the version and stop, for `--version`."""
    if value:
        from joymigrate import __version__

        typer.echo(f"joymigrate {__version__}")
        raise typer.Exit()


root = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None)


@root.callback()
def options(
    settings: Path | None = typer.Option(None, "--settings", help="The configuration file."),
    show_version: bool = typer.Option(False, "--version", callback=version, is_eager=True),
) -> None:
    """Options before the command."""
    if settings is not None:
        os.environ["JOYMIGRATE_SETTINGS"] = str(settings)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code (see `joymigrate.errors.Exit`)."""
    # With a chip's package installed and no SDK, a plain `import torch` may fail. Whoever starts
    # the user's program restores the value it came with (JOYMIGRATE_CALLER_AUTOLOAD).
    if "JOYMIGRATE_CALLER_AUTOLOAD" not in os.environ:
        os.environ["JOYMIGRATE_CALLER_AUTOLOAD"] = os.environ.get(
            "TORCH_DEVICE_BACKEND_AUTOLOAD", ""
        )
    if not os.environ.get("JOYMIGRATE_REHEARSE"):
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    command = typer.main.get_command(root)
    try:
        result = command.main(args=arguments, prog_name="joymigrate", standalone_mode=False)
    except JoyError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.ERROR
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error of this program.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:
        return usage_error(error) if hasattr(error, "format_message") else bug(error)
    return int(result) if isinstance(result, int) else Exit.OK


def usage_error(error: Any) -> int:
    """Show a wrong command line in one line, with how to get help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return Exit.ERROR
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "joymigrate"
    message = error.format_message()
    if message:
        print(f"error: {message}\n  help: {where} --help", file=sys.stderr)
    return Exit.ERROR


def bug(error: BaseException) -> int:
    """Report our own mistake as such."""
    traceback.print_exception(error)
    print(
        "error: this is a bug in joymigrate, not a mistake of yours\n"
        "  help: report it with the lines above and the command line",
        file=sys.stderr,
    )
    return Exit.ERROR

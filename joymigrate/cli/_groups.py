"""Command groups, with a default command where one is wanted: `serve DIR` beside `serve models`."""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from joymigrate.errors import did_you_mean


class DefaultGroup(TyperGroup):
    """Routes to the sub-command named `default` unless the first argument names another one.

    A first argument that names a sub-command is one; `./models` forces a path.
    """

    default = "default"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        wants_group = not args or args[0] in self.commands or args[0] in ("--help", "-h")
        if not wants_group:
            self.refuse_typo(ctx, args)
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def refuse_typo(self, ctx: Any, args: list[str]) -> None:
        """Name the sub-command that a word which is no path was probably meant to be."""
        word = args[0]
        named = [name for name, inner in self.commands.items() if not inner.hidden]
        hint = did_you_mean(word, named)
        if hint and not os.path.lexists(word) and "--engine" not in args:
            ctx.fail(f"'{word}' is no sub-command, and no such path is there.{hint}")

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Sub-commands, and the options of the default."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            inner = self.commands[self.default]
            found += inner.shell_complete(type(ctx)(inner, parent=ctx), incomplete)
        return found


def group(help: str, *, default: bool = False) -> typer.Typer:
    """A typer application for a command with sub-commands.

    With `default`, a hidden sub-command called `default` takes every command line whose first
    argument does not name a sub-command.
    """
    app = typer.Typer(
        cls=DefaultGroup if default else TyperGroup,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
    app.callback()(lambda: None)  # keeps a group of one sub-command a group
    return app

"""Command groups, with a default command where one is wanted: `serve DIR` beside `serve models`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class DefaultGroup(TyperGroup):
    """Routes to the sub-command named `default` unless the first argument names another one.

    A first argument that names a sub-command is one; `./models` forces a path.
    """

    default = "default"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        wants_group = not args or args[0] in self.commands or args[0] in ("--help", "-h")
        if not wants_group:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


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

"""`cluster users` and `cluster audit`: who may ask the controller for what, and who has asked."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from joymigrate.cli._cluster_orders import ADDRESS, FORMAT, LINES, OUTPUT, ask, refuse_empty
from joymigrate.cli._groups import group
from joymigrate.cli._output import emit, one_of, split, user
from joymigrate.errors import Exit

NAME = typer.Argument(..., help="The user's name.", callback=refuse_empty)

users_app = group("Give tokens and roles; from the first user on every request needs a token.")


def register(app: typer.Typer) -> None:
    """Add the commands to `cluster`."""
    for command in (add, show, remove):
        users_app.command(command.__name__)(command)
    app.add_typer(users_app, name="users")
    app.command("audit")(audit)


def add(
    name: str = NAME,
    role: str = typer.Option(
        "user", "--role", help="viewer, user (own jobs), operator (all jobs, nodes) or admin."
    ),
    queues: list[str] = typer.Option([], "--queue", help="Queues to submit to; default: all."),
    address: str | None = ADDRESS,
) -> int:
    """Make a user and print their token, once; the first one must be an admin."""
    token = ask(address, "add_user", name, role, tuple(split(queues)), user())
    print(f"JOYMIGRATE_TOKEN={token}")
    return Exit.OK


def remove(name: str = NAME, address: str | None = ADDRESS) -> int:
    """Take a user's token back; their jobs stay."""
    ask(address, "remove_user", name, user())
    print(f"{name}: removed")
    return Exit.OK


def show(address: str | None = ADDRESS, form: str = FORMAT) -> int:
    """Show users, roles and queues."""
    from joymigrate.report import cluster as report

    one_of(form, ("text", "json"), "--format")
    rows = ask(address, "users")
    data = {"schema": "joymigrate.users/1", "users": rows}
    text = json.dumps(data, ensure_ascii=False, indent=2) + "\n"
    emit(text if form == "json" else report.users(rows))
    return Exit.OK


def audit(
    lines: int = LINES,
    address: str | None = ADDRESS,
    form: str = FORMAT,
    output: Path | None = OUTPUT,
) -> int:
    """Show who asked for what, when, and whether it was done, refused or failed."""
    from joymigrate.report import cluster as report

    one_of(form, ("text", "json"), "--format")
    rows = ask(address, "audit", lines)
    data = {"schema": "joymigrate.audit/1", "requests": rows}
    text = json.dumps(data, ensure_ascii=False, indent=2) + "\n"
    emit(text if form == "json" else report.audit(rows), output)
    return Exit.OK

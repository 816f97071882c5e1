"""The server of tools for coding agents."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import typer

from joymigrate.cli._scanning import must_exist
from joymigrate.errors import Exit, JoyError
from joymigrate.extras import need

NEEDS = ("extra:agent",)
TOKEN = "JOYMIGRATE_MCP_TOKEN"
SHORTEST = 16


def command(
    roots: list[Path] | None = typer.Argument(
        None, metavar="[ROOT]...", help="Folders that may be used (default: this one)."
    ),
    allow_run: bool = typer.Option(False, "--allow-run", help="Tools may start programs."),
    allow_write: bool = typer.Option(False, "--allow-write", help="Tools may write files."),
    http: int | None = typer.Option(
        None,
        "--http",
        metavar="PORT",
        min=1,
        max=65535,
        help=f"On 127.0.0.1 with a token ({TOKEN}, else a new one) in place of stdin and stdout.",
    ),
) -> int:
    """Serve our tools to a coding agent by the Model Context Protocol, below the ROOTs alone."""
    need("agent", "mcp", what="joymigrate mcp")
    from joymigrate.agent.door import server

    places = roots or [Path.cwd()]
    must_exist(places)
    files = [str(one) for one in places if not one.is_dir()]
    if files:
        raise JoyError(f"a root is a folder: {files[0]}", help="joymigrate mcp FOLDER")
    allowed = server.Allowed(tuple(one.resolve() for one in places), allow_run, allow_write)
    if http is None:
        server.serve_stdio(allowed)
        return Exit.OK
    given = os.environ.get(TOKEN, "")
    if given and len(given) < SHORTEST:
        raise JoyError(f"{TOKEN} has {len(given)} characters", help=f"at least {SHORTEST}")
    token = given or secrets.token_urlsafe(24)
    lines = [f"joymigrate mcp on http://127.0.0.1:{http}/mcp (Ctrl-C ends it)"]
    server.tell_people(lines if given else [*lines, f"token: {token}"])
    server.serve_http(allowed, http, token)
    return Exit.OK

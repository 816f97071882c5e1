"""`cluster watch`: why gangs of a Kubernetes cluster wait, again whenever something changes."""

from __future__ import annotations

import json
from datetime import datetime

import typer

from joymigrate.cli._output import emit, one_of
from joymigrate.errors import Exit, JoyError


def register(app: typer.Typer) -> None:
    """Add the command to `cluster`."""
    app.command("watch")(watch)


def watch(
    context: str | None = typer.Option(None, "--context", help="Context of the kubeconfig."),
    once: bool = typer.Option(False, "--once", help="Look once and end."),
    every: float = typer.Option(30.0, "--every", help="Seconds between looks without a change."),
    form: str = typer.Option("text", "--format", help="text or json (one document a line)."),
) -> int:
    """Say why gangs of a Kubernetes cluster wait, and what is enough; changes nothing."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster.kubernetes.apply import connect
    from joymigrate.run.cluster.kubernetes.watching import watch as looks

    one_of(form, ("text", "json"), "--format")
    if not 1 <= every <= 86400:
        raise JoyError(f"--every is {every:g}", help="1 to 86400 seconds")
    for data in looks(connect(context), every, once):
        if form == "json":
            emit(json.dumps(data, ensure_ascii=False) + "\n")
            continue
        if not once:
            print(f"-- {datetime.now().isoformat(' ', 'seconds')}")
        emit(report.live(data))
    return Exit.OK

"""`cluster watch` and `cluster extender`: a live Kubernetes cluster, and a door into Volcano."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import typer

from joymigrate.cli._output import emit, one_of, talk
from joymigrate.errors import Exit, JoyError


def register(app: typer.Typer) -> None:
    """Add the commands to `cluster`."""
    app.command("watch")(watch)
    app.command("extender")(extender)


def watch(
    context: str | None = typer.Option(None, "--context", help="Context of the kubeconfig."),
    once: bool = typer.Option(False, "--once", help="Look once and end."),
    every: float = typer.Option(30.0, "--every", help="Seconds between looks without a change."),
    form: str = typer.Option("text", "--format", help="text or json (one document a line)."),
) -> int:
    """Say why gangs of a Kubernetes cluster wait, and what is enough; changes nothing."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster.kubernetes.apply import connect
    from joymigrate.run.cluster.kubernetes.cluster_watch import watch as looks

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


ARGUMENTS = """note: Volcano's scheduler loads this with the plug-in `extender` and the arguments
  extender.urlPrefix: http://{host}:{port}
  extender.httpTimeout: 2s
  extender.ignorable: true
{verbs}"""


def extender(
    queues: Path | None = typer.Option(
        None, "--queues", help="A file of queues and weights; default: Volcano's own queues."
    ),
    listen: str = typer.Option("127.0.0.1:9500", "--listen", help="HOST:PORT to answer at."),
) -> int:
    """Answer Volcano's `extender` plug-in: one MIN and MAX over GPUs and NPUs, and whole gangs."""
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster.kubernetes.extender import Extender, serve

    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise JoyError(f"--listen is '{listen}'", help="HOST:PORT, for example 127.0.0.1:9500")
    known = None if queues is None else work.load_queues(queues)
    one = Extender(time.time, known.queues, known.weights) if known else Extender(time.time)
    server = serve(host or "127.0.0.1", int(port), one)
    verbs = "\n".join(f"  extender.{verb}Verb: {verb}" for verb in one.verbs)
    talk([ARGUMENTS.format(host=host, port=server.server_address[1], verbs=verbs)])
    try:
        while True:
            time.sleep(3600)
    finally:
        server.shutdown()

"""A live Kubernetes cluster: `cluster watch`, and the doors into Volcano and into Kueue."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import typer

from joymigrate.cli._output import emit, one_of, talk
from joymigrate.errors import Exit, JoyError

CONTEXT = typer.Option(None, "--context", help="Context of the kubeconfig.")
ONCE = typer.Option(False, "--once", help="Look once and end.")
EVERY = typer.Option(30.0, "--every", help="Seconds between looks without a change.")
QUEUES = typer.Option(
    None, "--queues", help="A file of queues and weights; default: the engine's own queues."
)


def register(app: typer.Typer) -> None:
    """Add the commands to `cluster`."""
    app.command("watch")(watch)
    app.command("extender")(extender)
    app.command("admission")(admission)


def watch(
    context: str | None = CONTEXT,
    once: bool = ONCE,
    every: float = EVERY,
    form: str = typer.Option("text", "--format", help="text or json (one document a line)."),
) -> int:
    """Say why gangs of a Kubernetes cluster wait, and what is enough; changes nothing."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster.kubernetes.apply import connect
    from joymigrate.run.cluster.kubernetes.cluster_watch import watch as looks

    one_of(form, ("text", "json"), "--format")
    check_every(every)
    for data in looks(connect(context), every, once):
        if form == "json":
            emit(json.dumps(data, ensure_ascii=False) + "\n")
            continue
        if not once:
            print(f"-- {datetime.now().isoformat(' ', 'seconds')}")
        emit(report.live(data))
    return Exit.OK


def check_every(every: float) -> None:
    """Refuse a time between looks that is none."""
    if not 1 <= every <= 86400:
        raise JoyError(f"--every is {every:g}", help="1 to 86400 seconds")


def admission(
    queues: Path | None = QUEUES,
    context: str | None = CONTEXT,
    once: bool = ONCE,
    every: float = EVERY,
) -> int:
    """Decide Kueue's AdmissionChecks of `joymigrate.io/cluster`: one MIN and MAX over all cards."""
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster.kubernetes import admission_checks
    from joymigrate.run.cluster.kubernetes.apply import connect

    check_every(every)
    known = work.Workload(()) if queues is None else work.load_queues(queues)
    client = connect(context)
    for one in admission_checks.serve(client, every, known.queues, known.weights, once):
        emit(f"{one.name}: {one.state}: {one.message}\n")
    return Exit.OK


ARGUMENTS = """note: Volcano's scheduler loads this with the plug-in `extender` and the arguments
  extender.urlPrefix: http://{host}:{port}
  extender.httpTimeout: 2s
  extender.ignorable: true
{verbs}"""


def extender(
    queues: Path | None = QUEUES,
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

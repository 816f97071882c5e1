"""Watch services: a dashboard; export rules for Prometheus and a dashboard for Grafana."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import typer

from joymigrate.cli._common_options import OUTPUT
from joymigrate.errors import Exit, JoyError
from joymigrate.files import write_output

NEEDS = {"URL": ("extra:serve",), "--export": ()}


def command(
    sources: list[str] = typer.Argument(
        None,
        metavar="[NAME=]URL…",
        help="Metrics pages: gateways, engines, device exporters (default: the local gateway).",
    ),
    port: int = typer.Option(9300, "--port", min=0, max=65535, help="Where the dashboard listens."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address of the dashboard."),
    interval: float = typer.Option(2.0, "--interval", min=0.1, help="Seconds between readings."),
    no_devices: bool = typer.Option(
        False, "--no-devices", help="Leave this machine's devices out."
    ),
    key: str | None = typer.Option(
        None, "--key", envvar="JOYMIGRATE_ADMIN_KEY", help="The gateway's admin key."
    ),
    export: str | None = typer.Option(
        None, "--export", help="Print `prometheus` rules or a `grafana` dashboard and stop."
    ),
    output: Path | None = OUTPUT,
) -> int:
    """Show what services do."""
    if export is not None:
        return show_export(export, output)
    import asyncio

    from joymigrate.cli.serve import need_extra, talk

    need_extra()
    from joymigrate.run.serve.monitor import service, web

    pages = [service.MonitorPage(*split_name(text), key) for text in sources or DEFAULT]
    made = service.Monitor(pages, interval, not no_devices, talk)
    asyncio.run(web.serve(made, host, port, talk))
    return Exit.OK


DEFAULT = ["gateway=http://127.0.0.1:8080/metrics"]


def split_name(text: str) -> tuple[str, str]:
    """Name and address of a source. A bare host and port means its /metrics."""
    name, found, url = text.partition("=")
    if not found or "://" in name:
        name, url = "", text
    if not url.startswith(("http://", "https://")):
        raise JoyError(
            f"a source is an address, got {text!r}",
            help="for example engine=http://10.0.0.7:8000/metrics",
        )
    rest = url.split("://", 1)[1]
    if "/" not in rest.rstrip("/"):
        url = url.rstrip("/") + "/metrics"
    return name or rest.split("/")[0], url


def show_export(kind: str, output: Path | None) -> int:
    """Print rules or a dashboard."""
    files = {"prometheus": "prometheus.yaml", "grafana": "grafana.json"}
    if kind not in files:
        raise JoyError(f"unknown export '{kind}'", help="--export prometheus or --export grafana")
    text = resources.files("joymigrate.run.serve.monitor").joinpath(files[kind]).read_bytes()
    if output is None:
        print(text.decode("utf-8"), end="")
        return Exit.OK
    write_output(output, text)
    return Exit.OK

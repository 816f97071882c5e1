"""Serve models: an OpenAI and Triton endpoint, or a gateway with hot standby and rollback."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._groups import group
from joymigrate.errors import Exit, JoyError

app = group(
    "Serve models: a gateway with hot standby, ramp and rollback; simulate, drill, rollout.",
    default=True,
)
rollout = group("See and steer the rollout of a running gateway.")
app.add_typer(rollout, name="rollout")


@app.command("default", hidden=True)
def serve(
    model: Path | None = typer.Argument(None, help="A model folder to serve."),
    config: Path | None = typer.Option(None, "--config", help="The gateway's file."),
    unverified: bool = typer.Option(
        False, "--unverified", help="Ramp a standby that has no passing verdict."
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Say nothing but errors."),
) -> int:
    """Run a gateway in front of two backends: `serve --config gateway.yaml`."""
    if config is None:
        raise JoyError(
            "the engine that serves a model folder is not part of this version",
            where=str(model) if model else None,
            help="put a gateway in front of running servers: joymigrate serve --config FILE",
        )
    if model is not None:
        raise JoyError(
            f"both a model ({model}) and --config were given",
            help="name the backends in the gateway's file",
        )
    import asyncio

    from joymigrate.run.gateway import settings

    loaded = settings.load(config)
    need_extra()
    from joymigrate.run.gateway import server

    gateway = server.Gateway(
        loaded, unverified=unverified, talk=(lambda line: None) if quiet else talk
    )
    asyncio.run(server.run(gateway))
    return Exit.OK


def talk(line: str) -> None:
    """Say something to the operator, at once."""
    import sys
    import time

    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", file=sys.stderr, flush=True)


def need_extra() -> None:
    """The libraries of the `serve` extra, or which command installs them."""
    import importlib.util

    wanted = ("aiohttp", "orjson", "prometheus_client", "psutil")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise JoyError(
            f"serving needs {', '.join(missing)}", help="pip install 'joymigrate[serve]'"
        )

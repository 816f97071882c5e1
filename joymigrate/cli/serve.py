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


def address(url: str | None, config: Path | None) -> str:
    """Where the gateway listens: --url, or what its file says."""
    if url is not None:
        return url
    if config is None:
        return "http://127.0.0.1:8080"
    from joymigrate.run.gateway import settings

    loaded = settings.load(config)
    return f"http://{loaded.host}:{loaded.port}"


URL = typer.Option(None, "--url", help="The gateway's address (default: http://127.0.0.1:8080).")
CONFIG = typer.Option(None, "--config", help="The gateway's file, for its address.")
KEY = typer.Option(None, "--key", envvar="JOYMIGRATE_ADMIN_KEY", help="The admin key.")
FORMAT = typer.Option("text", "--format", help="text or json.")


@rollout.command("status")
def status(
    url: str | None = URL,
    config: Path | None = CONFIG,
    key: str | None = KEY,
    format: str = FORMAT,
) -> int:
    """Show state, weights, evidence and history."""
    return order(None, url, config, key, format)


@rollout.command("pause")
def pause(
    url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY, format: str = FORMAT
) -> int:
    """Stay at the present weight."""
    return order("pause", url, config, key, format)


@rollout.command("resume")
def resume(
    url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY, format: str = FORMAT
) -> int:
    """Start or go on; after a rollback begin again with fresh evidence."""
    return order("resume", url, config, key, format)


@rollout.command("rollback")
def rollback(
    url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY, format: str = FORMAT
) -> int:
    """Take all traffic off the standby, now."""
    return order("rollback", url, config, key, format)


@rollout.command("promote")
def promote(
    url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY, format: str = FORMAT
) -> int:
    """Give the standby all traffic without waiting for the proof."""
    return order("promote", url, config, key, format)


def order(
    what: str | None, url: str | None, config: Path | None, key: str | None, format: str
) -> int:
    """Give an order to a running gateway, and show what it says."""
    from joymigrate.run.gateway import client, show

    found = client.ask(address(url, config), what, key)
    print(show.as_json(found) if chosen(format) == "json" else show.rollout(found))
    return Exit.OK


def chosen(format: str) -> str:
    """The output format, checked."""
    if format not in ("text", "json"):
        raise JoyError(f"unknown format '{format}'", help="--format text or --format json")
    return format


@app.command("drill")
def drill(
    faults: Path = typer.Option(..., "--faults", help="The schedule of faults (YAML)."),
    format: str = FORMAT,
    output: Path | None = typer.Option(None, "-o", help="Write the result to a file."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Show the gateway's log."),
) -> int:
    """Break fake backends on schedule behind a real gateway; print what clients saw."""
    import asyncio

    from joymigrate.run.gateway import faults as schedules

    plan = schedules.load(faults)
    need_extra()
    from joymigrate.run.gateway import drill as drills
    from joymigrate.run.gateway import show

    outcome = asyncio.run(drills.run(plan, talk if verbose else lambda line: None))
    found = outcome.to_json()
    show.emit(show.as_json(found) if chosen(format) == "json" else show.drill(found), output)
    return Exit.OK if outcome.passed else Exit.FOUND


@app.command("simulate")
def simulate(
    rate: list[str] = typer.Option(
        [], "--rate", help="A true failure rate such as 0.11% (may be repeated)."
    ),
    failures: Path | None = typer.Option(
        None, "--failures", help="A recorded stream: the gateway's request log, CSV, or 0s and 1s."
    ),
    upstream: str | None = typer.Option(None, "--upstream", help="Which upstream of the record."),
    rule: list[str] = typer.Option(
        [], "--rule", help="cusum, literal:window=10000,min=1000, eprocess:alpha=0.01 …"
    ),
    runs: int = typer.Option(2000, "--runs", min=1, help="Runs per rate and rule."),
    horizon: int = typer.Option(100_000, "--horizon", min=1, help="Standby requests per run."),
    seed: int = typer.Option(0, "--seed", help="Equal seeds give equal results."),
    traffic: str | None = typer.Option(
        None, "--traffic", help="Your traffic, such as 30000/day: adds the ramp's calendar."
    ),
    shadow: float = typer.Option(0.0, "--shadow", min=0, max=100, help="Percent mirrored."),
    config: Path | None = typer.Option(None, "--config", help="Take plan and rule from a file."),
    burst_cap: bool = typer.Option(False, "--burst-cap", help="One incident a second."),
    requests_per_second: float = typer.Option(
        100.0, "--requests-per-second", min=1e-6, help="At the standby; matters for --burst-cap."
    ),
    plot: Path | None = typer.Option(None, "--plot", help="Draw the curves (svg, png, pdf)."),
    format: str = FORMAT,
    output: Path | None = typer.Option(None, "-o", help="Write the result to a file."),
) -> int:
    """Ask the gateway's own state machine when a rule would have rolled back, and how wrongly."""
    from joymigrate.run.gateway import show, study

    asked = study.Question(
        rates=tuple(study.parse_rate(text) for text in rate),
        record=failures,
        upstream=upstream,
        rules=tuple(rule),
        runs=runs,
        horizon=horizon,
        seed=seed,
        requests_per_s=study.parse_traffic(traffic) if traffic else None,
        shadow=shadow,
        config=config,
        burst_cap=burst_cap,
        standby_per_s=requests_per_second,
    )
    found, curves = study.answer(asked)
    if plot is not None:
        from joymigrate.run.gateway.plot import draw

        draw(curves, plot, horizon)
    show.emit(show.as_json(found) if chosen(format) == "json" else show.study(found), output)
    return Exit.OK

"""Serve models: an OpenAI and Triton endpoint, or a gateway with hot standby and rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._answers import Answer, answers, check_format
from joymigrate.cli._groups import group
from joymigrate.cli._options import spread
from joymigrate.cli._serve_drill import RankingReplay
from joymigrate.cli._serve_options import (
    EngineChoice,
    LanguageOptions,
    PreflightOptions,
    RankingOptions,
    ServerOptions,
)
from joymigrate.cli._serve_study import StudyOptions
from joymigrate.errors import Exit, JoyError

NEEDS = {
    "MODEL_DIR": ("extra:serve",),
    "--config FILE": ("extra:serve",),
    "drill": ("extra:serve",),
}
WANTS = {
    "MODEL_DIR": {"program:cc": "--compile"},
    "models": {"package:transformers": "--verify"},
}

app = group(
    "Serve a model: `serve MODEL_DIR`; or a gateway with hot standby: `serve --config FILE`. "
    "`serve MODEL_DIR --help` lists their options.",
    default=True,
)
rollout = group("See and steer the rollout of a running gateway.")
app.add_typer(rollout, name="rollout")


@app.command("default", hidden=True)
@spread
def serve(
    server: ServerOptions,
    language: LanguageOptions,
    preflight: PreflightOptions,
    choice: EngineChoice,
    ranking: RankingOptions,
    model: Path | None = typer.Argument(None, metavar="MODEL_DIR", help="A model folder."),
    extra: list[str] | None = typer.Argument(
        None, metavar="[-- OPTION…]", help="With --engine: options for that engine, after --."
    ),
    config: Path | None = typer.Option(None, "--config", help="A gateway's file instead."),
    kind: str = typer.Option(
        "auto", "--kind", help="auto, language, ranking, generative; auto looks at the model."
    ),
) -> int:
    """Serve a model: `serve MODEL_DIR`; or a gateway: `serve --config gateway.yaml`."""
    from joymigrate.cli import _serve_ranking
    from joymigrate.cli._output import one_of

    one_of(server.log_format, ("text", "json"), "--log-format")
    if config is not None:
        if model is not None:
            raise JoyError(
                f"both a model ({model}) and --config were given",
                help="name the backends in the gateway's file",
            )
        return gateway(config, server)
    if model is None:
        raise JoyError("what to serve is missing", help="serve MODEL_DIR, or serve --config FILE")
    one_of(kind, ("auto", "language", "ranking", "generative"), "--kind")
    from joymigrate.cli import _serve_generative

    if kind == "generative" or (kind == "auto" and _serve_generative.recognise(model)):
        if preflight.check or not choice.own or extra:
            raise JoyError("--check and --engine are for language models", where=str(model))
        need_extra("torch")
        return _serve_generative.serve(model, server, ranking)
    if kind == "ranking" or (kind == "auto" and _serve_ranking.recognise(model)):
        if preflight.check or not choice.own or extra:
            raise JoyError("--check and --engine are for language models", where=str(model))
        need_extra("torch")
        return _serve_ranking.serve(model, server, ranking)
    need_extra("transformers", "tokenizers")
    from joymigrate.cli import _serve_check, _serve_external, _serve_model

    start = _serve_model.ServeOptions(model, server, language)
    if preflight.check:
        check_format(preflight.format, "preflight")
        return _serve_check.check(start, preflight)
    if not choice.own:
        return _serve_external.serve(start, choice, tuple(extra or ()))
    if extra:
        raise JoyError(
            f"unexpected: {' '.join(extra)}", help="one model folder; options begin with --"
        )
    return _serve_model.serve(start)


def gateway(config: Path, options: ServerOptions) -> int:
    """Run a gateway in front of two backends."""
    import asyncio

    from joymigrate.run.serve.gateway import settings

    loaded = settings.load(config)
    need_extra()
    from joymigrate.run.serve.gateway import embedded, server
    from joymigrate.run.serve.web import logs
    from joymigrate.run.serve.web.telemetry import open_telemetry

    log = logs.open_log(options.log_format, quiet=options.quiet)
    say = log.info
    engines = embedded.open_engines(loaded, say)
    made = server.Gateway(loaded, unverified=options.unverified, engines=engines, talk=say)
    made.site.telemetry = open_telemetry("joymigrate-gateway")
    asyncio.run(server.run(made))
    return Exit.OK


def talk(line: str) -> None:
    """Say something to the operator, at once."""
    import sys
    import time

    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", file=sys.stderr, flush=True)


def need_extra(*more: str) -> None:
    """The libraries of the `serve` extra, or which command installs them."""
    from joymigrate.extras import need

    need("serve", "aiohttp", "orjson", "prometheus_client", "psutil", *more, what="serving")


def address(url: str | None, config: Path | None) -> str:
    """Where the gateway listens: --url, or what its file says."""
    if url is not None:
        return url
    if config is None:
        return "http://127.0.0.1:8080"
    from joymigrate.run.serve.gateway import settings

    loaded = settings.load(config)
    return f"http://{loaded.host}:{loaded.port}"


URL = typer.Option(None, "--url", help="The gateway's address (default: http://127.0.0.1:8080).")
CONFIG = typer.Option(None, "--config", help="The gateway's file, for its address.")
KEY = typer.Option(None, "--key", envvar="JOYMIGRATE_ADMIN_KEY", help="The admin key.")


@rollout.command("status")
@answers("rollout")
def status(url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY) -> Answer:
    """Show state, weights, evidence and history."""
    return order(None, url, config, key)


@rollout.command("pause")
@answers("rollout")
def pause(url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY) -> Answer:
    """Stay at the present weight."""
    return order("pause", url, config, key)


@rollout.command("resume")
@answers("rollout")
def resume(url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY) -> Answer:
    """Start or go on; after a rollback begin again with fresh evidence."""
    return order("resume", url, config, key)


@rollout.command("rollback")
@answers("rollout")
def rollback(url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY) -> Answer:
    """Take all traffic off the standby, now."""
    return order("rollback", url, config, key)


@rollout.command("promote")
@answers("rollout")
def promote(url: str | None = URL, config: Path | None = CONFIG, key: str | None = KEY) -> Answer:
    """Give the standby all traffic without waiting for the proof."""
    return order("promote", url, config, key)


@rollout.command("versions")
def versions_ramp(
    config: Path = typer.Option(..., "--config", help="The gateway's file: it names both servers."),
    key: str | None = KEY,
    poll: float = typer.Option(1.0, "--poll", min=0.05, help="Seconds between two looks."),
) -> int:
    """Take new versions of a ranking model through the ramp, one by one, until stopped."""
    from joymigrate.cli import _serve_versions

    return _serve_versions.run(config, key or "", poll, talk)


def order(what: str | None, url: str | None, config: Path | None, key: str | None) -> Answer:
    """Give an order to a running gateway; what it says."""
    from joymigrate.run.serve.gateway import client, show

    found = client.ask(address(url, config), what, key)
    return Answer(found, show.rollout(found) + "\n")


@app.command("models")
@answers("served")
def models(
    verify: list[str] = typer.Option([], "--verify", help="Try a family again; may be repeated."),
) -> Answer:
    """List the families that are served, each verified against transformers."""
    from joymigrate.cli import _output
    from joymigrate.report import family_list
    from joymigrate.run.serve.engine import families

    if verify:
        found = list(families.verify_families(_output.split(verify)))
        import transformers

        versions = str(transformers.__version__)
    else:
        found, versions = families.list_verified(), families.versions()
    failed = bool(verify) and any(family.status != "pass" for family in found)
    document, text = family_list.document(found, versions), family_list.text(found, versions)
    return Answer(document, text, code=failed)


@app.command("drill")
@spread
@answers("ranking-drill")
def drill(*, asked: RankingReplay) -> Answer:
    """Replay recorded ranking requests to two servers: do they rank alike, how fast is each?"""
    from joymigrate.cli import _serve_drill

    return _serve_drill.run(asked)


@app.command("simulate")
@spread
@answers("rollout-simulation")
def simulate(
    asked: StudyOptions,
    plot: Path | None = typer.Option(None, "--plot", help="Write the curves to a page (html)."),
) -> Answer:
    """Ask the gateway's own state machine when a rule would have rolled back, and how wrongly."""
    from joymigrate.run.serve.gateway import show, study

    found, curves = study.answer(asked.question())
    if plot is not None:
        write_curves(curves, plot, asked.horizon)
    return Answer(found, show.study(found) + "\n")


def write_curves(curves: Any, plot: Path, horizon: int) -> None:
    """Write the page of a simulation. `JoyError` for a file of another kind."""
    from joymigrate.cli._output import emit
    from joymigrate.report import renderers, simulation

    if plot.suffix not in (".html", ".htm"):
        raise JoyError(
            f"curves are written as a page, not as '{plot.suffix}'",
            where=str(plot),
            help="name a file that ends in .html",
        )
    emit(renderers.render(simulation.describe(curves, horizon), "html"), plot)

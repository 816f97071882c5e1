"""From a model folder to a service that can be put on an address."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.asynchronous import AsyncEngine
from joymigrate.run.serve.engine.http.app import Endpoint
from joymigrate.run.serve.engine.http.defaults import AUTO, load
from joymigrate.run.serve.engine.http.guide import Guides
from joymigrate.run.serve.engine.http.meters import EngineMeters
from joymigrate.run.serve.engine.http.templates import Templates
from joymigrate.run.serve.engine.http.words import ModelTokens
from joymigrate.run.serve.engine.types import EngineOptions
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits

log = logging.getLogger("joymigrate.serve")


def open_service(
    folder: Path,
    options: EngineOptions,
    *,
    names: Sequence[str] = (),
    keys: Sequence[str | Key] = (),
    limits: HttpLimits | None = None,
    template: Path | None = None,
    generation: str = AUTO,
    override: str = "",
) -> Endpoint:
    """Load a model and what the APIs need of its folder. Raises `JoyError`.

    `names` are what clients call it, the first one in answers; default: the folder's name.
    `generation` and `override` say what requests get that leave their sampling open.
    """
    templates = Templates.of(folder, template)  # a mistake in it shows before the weights load
    defaults = load(folder, generation, override)
    if options.probe:
        from joymigrate.run.serve.engine.probe import try_beyond_limits

        log.info("%s", try_beyond_limits(folder, generic=options.generic))
    made = serving(AsyncEngine.load(folder, options), templates, names, keys, limits)
    for note in made.info.notes:
        log.info("%s", note)
    made.defaults = defaults
    if defaults.told():
        log.info("requests that do not say get: %s", defaults.told())
    return made


def serving(
    engine: AsyncEngine,
    templates: Templates,
    names: Sequence[str] = (),
    keys: Sequence[str | Key] = (),
    limits: HttpLimits | None = None,
) -> Endpoint:
    """A service around an engine that runs already."""
    called = tuple(names) or (engine.info.name,)
    if not all(called):
        raise JoyError("a model's name is empty", help="--name NAME")
    adapters = tuple(engine.engine.adapters.numbers)
    clash = next((name for name in adapters if name in called), None)
    if clash is not None:
        raise JoyError(f"the model and an adapter are both called '{clash}'", help="--name NAME")
    return Endpoint(
        engine=engine,
        names=called,
        adapters=adapters,
        words=ModelTokens(engine.tokens, engine.vocabulary),
        templates=templates,
        guides=Guides(getattr(engine.tokens, "backend", None), engine.vocabulary, engine.ends),
        meters=EngineMeters(called[0], engine.stats),
        limits=limits or HttpLimits(),
        keys=Keys.of(keys),
    )

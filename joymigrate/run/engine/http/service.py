"""One model behind the APIs: the engine and everything that is made of its folder once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

from joymigrate.run.engine.http.admission import Keys, Limits
from joymigrate.run.engine.http.errors import Refusal
from joymigrate.run.engine.http.guide import Guides
from joymigrate.run.engine.http.meters import Meters
from joymigrate.run.engine.http.templates import Templates
from joymigrate.run.engine.http.words import Words
from joymigrate.run.engine.types import EngineStats, ModelInfo, Output, Request

STUCK_SECONDS = 120.0  # a step that lasts so long with texts in it counts as a dead engine


class Engine(Protocol):
    """What the APIs need of an engine (`joymigrate.run.engine.AsyncEngine`)."""

    info: ModelInfo

    def generate(self, request: Request) -> AsyncGenerator[Output, None]:
        """The outputs of a request as they come; closing the generator aborts it."""

    def abort(self, request_id: str) -> None:
        """End a request; its blocks are free after the running step."""

    def stats(self) -> EngineStats:
        """Counters and gauges of now."""

    async def close(self) -> None:
        """Stop, and free everything."""


@dataclass(slots=True)
class Service:
    """What handlers know. `names`: the first is the model's, the others are aliases."""

    engine: Any
    names: tuple[str, ...]
    words: Words
    templates: Templates
    guides: Guides
    meters: Meters
    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    texts: int = 0  # choices that are being generated or wait
    last_ms: int = 0  # when the last text ended, in ms since 1970
    chip: str | None = None
    vision: bool = False  # the model reads images

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def info(self) -> ModelInfo:
        found: ModelInfo = self.engine.info
        return found

    def model(self, name: Any) -> str:
        """The name a client used, checked; raises `Refusal`."""
        if name is None or name == "":
            return self.name
        if not isinstance(name, str):
            raise Refusal(400, "model is a string", code="invalid_type", param="model")
        if name not in self.names:
            raise Refusal(
                404,
                f"the model '{name}' is not served here; this server has '{self.name}'",
                code="model_not_found",
                param="model",
            )
        return name

    def trouble(self) -> str | None:
        """Why the service is not ready, or None when it is."""
        if self.draining:
            return "stopping: no new requests are taken"
        failed = getattr(self.engine, "failed", None)
        if failed is not None:
            return f"the engine failed: {failed}"
        stats = self.engine.stats()
        since = time.monotonic() - stats.last_step
        if stats.running and stats.last_step and since > STUCK_SECONDS:
            return f"the engine's step has lasted {since:.0f} s"
        return None

    def stamp(self) -> int:
        """The time of an answer, in seconds since 1970."""
        return int(time.time())

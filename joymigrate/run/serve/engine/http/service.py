"""One model behind the APIs: the engine and everything that is made of its folder once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joymigrate.run.serve.engine.http.defaults import NEUTRAL, Defaults
from joymigrate.run.serve.engine.http.guide import Guides
from joymigrate.run.serve.engine.http.meters import EngineMeters
from joymigrate.run.serve.engine.http.templates import Templates
from joymigrate.run.serve.engine.http.words import ModelTokens
from joymigrate.run.serve.engine.types import ModelInfo
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.limits import HttpLimits

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.asynchronous import AsyncEngine

STUCK_SECONDS = 120.0  # a step that lasts so long with texts in it counts as a dead engine


@dataclass(slots=True)
class EngineService:
    """What handlers know. `names`: the first is the model's, the others are aliases."""

    engine: AsyncEngine
    names: tuple[str, ...]
    words: ModelTokens
    templates: Templates
    guides: Guides
    meters: EngineMeters
    limits: HttpLimits = field(default_factory=HttpLimits)
    defaults: Defaults = NEUTRAL
    keys: Keys = field(default_factory=Keys)
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    texts: int = 0  # choices that are being generated or wait
    seen_steps: int = -1  # the engine's steps when somebody asked for its health
    seen_at: float = 0.0
    last_ms: int = 0  # when the last text ended, in ms since 1970
    chip: str | None = None
    adapters: tuple[str, ...] = ()  # names of models, too: the model changed by one of them

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def vision(self) -> bool:
        """Whether the model reads images."""
        return self.engine.vision

    @property
    def info(self) -> ModelInfo:
        return self.engine.info

    def model(self, name: Any) -> str:
        """The name a client used, checked; raises `HttpRefusal`."""
        if name is None or name == "":
            return self.name
        if not isinstance(name, str):
            raise HttpRefusal(400, "model is a string", code="invalid_type", param="model")
        if name not in self.names and name not in self.adapters:
            raise HttpRefusal(
                404,
                f"the model '{name}' is not served here; this server has '{self.name}'",
                code="model_not_found",
                param="model",
            )
        return name

    def adapter(self, model: str) -> str | None:
        """The adapter that a checked model name stands for."""
        return model if model in self.adapters else None

    def trouble(self) -> str | None:
        """Why the service is not ready, or None when it is."""
        if self.engine.failed is not None:
            return f"the engine failed: {self.engine.failed}"
        if self.draining:
            return "stopping: no new requests are taken"
        stats, now = self.engine.stats(), time.monotonic()
        if not stats.running or stats.steps != self.seen_steps:
            self.seen_steps, self.seen_at = stats.steps, now
        if now - self.seen_at > STUCK_SECONDS:
            return f"the engine's step has lasted {now - self.seen_at:.0f} s"
        return None

    async def close(self) -> None:
        """Stop the engine."""
        await self.engine.close()

    def stamp(self) -> int:
        """The time of an answer, in seconds since 1970."""
        return int(time.time())

"""The language-model engine: paged attention, prefix cache, continuous batching, exact sampling.

    engine = AsyncEngine.load("./model", EngineOptions(dtype="bfloat16"))
    async for output in engine.generate(Request("1", prompt_ids, Sampling(max_tokens=16))):
        ...

`AsyncEngine` and `load_engine` import torch when they are first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joymigrate.run.serve.engine.types import (
    EngineOptions,
    EngineOutput,
    EngineStats,
    Guide,
    ModelInfo,
    Request,
    Sampling,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.asynchronous import AsyncEngine
    from joymigrate.run.serve.engine.load import load_engine

__all__ = [
    "AsyncEngine",
    "EngineOptions",
    "EngineOutput",
    "EngineStats",
    "Guide",
    "ModelInfo",
    "Request",
    "Sampling",
    "TokenLogprob",
    "Usage",
    "load_engine",
]


def __getattr__(name: str) -> Any:
    """The parts that need torch, imported when they are named."""
    if name == "AsyncEngine":
        from joymigrate.run.serve.engine.asynchronous import AsyncEngine

        return AsyncEngine
    if name == "load_engine":
        from joymigrate.run.serve.engine.load import load_engine

        return load_engine
    raise AttributeError(name)

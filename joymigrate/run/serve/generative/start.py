"""From a model folder to a generative recommender on its address."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joymigrate.run.beam import BeamSearch
from joymigrate.run.serve.generative.loop import BeamLoop
from joymigrate.run.serve.generative.recommender import CodeWriter, load
from joymigrate.run.serve.generative.service import GenerativeService
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits


def open_service(
    folder: Path,
    device: str = "cpu",
    *,
    beams: int = 4096,
    names: Sequence[str] = (),
    keys: Sequence[str | Key] = (),
    limits: HttpLimits | None = None,
) -> GenerativeService:
    """Load a model and start its search of at most `beams` beams. Raises `JoyError`."""
    limits = limits or HttpLimits()
    served = load(folder, device)
    loop = BeamLoop(BeamSearch(CodeWriter(served), served.trie, capacity=beams), limits.queue)
    called = tuple(names) or (folder.resolve().name,)
    return GenerativeService(served, loop, called, limits, Keys.of(keys))

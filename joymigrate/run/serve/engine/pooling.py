"""How a folder's model makes one vector of a text, where the folder says that it does."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError

MODULES = "modules.json"
FLAG = "pooling_mode_"


@dataclass(frozen=True, slots=True)
class Pooling:
    """`mean` of all states, or else the last; `normalise` to length 1."""

    mean: bool
    normalise: bool

    def finish(self, vector: list[float]) -> list[float]:
        """The vector that is given out."""
        length = math.sqrt(sum(x * x for x in vector)) if self.normalise else 1.0
        return [x / length for x in vector] if length else vector


def pooling_of(folder: Path) -> Pooling | None:
    """What `modules.json` of sentence-transformers says; None for a folder without it.

    Raises `JoyError` for a way of pooling that is not one of ours.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        places = [str(module["path"]) for module in modules]
    except (ValueError, KeyError, TypeError) as error:
        raise JoyError(f"modules.json cannot be read: {error}", where=str(path)) from None
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown or "Pooling" not in kinds:
        raise JoyError(
            f"embeddings with {unknown[0] if unknown else 'no Pooling'} are not served",
            where=str(path),
            help="remove modules.json to serve the model's text alone",
        )
    settings = folder / places[kinds.index("Pooling")] / "config.json"
    ways = ways_of(settings)
    if ways not in (["mean"], ["lasttoken"]):
        raise JoyError(
            f"pooling by {', '.join(ways) or 'nothing'} is not served", where=str(settings),
            help="pooling_mode_mean_tokens or pooling_mode_lasttoken",
        )  # fmt: skip
    return Pooling(ways == ["mean"], "Normalize" in kinds)


def ways_of(settings: Path) -> list[str]:
    """The ways of pooling that a folder asks for; newer folders name them in `pooling_mode`."""
    try:
        wanted = json.loads(settings.read_text(encoding="utf-8"))
        named = wanted.get("pooling_mode")
        if named is not None:
            return [named] if isinstance(named, str) else [str(way) for way in named]
        flags = [name for name, on in wanted.items() if name.startswith(FLAG) and on is True]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise JoyError(f"the pooling cannot be read: {error}", where=str(settings)) from None
    return [flag.removeprefix(FLAG).removesuffix("_tokens") for flag in flags]

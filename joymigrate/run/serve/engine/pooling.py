"""How a folder's model makes one vector, or one score, of a text, where the folder says so."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError

MODULES = "modules.json"
FLAG = "pooling_mode_"
HEAD = "score.weight"
CLASSIFIES = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class Pooling:
    """`mean` of all states, or else the last; `normalise` to length 1. With a `head` the model
    scores texts and makes none."""

    mean: bool
    normalise: bool
    head: tuple[float, ...] | None = None  # of a score: its product with the state
    squeezed: bool = True  # a score goes through the logistic function

    def finish(self, vector: list[float]) -> list[float]:
        """The vector that is given out, or the score alone."""
        if self.head is not None:
            return [math.fsum(a * b for a, b in zip(self.head, vector, strict=True))]
        length = math.sqrt(sum(x * x for x in vector)) if self.normalise else 1.0
        return [x / length for x in vector] if length else vector


def pooling_of(folder: Path) -> Pooling | None:
    """What `modules.json` of sentence-transformers says, or the head of a model that classifies;
    None for a folder that makes text.

    Raises `JoyError` for a way of pooling that is not one of ours.
    """
    path = folder / MODULES
    if not path.is_file():
        return scoring(folder)
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


def scoring(folder: Path) -> Pooling | None:
    """The head of a `…ForSequenceClassification` with one label; raises `JoyError` for others."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kinds = [str(kind) for kind in config.get("architectures") or ()]
    if not any(kind.endswith(CLASSIFIES) for kind in kinds):
        return None
    from joymigrate.run.train.formats.tensors import TensorFolder

    weights = TensorFolder(folder)
    weight = weights.raw(HEAD)
    weights.close()
    if weight.shape[0] != 1:
        raise JoyError(
            f"a model of {weight.shape[0]} labels is not served", where=str(folder),
            help="one label: the score of a pair",
        )  # fmt: skip
    named = str((config.get("sentence_transformers") or {}).get("activation_fn", "Sigmoid"))
    ways = {"Sigmoid": True, "Identity": False}
    way = named.rpartition(".")[2]
    if way not in ways:
        raise JoyError(f"scores through {named} are not served", where=str(folder / "config.json"))
    return Pooling(False, False, tuple(weight[0].float().tolist()), ways[way])

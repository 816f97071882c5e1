"""Recommendation models: one file per model, from its paper's formula.

A model is the dense part: it gets rows that were looked up, and gives logits. Its class stands in
`MODEL`, its sizes with their defaults in `SIZES`, its paper in `PAPER`. A file dropped into this
folder is found without any list.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from joymigrate.errors import JoyError, did_you_mean

OTHERS = ("__init__", "layers", "inputs", "sequence_cut")


def names() -> list[str]:
    """All models, from the files of this folder."""
    return sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in OTHERS
    )


def find(name: str) -> ModuleType:
    """The module of a model; `JoyError` with the nearest name when there is none."""
    if name not in names():
        raise JoyError(
            f"unknown model_type '{name}'.{did_you_mean(name, names())}",
            where="model.from_config",
            help=f"one of {', '.join(names())}",
        )
    return importlib.import_module(f"{__name__}.{name}")


def sizes_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model with its defaults; an unknown one is an error."""
    given = dict(settings)
    name = str(given.pop("model_type", "deepfm"))
    known = find(name).SIZES
    for key in given:
        if key not in known:
            raise JoyError(
                f"'{name}' has no setting '{key}'.{did_you_mean(str(key), known)}",
                where="model.from_config",
                help=f"its settings are {', '.join(known)}",
            )
        check_size(key, given[key], known[key])
    return {"model_type": name, **known, **given}


def check_size(key: str, value: Any, default: Any) -> None:
    """A value of the kind that its default has: counts from 1 (or 0, where that is the default),
    shares below 1. `JoyError` for others."""
    if isinstance(default, list):
        if not isinstance(value, list | tuple):
            raise JoyError(f"'{key}' is {value!r}; it is a list of whole numbers",
                           where=f"model.from_config.{key}", help=f"{key}: {default}")  # fmt: skip
        for one in value:
            check_size(key, one, 1)
        return
    numbers = not isinstance(value, bool) and isinstance(value, int | float)
    if isinstance(default, bool) or not isinstance(default, int | float):
        fits, wanted = isinstance(value, type(default)), f"like {default!r}"
    elif isinstance(default, int):
        least = min(default, 1)
        fits = numbers and isinstance(value, int) and value >= least
        wanted = f"a whole number from {least}"
    elif key == "dropout":
        fits, wanted = numbers and 0 <= value < 1, "a share from 0, below 1"
    else:
        fits, wanted = numbers and -math.inf < value < math.inf, "a number"
    if not fits:
        raise JoyError(f"'{key}' is {value!r}; it is {wanted}", where=f"model.from_config.{key}")

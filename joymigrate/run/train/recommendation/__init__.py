"""Recommendation models: one file per model, from its paper's formula.

A model is the dense part: it gets rows that were looked up, and gives logits. Its class stands in
`MODEL`, its sizes with their defaults in `SIZES`, its paper in `PAPER`. A file dropped into this
folder is found without any list.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from joymigrate.errors import JoyError, did_you_mean

OTHERS = ("__init__", "layers", "inputs")


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
    return {"model_type": name, **known, **given}

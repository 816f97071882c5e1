"""Other trainers that run the same job: rendered as their command and files, run if installed.

One file per trainer; its object stands in `ENGINE`. What a trainer cannot be told is an error.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.engines.engine_command import RenderedCommand, TrainerEngine

__all__ = ["RenderedCommand", "TrainerEngine", "find", "names"]


def names() -> list[str]:
    """All engines, from the files of this folder."""
    found = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name for name in found if name not in ("__init__", "engine_command"))


def find(name: str) -> TrainerEngine:
    """The engine called `name`."""
    if name not in names():
        raise JoyError(
            f"unknown engine '{name}'.{did_you_mean(name, names())}",
            help=f"one of {', '.join(names())}; without --engine joymigrate trains itself",
        )
    made: TrainerEngine = importlib.import_module(f"{__name__}.{name}").ENGINE
    return made

"""Which cards of this node its own tools call broken, and in what words.

What no tool says is not known: an empty answer means that nothing was said, not that all is well.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

ANSWER_S = 20.0  # a tool that hangs says nothing


class HealthReader(Protocol):
    """What a tool's module offers: the question, and how its answer is read."""

    HEALTH: tuple[str, ...]

    def find_broken(self, text: str) -> dict[int, str]:
        """Card ids and what is wrong with them."""


def readers() -> list[HealthReader]:
    """The tools' modules of this folder that know of health."""
    here = __name__.rpartition(".")[0]
    stems = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    found = [importlib.import_module(f"{here}.{stem}") for stem in stems if stem != "health"]
    return [module for module in found if hasattr(module, "HEALTH")]


def read_node() -> dict[int, str]:
    """Broken cards of the machine that this runs on, and why, by every tool that is there."""
    found: dict[int, str] = {}
    for reader in readers():
        if shutil.which(reader.HEALTH[0]) is None:
            continue
        try:
            done = subprocess.run(reader.HEALTH, capture_output=True, text=True, timeout=ANSWER_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        found |= reader.find_broken(done.stdout)
    return found

"""Before a job starts: are the links of its cards up, and does its rank table fit the plan?

Works on recorded tool output and files. Vendors' forms are modules of this folder with `links` or
`check`; each fault says where, what, and what to do.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

Pods = Sequence[tuple[str, Sequence[int]]]  # node and card ids, in rank order


@dataclass(frozen=True, slots=True)
class PreflightFault:
    """One thing that would make the job hang or fail: where, what, and the remedy."""

    where: str
    what: str
    help: str


def forms(name: str) -> Iterator[ModuleType]:
    """Modules of this folder that have a function `name`."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = importlib.import_module(f"{__name__}.{path.stem}")
        if hasattr(module, name):
            yield module


def links(text: str, cards: int | None, where: str) -> list[PreflightFault]:
    """Faults of recorded link states."""
    return [fault for module in forms("links") for fault in module.links(text, cards, where)]


def rank_table(table: Any, pods: Pods | None, where: str) -> list[PreflightFault]:
    """Faults of a rank table, by itself and against planned pods."""
    return [fault for module in forms("check") for fault in module.check(table, pods, where)]

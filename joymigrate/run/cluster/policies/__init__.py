"""Placement policies by name: one file each, found by folder. A policy only ranks nodes.

A policy module has `make(demand) -> Policy`. `demand` is what the policy may know about the work
to come: typical requests with their share, or nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joymigrate.errors import JoyError, did_you_mean

if TYPE_CHECKING:
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints

Costs = NDArray[np.int64] | NDArray[np.float64]
DEFAULT = "topology"


@dataclass(frozen=True, slots=True)
class Typical:
    """One typical request: cards, share of a card, CPU per pod, and how much of the work it is."""

    cards: int
    milli: int
    cpu_milli: int
    share: float
    memory_mib: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """Ranks the nodes of a pool: the lowest cost wins, `IMPOSSIBLE` and above never does.

    `costs(state, shape, free)` is the cost of each node of the shape's pool, given its free masks;
    `share(state, shape, hold)` node and card for a share of a card, (-1, -1) when there is none.
    `local`: gangs go into the tightest domain first. `sequential`: costs change with every pod of
    a gang, so pods are placed one by one.
    """

    name: str
    costs: Callable[[ClusterState, TaskShape, Ints], Costs]
    share: Callable[[ClusterState, TaskShape, Ints | None], tuple[int, int]]
    local: bool = True
    sequential: bool = False


def names() -> list[str]:
    """Names of all policies."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem[0] != "_")


def get(name: str, demand: Sequence[Typical] = ()) -> Policy:
    """The policy of this name; an unknown one raises `JoyError` with the nearest name."""
    if name not in names():
        raise JoyError(
            f"unknown policy '{name}'.{did_you_mean(name, names())}",
            help=f"policies: {', '.join(names())}",
        )
    module = importlib.import_module(f"{__name__}.{name}")
    policy: Policy = module.make(demand)
    return policy

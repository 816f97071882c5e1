"""A request against the nodes that may take it: what does not change between decisions."""

from __future__ import annotations

from dataclasses import dataclass

from joymigrate.run.cluster.cards import Choice
from joymigrate.run.cluster.jobs import Job, PodGroup
from joymigrate.run.cluster.state import Ints, Pool


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A task against one pool: everything about it that does not change between decisions."""

    pool: Pool
    choice: Choice
    task: PodGroup
    gang: bool
    job: Job
    numa: tuple[tuple[Ints, Choice], ...] = ()  # positions in the pool and their NUMA tables
    number: int = 0

"""A request against the nodes that may take it: what does not change between decisions."""

from __future__ import annotations

from dataclasses import dataclass

from joymigrate.run.cluster.cards import CardChoice
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.state import Ints, Pool


@dataclass(frozen=True, slots=True, eq=False)
class TaskShape:
    """A task against one pool: everything about it that does not change between decisions."""

    pool: Pool
    choice: CardChoice
    task: PodGroup
    gang: bool
    job: GangJob
    numa: tuple[tuple[Ints, CardChoice], ...] = ()  # positions in the pool and their NUMA tables

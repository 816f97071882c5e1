"""What can happen to a cluster, and what the scheduler says to do about it.

Times are seconds on any clock that only goes forward; the scheduler has none of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.state import Placement


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of a job that an earlier scheduler had: its place in line and its times.

    `promised`: cards were held for it. `whole`: as it was submitted, where it runs in another size.
    """

    number: int
    since: float
    submitted: float
    promised: bool = False
    whole: GangJob | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job arrives. `running` jobs are taken as they stand, with a past on sick cards too."""

    job: GangJob
    at: float = 0.0
    past: Past | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A running job has ended, `well` or not."""

    job: str
    at: float = 0.0
    well: bool = True


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A job is not wanted any more, running or waiting."""

    job: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node does not answer; its jobs are gone."""

    node: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A node answers again with these unhealthy cards."""

    node: str
    unhealthy: tuple[int, ...] = ()
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class CardsFailed:
    """Cards of a node became unhealthy; jobs on them are gone."""

    node: str
    cards: tuple[int, ...]
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterTick:
    """Time has passed: minimum run times and waiting limits may have been reached."""

    at: float = 0.0


Event = Submitted | Ended | Cancelled | NodeLost | NodeBack | CardsFailed | ClusterTick


@dataclass(frozen=True, slots=True)
class Start:
    """Start all pods of a job, rank by rank, on these cards."""

    job: GangJob
    placement: Placement
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Evict:
    """Stop a whole gang; it waits again. `by` is the job that gets its cards, "" on a failure.

    With `resize` it starts again at once, in another size: it is told to save.
    """

    job: GangJob
    by: str
    why: str
    resize: bool = False


@dataclass(frozen=True, slots=True)
class JobStop:
    """Stop a job for good."""

    job: GangJob


Action = Start | Evict | JobStop

"""Queues: shares of a cluster, and the limits on what their jobs get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster import kinds as server_kinds
from joymigrate.schema import setting

EVICTIONS = ("never", "lower-priority", "over-deserved")
STRATEGIES = ("traverse", "fifo")
Limit = float | Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Queue:
    """A share of the cluster. MIN is guaranteed, MAX is how far it may grow.

    `min`, `max` and `deserved` map a kind, a family (`gpu`, …) or `cards` to card-units;
    `cards` is the unified budget over all kinds, weighted. `eviction` says whose jobs may be
    stopped; `min_runtime` (minutes) protects a job that has just started.
    """

    name: str
    min: Mapping[str, float] = field(default_factory=dict)
    max: Mapping[str, float] = field(default_factory=dict)
    deserved: Mapping[str, float] = field(default_factory=dict)
    parent: str = ""
    weight: float = 1.0
    priority: int = 0
    eviction: tuple[str, ...] = ("over-deserved",)
    min_runtime: float = 0.0
    strategy: str = "traverse"


@dataclass(frozen=True, slots=True)
class QueueItem:
    """One queue as a file says it. A limit is on a server kind, a family (gpu, …) or cards."""

    name: str = setting(help="the queue's name", words=True)
    min: Limit = setting(None, "cards that it is sure of, over all or by kind", least=0, most=1e15)
    max: Limit = setting(None, "how far it may grow", least=0, most=1e15)
    deserved: Limit = setting(None, "its fair share", least=0, most=1e15)
    parent: str = setting("", "the queue that it is a part of", words=True)
    weight: float = setting(1.0, "its part of what is left over", least=0, most=1e15)
    priority: int = setting(0, "who is asked first")
    eviction: tuple[str, ...] = setting(
        ("over-deserved",), "whose jobs may be stopped: " + ", ".join(EVICTIONS), single=True
    )
    min_runtime: float | None = setting(
        None, "minutes that a job runs before it may be stopped", least=0, most=1e15
    )
    min_runtime_minutes: float = setting(0.0, "the same as min_runtime", least=0, most=1e15)
    strategy: str = setting(
        "traverse", "the order of its jobs; fifo: nothing before the first", choices=STRATEGIES
    )

    def __post_init__(self) -> None:
        for key in ("min", "max", "deserved"):
            check_limit(key, getattr(self, key))
        for word in self.evictions:
            if word not in EVICTIONS:
                raise JoyError(
                    f"queue {self.name}: eviction '{word}'.{did_you_mean(word, EVICTIONS)}",
                    where="eviction",
                    help=f"one of {', '.join(EVICTIONS)}",
                )

    @property
    def evictions(self) -> tuple[str, ...]:
        """Whose jobs may be stopped, as `over-deserved`."""
        return tuple(word.replace("_", "-").replace(" ", "-") for word in self.eviction)


def queue_of(item: QueueItem) -> Queue:
    """One queue from its item."""
    runtime = item.min_runtime_minutes if item.min_runtime is None else item.min_runtime
    return Queue(
        name=item.name,
        min=limits(item.min),
        max=limits(item.max),
        deserved=limits(item.deserved),
        parent=item.parent,
        weight=item.weight,
        priority=item.priority,
        eviction=item.evictions,
        min_runtime=runtime,
        strategy=item.strategy,
    )


def check_limit(key: str, limit: Limit) -> None:
    """Refuse a limit on what is neither a server kind, nor a family, nor `cards`."""
    known = {*server_kinds.all_kinds(), *families(), "cards"}
    for name in limit if isinstance(limit, Mapping) else ():
        if name not in known:
            raise JoyError(
                f"`{key}` on '{name}'.{did_you_mean(name, known)}",
                where=f"{key}.{name}",
                help="it is on a server kind, a family (gpu, …) or `cards`",
            )


def limits(limit: Limit) -> Mapping[str, float]:
    """A limit by kind, family or `cards`; a number is on cards of all kinds."""
    return limit if isinstance(limit, Mapping) else {} if limit is None else {"cards": limit}


def families() -> set[str]:
    """Families of accelerators that limits can name."""
    return {kind.family for kind in server_kinds.all_kinds().values()}

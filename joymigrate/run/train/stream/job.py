"""What a job file says about a stream and about the versions that are published."""

from __future__ import annotations

from dataclasses import dataclass

from joymigrate.schema import setting


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Where rows come from."""

    SHORT = "source"

    source: str = setting(help="redis://HOST:PORT/DB#STREAM, a folder of Parquet, or kafka://…")
    linger_s: float = setting(1.0, "longest wait for a full batch, in seconds", least=0)
    idle_s: float | None = setting(
        None, "end when no row came for so many seconds (default: never)", least=0
    )


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Where versions go, and how often."""

    SHORT = "to"

    to: str | None = setting(
        None, "a folder, or redis://HOST:PORT/DB#PREFIX (default: published/ in the run folder)"
    )
    every_s: float = setting(30.0, "seconds between versions", least=0.5)
    snapshot_every: int = setting(20, "versions between full snapshots", least=1)
    keep: int = setting(2, "snapshots that stay, with the deltas behind them", least=1)

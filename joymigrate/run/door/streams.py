"""Streams and events: work is done when a call returns, and times come from the clock."""

from __future__ import annotations

import time
from typing import Any

import torch

from joymigrate.run.door import refusals
from joymigrate.run.door.cards import cards
from joymigrate.run.door.notes import StandIn


class DoorEvent(StandIn):
    """A point in time of the only stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.at_s: float | None = None

    def record(self, stream: Any = None) -> None:
        """Now."""
        self.at_s = time.perf_counter()

    def elapsed_time(self, other: DoorEvent) -> float:
        """Milliseconds to another event."""
        if self.at_s is None or other.at_s is None:
            refusals.refuse_elapsed()
        return (other.at_s - self.at_s) * 1e3

    def synchronize(self) -> None:
        """All is done already."""

    def wait(self, stream: Any = None) -> None:
        """All is done already."""

    def query(self) -> bool:
        """All is done already."""
        return True


class DoorStream(StandIn):
    """A queue whose work is done at once."""

    cuda_stream = stream_id = priority = 0

    def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
        self.device = cards.shown(cards.named(device))
        self.device_index = self.device.index

    def __enter__(self) -> DoorStream:
        return self

    def __exit__(self, *raised: Any) -> None:
        return None

    def synchronize(self) -> None:
        """All is done already."""

    def wait_stream(self, stream: Any) -> None:
        """All is done already."""

    def wait_event(self, event: Any) -> None:
        """All is done already."""

    def record_event(self, event: DoorEvent | None = None) -> DoorEvent:
        """An event of now."""
        made = event or DoorEvent()
        made.record()
        return made

    def query(self) -> bool:
        """All is done already."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DoorStream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)


class StreamContext:
    """`with torch.cuda.stream(s)`; None is no stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, *raised: Any) -> None:
        return None


def install() -> None:
    """Replace torch's own."""
    module: Any = torch.cuda
    for name, value in {"Event": DoorEvent, "Stream": DoorStream}.items():
        setattr(module, name, value)
        setattr(getattr(module, "streams", module), name, value)
    module.StreamContext = module.stream = StreamContext
    module.current_stream = module.default_stream = lambda device=None: DoorStream(device)

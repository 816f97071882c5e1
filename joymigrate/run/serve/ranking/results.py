"""What the engine hands back, what it counts, and the gate between batches and new weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joymigrate.run.serve.monitor.metrics import Histogram, MetricValue

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class RankingResult:
    """One request's outputs in the signature's order, and how they came about.

    `degraded`: default rows stood in for some that a lost shard has.
    """

    outputs: tuple[np.ndarray[Any, Any], ...]
    version: str
    merged: int
    seconds: float  # of the batch
    degraded: tuple[str, ...] = ()


@dataclass(slots=True)
class Counts:
    """Everything the engine counts; written under its lock."""

    batches: int = 0
    requests: int = 0
    candidates: int = 0
    waste: int = 0
    elements: int = 0
    shared: int = 0
    isolated: int = 0
    failed: int = 0
    late: int = 0
    cancelled: int = 0
    degraded: int = 0
    sliced: int = 0
    compared: int = 0  # merged batches, and requests in pieces, that were computed again
    differing: int = 0  # of these, those that came out otherwise
    runs: dict[str, MetricValue] = field(default_factory=dict)  # eager, compiled
    batch_seconds: Histogram = field(default_factory=Histogram)
    wait_seconds: Histogram = field(default_factory=Histogram)
    last: float = 0.0  # when the newest batch ended, seconds since the epoch
    # requests of a batch → batches, and their seconds
    merged: dict[int, tuple[int, float]] = field(default_factory=dict)

    def ran(self, how: str) -> None:
        """A batch was computed by eager or compiled code."""
        self.runs.setdefault(how, MetricValue()).add()


class WeightGate:
    """Batches pass together; a change of the weights waits for them and goes alone."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.inside = 0
        self.changing = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run a batch: no change happens meanwhile."""
        with self.condition:
            while self.changing:
                self.condition.wait()
            self.inside += 1
        try:
            yield
        finally:
            with self.condition:
                self.inside -= 1
                if not self.inside:
                    self.condition.notify_all()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Change weights: no batch runs meanwhile, those that came wait."""
        with self.condition:
            while self.changing:
                self.condition.wait()
            self.changing = True
            while self.inside:
                self.condition.wait()
        try:
            yield
        finally:
            with self.condition:
                self.changing = False
                self.condition.notify_all()

"""Data that follow from a program's own results depart by rounding, and the distance grows.

A program that takes tensors of its models out of torch and makes data of them (the states of an
environment, words that it samples) is given other data on another device, without any fault. What
departs at once is another thing. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

# Our own choice. The most that was seen in one step is 73: means of rewards in a replay buffer of
# public TD3 (cleanrl fe8d8a0), where each step adds states that are farther apart.
GROWTH = 100.0
MOST_STEPS = 50


@dataclass(slots=True)
class Growth:
    """Relative errors of one series of data, as they come."""

    last: tuple[int, float] | None = None  # position and size of the last one above 0

    def explains(self, position: int, error: float) -> bool:
        """Whether an error is at most `GROWTH` times the one before for each step between; to be
        asked once for each position, in order."""
        before = self.last
        if error > 0:
            self.last = position, error
        if before is None:
            return False
        steps = min(max(1, position - before[0]), MOST_STEPS)
        return error <= before[1] * GROWTH**steps

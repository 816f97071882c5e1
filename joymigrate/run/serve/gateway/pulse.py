"""Whether this process itself stood still, so that it cannot say who was late.

A time-out measures a backend only while the gateway runs. When a burst of requests, another
process or a slow disk holds up its event loop, the answer may have been here for long: such a
time-out is evidence against nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

BEAT_SECONDS = 0.05
KEPT = 1024  # stalls; each lasted a beat or more, so that they reach back 50 seconds at least
TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # two classes before Python 3.11
SHARE = 0.5  # of a limit that this process may have stood still before it blames anybody


class Pulse:
    """Keeps the stalls of the event loop. All times are seconds of `time.perf_counter`."""

    def __init__(self) -> None:
        self.due = time.perf_counter() + BEAT_SECONDS
        self.beating = False
        self.stalls: deque[tuple[float, float]] = deque(maxlen=KEPT)  # (end, length)

    async def run(self) -> None:
        """Beat for ever."""
        self.beating = True
        try:
            while True:
                self.due = time.perf_counter() + BEAT_SECONDS
                await asyncio.sleep(BEAT_SECONDS)
                self.note(time.perf_counter())
        finally:
            self.beating = False

    def note(self, now: float) -> None:
        """A beat came at `now`; it was due at `self.due`."""
        late = now - self.due
        if late >= BEAT_SECONDS:
            self.stalls.append((now, late))

    def stood_still(self, since: float, now: float) -> float:
        """For how many seconds between `since` and `now` the loop stood still."""
        found = max(0.0, now - max(self.due, since)) if self.beating else 0.0
        for end, length in reversed(self.stalls):
            if end <= since:
                break
            found += min(length, end - since)
        return found

    def excuses(self, limit_seconds: float) -> bool:
        """Whether a limit that ran out just now says nothing about the backend."""
        now = time.perf_counter()
        return self.stood_still(now - limit_seconds, now) >= SHARE * limit_seconds

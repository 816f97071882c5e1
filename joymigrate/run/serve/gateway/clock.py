"""The time of the gateway's events: seconds since the epoch, one a second, whatever the wall clock
does. It begins with what the wall clock says as this process starts."""

from __future__ import annotations

import time

BEGAN = time.time() - time.monotonic()


def tell_time() -> float:
    """Seconds since the epoch; never backwards, and no jumps."""
    return BEGAN + time.monotonic()

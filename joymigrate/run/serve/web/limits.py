"""What a client of any server may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds. `queue` counts texts that wait behind the running ones."""

    body_bytes: int = 32 * 2**20
    header_bytes: int = 2**15  # of one line of the head
    header_seconds: float = 10.0  # from a head's first byte, or the connection, to its end
    body_seconds: float = 30.0
    queue: int = 4096
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0  # a client that reads nothing for so long is cut off
    retry_after_seconds: int = 1

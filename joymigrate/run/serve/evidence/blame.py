"""Whose fault is it: does the standby fail, or do both backends fail alike?"""

from __future__ import annotations

from joymigrate.run.serve.evidence.bounds import chance_of_more
from joymigrate.run.serve.evidence.events import SECOND, RequestTally

SHARED, UNKNOWN = "shared", "unknown"
WORSE = 0.01  # the standby is worse when chance explains the difference less often than this
EXPECTED = 3.0  # failures that the primary must be expected to show before it is called alike


def blame(ours: RequestTally, theirs: RequestTally) -> str:
    """`standby`, `shared` or `unknown`, from what both did in the same stretch of time.

    Without any request to the primary nothing speaks for a shared fault: the standby is to blame.
    """
    if not theirs.requests or not ours.requests:
        return SECOND
    if chance_of_more(ours.failures, ours.requests, theirs.failures, theirs.requests) < WORSE:
        return SECOND
    rate = ours.failures / ours.requests
    if not theirs.failures:
        return SECOND if (1.0 - rate) ** theirs.requests <= WORSE else UNKNOWN
    return SHARED if rate * theirs.requests >= EXPECTED else UNKNOWN

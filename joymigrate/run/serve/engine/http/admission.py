"""A bounded queue of texts."""

from __future__ import annotations

from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.limits import HttpLimits


def admit(waiting: int, texts: int, limits: HttpLimits) -> None:
    """Refuse `texts` more when the queue is full; the client is told when to come again."""
    if waiting and waiting + texts > limits.queue:
        raise HttpRefusal(
            429,
            f"{waiting} requests wait already; the queue holds {limits.queue}",
            headers={"Retry-After": str(limits.retry_after_seconds)},
        )

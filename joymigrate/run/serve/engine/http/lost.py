"""What clients are told about an error that ended their request."""

from __future__ import annotations

from joymigrate.run.serve.engine.types import Lost
from joymigrate.run.serve.web.errors import Refusal


def refusal_of(error: Exception) -> Refusal | None:
    """The refusal that an error means; None for one that nobody expects."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Lost):
        return Refusal(503, str(error), code="engine_failed")
    return None

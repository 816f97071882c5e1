"""What clients are told about an error that ended their request."""

from __future__ import annotations

from joymigrate.run.serve.engine.types import Lost
from joymigrate.run.serve.web.errors import HttpRefusal


def refusal_of(error: Exception) -> HttpRefusal | None:
    """The refusal that an error means; None for one that nobody expects."""
    if isinstance(error, HttpRefusal):
        return error
    if isinstance(error, Lost):
        return HttpRefusal(503, str(error), code="engine_failed")
    return None

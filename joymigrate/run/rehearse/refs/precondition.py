"""What a kernel requires of the numbers in its arguments, where a reference finds it broken."""

from __future__ import annotations

from joymigrate.language import Text


class PreconditionError(RuntimeError):
    """A call that the chip refuses for its numbers: what is wrong, and who says it."""

    def __init__(self, message: Text, source: str) -> None:
        super().__init__(message)
        self.message = message
        self.source = source

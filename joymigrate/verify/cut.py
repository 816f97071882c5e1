"""One value at the edge of a module call, as a pass makes it and a bundle stores it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Cut:
    """Where the value stands, whose code made it, and how far the baseline itself was off.

    `error32` and `error` are the baseline's relative L2 errors against float64, in float32 and in
    the program's own dtype; `norm` is the L2 norm of the float64 value.
    """

    path: str
    call: int
    kind: str  # in, out, grad or buffer
    leaf: str
    owner: str  # the module whose code made the value
    owner_call: int
    order: int
    dtype: str
    shape: list[int]
    missing: bool = False  # a gradient that is None
    content: str | None = None  # the tensor's hash; None when it did not fit
    norm: float = 0.0
    error32: float = 0.0
    error: float = 0.0

    @property
    def key(self) -> tuple[str, int, str, str]:
        """(path, call, kind, leaf)."""
        return self.path, self.call, self.kind, self.leaf

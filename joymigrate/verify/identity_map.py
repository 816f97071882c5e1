"""Facts about objects by what they are, not by what they equal, for as long as they live."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class IdentityMap(Generic[T]):
    """Values by object. An entry goes with its object, so that no later object can inherit it.

    An `id` alone is given again: a module, weight or optimiser that a program makes anew stands
    often where the last one stood. Objects that allow no weak reference are held.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, T]] = {}

    def get(self, one: object) -> T | None:
        """The value of this very object, or None."""
        reference, value = self._held.get(id(one), (None, None))
        return value if reference is not None and reference() is one else None

    def put(self, one: object, value: T) -> None:
        """Note the value of an object."""
        key, held = id(one), self._held
        try:
            reference: Any = weakref.ref(one, lambda _: held.pop(key, None))
        except TypeError:
            held[key] = (lambda: one, value)
        else:
            held[key] = (reference, value)

    def setdefault(self, one: object, value: T) -> T:
        """The value of this object, which becomes `value` where it had none."""
        known = self.get(one)
        if known is None:
            self.put(one, value)
            return value
        return known

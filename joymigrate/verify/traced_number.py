"""A plain number that a program read from a tensor, and whose arithmetic stays on the tape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from joymigrate.verify.tape_entries import TapeSlot
from joymigrate.verify.transforms import found_in


class Number(float):
    """A number read from a tensor, whose further arithmetic stays on the tape."""

    slot: TapeSlot
    tape: Any  # the Tape that it was read on
    computed = False  # by the program, from numbers that it read

    def _with(self, call: Callable[..., Any], *args: Any) -> Any:
        plain = [float(a) if isinstance(a, Number) else a for a in args]
        made = call(*plain)
        return self.tape.number(made, call, args) if isinstance(made, float) else made

    def __add__(self, other: Any) -> Any:
        return self._with(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._with(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self._with(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._with(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, other, self)

    def __neg__(self) -> Any:
        return self._with(operator.neg, self)

    def __pow__(self, other: Any) -> Any:  # type: ignore[override]
        return self._with(operator.pow, self, other)

    def __format__(self, form: str) -> str:
        self._show("__format__")
        return super().__format__(form)

    def __repr__(self) -> str:
        self._show("__repr__")
        return super().__repr__()

    def _show(self, how: str) -> None:
        if self.computed:  # else the tensor that it was read from is a result already
            self.tape.show(how, self.slot)

    def __reduce__(self) -> Any:
        return float, (float(self),)

    def __copy__(self) -> Any:
        return float(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return float(self)


def numbers_in(value: Any) -> Iterable[Number]:
    """Traced numbers in arguments."""
    return found_in(Number, value)

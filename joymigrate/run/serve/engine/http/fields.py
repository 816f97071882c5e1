"""Reads the fields of a JSON object: type and range are checked, null counts as absent.

Every name that is read is remembered; `close` refuses those that nobody read, because a field
that is silently ignored is a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from joymigrate.errors import did_you_mean
from joymigrate.run.serve.web.errors import HttpRefusal

# Accepted and without effect on the answer: who asks, what for, how it is billed or cached.
HARMLESS = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "request_id",
        "session_id",
        "priority",
        "mm_processor_kwargs",
    )
)


class Fields:
    """The fields of one object; `where` is put before names in errors (`tools[0].`)."""

    def __init__(self, table: Mapping[str, Any], where: str = "") -> None:
        self.table = table
        self.where = where
        self.seen: set[str] = set()

    def raw(self, name: str) -> Any:
        """The value as it is, None where absent."""
        self.seen.add(name)
        return self.table.get(name)

    def text(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        found: str | None = self.typed(name, str, "a string", default)
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        return bool(self.typed(name, bool, "true or false", default))

    def whole(
        self,
        name: str,
        default: int | None = None,
        *,
        low: int | None = None,
        high: int | None = None,
    ) -> int | None:
        """A whole number within its bounds."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "a whole number", value)
        return int(self.bounded(name, value, low, high))

    def number(
        self,
        name: str,
        default: float,
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> float:
        """A number within its bounds."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number", value)
        return float(self.bounded(name, value, low, high))

    def words(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings."""
        value = self.raw(name)
        if value is None:
            return ()
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise self.wrong(name, "a string or a list of strings", value)
        return tuple(listed)

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(is_whole(item) for item in value):
            raise self.wrong(name, "a list of whole numbers", value)
        return tuple(value)

    def table_of(self, name: str) -> dict[str, Any] | None:
        """An object."""
        found: dict[str, Any] | None = self.typed(name, dict, "an object", None)
        return found

    def listed(self, name: str) -> list[Any] | None:
        """A list."""
        found: list[Any] | None = self.typed(name, list, "a list", None)
        return found

    def typed(self, name: str, kind: type, word: str, default: Any) -> Any:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.wrong(name, word, value)
        return value

    def bounded(self, name: str, value: float, low: float | None, high: float | None) -> float:
        if (low is not None and value < low) or (high is not None and value > high):
            span = f"at least {low:g}" if high is None else f"at most {high:g}"
            if low is not None and high is not None:
                span = f"from {low:g} to {high:g}"
            raise HttpRefusal(
                400, f"{self.where}{name} is {span}, got {value!r}", param=f"{self.where}{name}"
            )
        return value

    def wrong(self, name: str, wanted: str, value: Any) -> HttpRefusal:
        """The refusal for a value of a wrong type."""
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return HttpRefusal(
            400,
            f"{self.where}{name} is {wanted}, got {shown}",
            code="invalid_type",
            param=f"{self.where}{name}",
        )

    def required(self, name: str) -> Any:
        """The value as it is; absent is a mistake."""
        value = self.raw(name)
        if value is None:
            raise HttpRefusal(
                400,
                f"{self.where}{name} is missing",
                code="missing_required_parameter",
                param=f"{self.where}{name}",
            )
        return value

    def refuse(self, name: str, why: str, *, unless: Iterable[Any] = ()) -> None:
        """Refuse a field that would change the answer, unless it has a value that does not."""
        value = self.raw(name)
        if value is None or any(same(value, harmless) for harmless in unless):
            return
        raise HttpRefusal(
            400,
            f"{self.where}{name} is not supported: {why}",
            code="unsupported_parameter",
            param=f"{self.where}{name}",
        )

    def close(self) -> None:
        """Refuse the first field that nobody knows."""
        for name, value in self.table.items():
            if name in self.seen or name in HARMLESS or value is None:
                continue
            raise HttpRefusal(
                400,
                f"unknown field '{self.where}{name}'.{did_you_mean(name, self.seen)}",
                code="unknown_parameter",
                param=f"{self.where}{name}",
            )


def is_whole(value: Any) -> bool:
    """Whether a JSON value is a whole number (true and false are none)."""
    return isinstance(value, int) and not isinstance(value, bool)


def same(value: Any, other: Any) -> bool:
    """Equality that keeps true apart from 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)

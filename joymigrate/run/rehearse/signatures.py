"""Every distinct call of a rehearsal, ready for JSON: a sealed prediction lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

MOST = 20_000  # distinct calls of one process
NAMED: tuple[tuple[type, str], ...] = (
    (torch.dtype, "dtype"), (torch.device, "device"), (torch.layout, "layout"),
    (torch.memory_format, "memory_format"),
)  # fmt: skip


class Signatures:
    """The distinct calls of one process, with what becomes of each."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.left_out = 0

    def note(self, operator: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The row of a call, refused until somebody says otherwise: a refusal raises."""
        shown = [form(value) for value in args]
        named = {name: form(value) for name, value in kwargs.items()}
        key = f"{operator} {shown} {named}"
        row = self.rows.get(key)
        if row is None:
            row = {"op": operator, "args": shown, "kwargs": named, "outcome": "refused"}
            row |= {"messages": [], "calls": 0}
            if len(self.rows) < MOST:
                self.rows[key] = row
            else:
                self.left_out += 1
        return row


def form(value: Any) -> Any:
    """An argument without its values: dtype, shape and strides of a tensor; numbers as they are."""
    for kind, name in NAMED:
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.").partition(":")[0]}
    if isinstance(value, Tensor):
        return {
            "tensor": {
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
                "strides": list(value.stride()),
            }
        }
    if isinstance(value, (list, tuple)):
        return [form(item) for item in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return f"<{type(value).__name__}>"


def fall_back(row: dict[str, Any]) -> None:
    """One more call that the chip's package gave to the CPU."""
    row["outcome"] = "fallback"
    row["calls"] += 1


def settle(row: dict[str, Any], messages: Iterable[str]) -> None:
    """A first call that came back: accepted, or refused by the documents with these messages."""
    row["calls"] += 1
    row["messages"] = [str(text) for text in messages]
    row["outcome"] = "refused" if row["messages"] else "accepted"

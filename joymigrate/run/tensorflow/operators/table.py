"""The table of operators, and what all of them share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class GraphOperator:
    """A function that stands for an operator; `host` are inputs read as plain numbers."""

    function: Callable[..., Any]
    host: tuple[int, ...]


OPERATORS: dict[str, GraphOperator] = {}
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bool": torch.bool,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}


def operator(*names: str, host: Sequence[int] = ()) -> Callable[[Function], Function]:
    """Enter a function in the table; its keyword-only parameters are the attributes it reads."""

    def enter(function: Function) -> Function:
        for name in names:
            OPERATORS[name] = GraphOperator(function, tuple(host))
        return function

    return enter


def ints(values: Any) -> list[int]:
    """Plain numbers of a list, a number or a tensor on the host."""
    if isinstance(values, int):
        return [values]
    return [int(each) for each in np.asarray(values).reshape(-1)]


def whole(value: Any) -> int:
    """One plain number."""
    return ints(value)[0]


def beside(value: Any, *others: Any) -> Any:
    """A host value on the device of the first tensor of `others` that is not on the host."""
    if not isinstance(value, torch.Tensor):
        return value
    for other in others:
        if isinstance(other, torch.Tensor) and other.device != value.device:
            return value.to(other.device) if value.device.type == "cpu" else value
    return value


class LookupTable:
    """A lookup table with unchanging keys: texts, or whole numbers."""

    def __init__(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self.values = dict(zip(keys, values, strict=True))

    @classmethod
    def load(cls, path: Path) -> dict[str, LookupTable]:
        """Tables by name from JSON; texts are bytes there, of UTF-8 or not."""
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: cls(list(map(back, each["keys"])), list(map(back, each["values"])))
            for name, each in stored.items()
        }

    def find(self, keys: Any, default: Any) -> Any:
        """The values of keys, and the default for a key that is not there."""
        filler = default if isinstance(default, bytes | int | float) else plain(default)
        given = keys if isinstance(keys, np.ndarray) else keys.cpu().numpy()
        found = [self.values.get(key, filler) for key in given.reshape(-1).tolist()]
        if isinstance(filler, bytes):
            return np.array(found, dtype=object).reshape(given.shape)
        dtype = default.dtype if isinstance(default, torch.Tensor) else None
        return torch.tensor(found, dtype=dtype).reshape(given.shape)


def back(value: Any) -> Any:
    """A text as the bytes it was."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """The one value of a scalar."""
    return value.item() if isinstance(value, torch.Tensor) else np.asarray(value).reshape(-1)[0]

"""Arguments and results of chosen operators, within a number of bytes: `verify ops` replays them.

One call of each signature in each module is kept. The lines are those of a trace; tensors lie
beside them under the hash of their bytes.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import save

from joymigrate.verify.isolated_pass import content_of
from joymigrate.verify.ops.read import LINES, SCHEMA, TENSORS

NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)


class Unwritable(Exception):
    """An argument that has no words: a generator, a sparse tensor, an object."""


class ArgumentRecorder:
    """What is kept of calls whose operator or module one of `patterns` names."""

    def __init__(self, patterns: Sequence[str], budget_bytes: int) -> None:
        self.patterns, self.left = tuple(patterns), budget_bytes
        self.budget = budget_bytes
        self.seen: set[str] = set()
        self.lines: list[dict[str, Any]] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.device = ""
        self.too_large = self.unwritable = 0
        self.written = (0, 0, 0)

    def wants(self, op: str, module: str) -> bool:
        """Whether a pattern names the operator (`aten::mm`) or the module (`layers.3.*`)."""
        path = module.partition(":")[2]
        return any(fnmatch.fnmatchcase(name, p) for p in self.patterns for name in (op, path))

    def before(self, func: Any, module: str, args: Any, kwargs: Any) -> dict[str, Any] | None:
        """Copies of a call's arguments; None for a call that is not kept."""
        op = f"{func.namespace}::{func._opname}"
        if not self.wants(op, module):
            return None
        held: dict[int, torch.Tensor] = {}
        try:
            line = {
                "kind": "op",
                "op": op,
                "overload": "" if func._overloadname == "default" else func._overloadname,
                "args": [describe(a, held) for a in args],
                "kwargs": {name: describe(a, held) for name, a in kwargs.items()},
                "module": module.partition(":")[2] or module.rstrip(":"),
            }
        except Unwritable:
            self.unwritable += 1
            return None
        key = json.dumps(line, sort_keys=True, default=str)
        if key in self.seen or not held:
            return None
        self.seen.add(key)
        if sum(t.numel() * t.element_size() for t in held.values()) > self.left:
            self.too_large += 1
            return None
        self.device = self.device or str(next(iter(held.values())).device)
        copies = {
            number: t.detach().to("cpu", copy=True).contiguous() for number, t in held.items()
        }
        return {"line": line, "copies": copies}

    def after(self, kept: dict[str, Any], made: Any) -> None:
        """The call's results; arguments and results count once, however many calls share them."""
        results = list(made) if isinstance(made, tuple | list) else [made]
        plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in results)
        found = [t.detach().to("cpu").contiguous().clone() for t in results] if plain else []
        names = {number: content_of(tensor) for number, tensor in kept["copies"].items()}
        outcome = [content_of(tensor) for tensor in found]
        fresh = dict(zip([*names.values(), *outcome], [*kept["copies"].values(), *found]))  # noqa: B905
        fresh = {name: t for name, t in fresh.items() if name not in self.tensors}
        size = sum(t.numel() * t.element_size() for t in fresh.values())
        if size > self.left:
            self.too_large += 1
            return
        self.left -= size
        self.tensors.update(fresh)
        self.lines.append({**name_tensors(kept["line"], names), "results": outcome})

    def write(self, writer: Any) -> None:
        """The files of a bundle's rank, where anything is new."""
        if self.written == (state := (len(self.lines), self.too_large, self.unwritable)):
            return
        left_out = {"too_large": self.too_large, "unwritable": self.unwritable}
        head = {"schema": SCHEMA, "kind": "run", "device": self.device, **left_out}
        lines = [json.dumps(line) for line in (head, *self.lines)]
        writer.add(TENSORS, save(self.tensors))
        writer.add(LINES, ("\n".join(lines) + "\n").encode())
        self.written = state

    def notes(self) -> list[str]:
        """What was kept, and what was not."""
        size = sum(t.numel() * t.element_size() for t in self.tensors.values())
        kept = f"arguments of {len(self.lines)} operator calls are kept ({size:,} bytes)"
        if self.too_large:
            kept += f"; {self.too_large} more do not fit {self.budget:,} bytes"
        if self.unwritable:
            kept += f"; {self.unwritable} have arguments that can't be written"
        return [kept]


def describe(value: Any, held: dict[int, torch.Tensor]) -> Any:
    """An argument as a trace says it; tensors as `{"dtype", "shape", …, "content": number}`."""
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_meta:
            raise Unwritable
        if value.layout is not torch.strided or value.is_quantized:
            raise Unwritable
        held[len(held)] = value
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "requires_grad": value.requires_grad,
            "content": len(held) - 1,
        }
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, NAMED):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [describe(item, held) for item in value]
    raise Unwritable


def name_tensors(value: Any, names: dict[int, str]) -> Any:
    """The line with the hashes of its tensors in place of their numbers."""
    if isinstance(value, list):
        return [name_tensors(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: names[held] if key == "content" else name_tensors(held, names)
        for key, held in value.items()
    }

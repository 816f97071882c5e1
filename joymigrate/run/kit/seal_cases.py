"""The cases of a kit for the calls of a seal: the same types, shapes and strides, other numbers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joymigrate.run.kit.cases import FLOATS, Masters, tensor

MOST_ELEMENTS = 1 << 18  # of one input; larger ones would not fit into a kit
WHOLE = ("int64", "int32", "int16", "int8", "uint8")
UNDEFINED = ("empty", "new_empty", "resize", "_empty")  # what they hold is not defined


class LeftOut(Exception):
    """Why no case can be made of a call."""


def of_signature(signature: Mapping[str, Any], masters: Masters) -> dict[str, Any] | str:
    """A case for a sealed call, or why none can be made of it.

    It runs forward, and backward where the CPU can too. Of random operators and of those that give
    memory without numbers only types, shapes and strides are compared (`numbers`).
    """
    name = str(signature["op"])
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    if "out" in overload:  # what a structured operator runs below its plain form
        overload = plain_overload(namespace, operator, overload)
    if operator.endswith("_") or (not overload and "out" in rest):
        return "writes into its arguments"
    named = {k: v for k, v in (signature.get("kwargs") or {}).items() if k != "out"}
    made, used = dict(masters), set[str]()
    try:
        args = [argument(value, made, used) for value in signature["args"]]
        kwargs = {k: argument(v, made, used) for k, v in named.items()}
    except LeftOut as why:
        return str(why)
    masters |= {name: made[name] for name in used}
    forms = list(tensors([*signature["args"], *named.values()]))
    dtypes = [one["dtype"] for one in forms]
    dtype = next((one for one in dtypes if one in FLOATS), dtypes[0] if dtypes else "float32")
    shapes = " ".join("x".join(map(str, one["shape"])) for one in forms)
    said = repr([name, signature["args"], signature.get("kwargs") or {}])
    numbers = not is_random(namespace, operator, overload) and not operator.startswith(UNDEFINED)
    return {
        "id": f"{name} {dtype} {shapes} {zlib.crc32(said.encode()):08x}",
        "section": "operator", "call": f"torch.ops.{namespace}.{operator}.{overload or 'default'}",
        "op": name, "dtype": dtype, "layout": "contiguous", "args": args, "kwargs": kwargs,
        "grad": numbers and dtype in FLOATS and "backward" not in operator, "results": None,
        "numbers": numbers,
    }  # fmt: skip


def tensors(values: Any) -> Iterator[Mapping[str, Any]]:
    """The forms of all tensors among arguments, those in lists too."""
    for value in values:
        if isinstance(value, Mapping) and "tensor" in value:
            yield value["tensor"]
        elif isinstance(value, list):
            yield from tensors(value)


def packet_of(namespace: str, operator: str) -> Any:
    """torch's operator with all its overloads; None where this torch has none."""
    import torch

    return getattr(getattr(torch.ops, namespace), operator, None)


def plain_overload(namespace: str, operator: str, overload: str) -> str:
    """The overload that makes its own result, as `out` of gelu stands for `default`; empty where
    there is none."""
    packet = packet_of(namespace, operator)
    known = packet.overloads() if packet is not None else ()
    for one in (overload.removesuffix("_out").replace("out", ""), "default", "Tensor"):
        if (one or "default") in known:
            return one or "default"
    return ""


def is_random(namespace: str, operator: str, overload: str) -> bool:
    """Whether an operator draws numbers, as torch itself says."""
    import torch

    found = getattr(packet_of(namespace, operator), overload or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(found, "tags", ())


def argument(value: Any, masters: Masters, used: set[str]) -> Any:
    """An argument of a case; whole numbers become zeros: valid indices. Raises LeftOut."""
    if isinstance(value, list):
        return [argument(one, masters, used) for one in value]
    if isinstance(value, str) and value.startswith("<"):  # a kind, or what was not recorded
        raise LeftOut("has an argument that is neither a tensor nor a number")
    if not isinstance(value, Mapping):
        return value
    if value.get("device") == "cpu":
        raise LeftOut("moves to the CPU")
    if "tensor" not in value:
        return dict(value)
    facts = value["tensor"]
    shape, dtype = facts["shape"], str(facts["dtype"])
    if shape is None or None in shape:
        raise LeftOut("has a tensor whose shape was not recorded")
    if math.prod(shape) > MOST_ELEMENTS:
        raise LeftOut(f"has a tensor of more than {MOST_ELEMENTS} elements")
    kind = "float" if dtype in FLOATS else "whole" if dtype in WHOLE else dtype
    if kind not in ("float", "whole", "bool"):
        raise LeftOut(f"has a tensor of {dtype}")
    name = tensor(kind, shape, 1 if kind == "whole" else 9, masters, used)
    found: dict[str, Any] = {"tensor": name, "dtype": dtype}
    strides = facts.get("strides")
    if strides is not None and None not in strides and list(strides) != contiguous(shape):
        if overlaps(shape, strides):
            raise LeftOut("has a tensor that overlaps itself")
        found["strides"] = list(strides)
    return found


def contiguous(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor without gaps."""
    found, step = [], 1
    for length in reversed(shape):
        found.append(step)
        step *= max(1, length)
    return found[::-1]


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two places of a tensor share memory, expanded axes (stride 0) aside."""
    reach = 0
    for step, length in sorted(zip(strides, shape, strict=True)):
        if length > 1 and step:
            if step <= reach:
                return True
            reach += step * (length - 1)
    return False

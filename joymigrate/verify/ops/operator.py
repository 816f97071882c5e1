"""Finds torch's operator for a call, and says of some why they are not replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from joymigrate.language import Text
from joymigrate.verify.ops.call import Named, ReplayCall, TensorArg
from joymigrate.verify.ops.fused_attention import GOLDENS

# Operators that need other processes, or say something about the program and compute nothing.
ELSEWHERE = {
    "c10d": "a collective needs its other ranks",
    "_c10d_functional": "a collective needs its other ranks",
    "c10d_functional": "a collective needs its other ranks",
    "_dtensor": "it needs a device mesh",
    "symm_mem": "it needs its other ranks",
}
# Their values are whatever the memory held: only shape and dtype mean something.
UNINITIALISED = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "resize_", "resize_as_"),
    )
)
NO_MEANING = {
    "set_": "it exchanges storages",
    "record_stream": "it is about streams",
    "_pin_memory": "it is about memory",
    "pin_memory": "it is about memory",
    "is_pinned": "it is about memory",
    "_cudnn_rnn": "its weights are packed for one platform",
    "_flash_attention_forward": "it is one platform's own kernel",
    "_efficient_attention_forward": "it is one platform's own kernel",
}
# Each platform has kernels of its own for attention: what they compute is one operator. For each:
# the names of the positional arguments behind query, key and value.
ATTENTION = {
    "_scaled_dot_product_flash_attention": ("dropout_p", "is_causal"),
    "_scaled_dot_product_flash_attention_for_cpu": ("dropout_p", "is_causal"),
    "_scaled_dot_product_efficient_attention": ("attn_mask", "", "dropout_p", "is_causal"),
    "_scaled_dot_product_cudnn_attention": ("attn_mask", "", "dropout_p", "is_causal"),
}
# c10::ScalarType, c10::MemoryFormat as the numbers that a Chrome trace holds.
SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
}  # fmt: skip
MEMORY_FORMATS = {
    0: "contiguous_format",
    1: "preserve_format",
    2: "channels_last",
    3: "channels_last_3d",
}


@dataclass(frozen=True, slots=True)
class OperatorOverload:
    """An overload that takes the call's arguments."""

    overload: Any
    call: ReplayCall

    @property
    def name(self) -> str:
        """`mm` of `aten::mm`."""
        return self.call.op.split("::")[-1]

    @property
    def random(self) -> bool:
        """Whether it draws from a generator; a fused attention with dropout is not replayed."""
        drawn = torch.Tag.nondeterministic_seeded in self.overload.tags
        return drawn and self.name not in GOLDENS

    @property
    def uninitialised(self) -> bool:
        """Whether its values mean nothing."""
        return self.name in UNINITIALISED

    @property
    def argument_names(self) -> list[str]:
        """Names of the positional arguments."""
        return [argument.name for argument in self.overload._schema.arguments]

    @property
    def writes(self) -> list[tuple[int, str, bool]]:
        """(place, name, keyword only) of the arguments that it changes."""
        return [
            (place, argument.name, argument.kwarg_only)
            for place, argument in enumerate(self.overload._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    @property
    def differentiable(self) -> bool:
        """Whether gradients of the call make sense: no write, no backward operator. Those of a
        fused attention are calls of their own."""
        apart = "backward" in self.name or self.name in GOLDENS
        return not (self.writes or self.uninitialised or apart)


def find(call: ReplayCall) -> OperatorOverload | str:
    """The operator, or the reason why there is none to replay."""
    space, _, name = call.op.partition("::")
    if space in ELSEWHERE:
        return ELSEWHERE[space]
    if name in NO_MEANING:
        return NO_MEANING[name]
    if name.startswith("_scaled_dot_product_") and "backward" in name:
        return "gradients of scaled_dot_product_attention, which are compared with that operator"
    if name in ATTENTION and call.overload is not None:
        call, name = attention(call, ATTENTION[name]), "scaled_dot_product_attention"
    if name == "as_strided":
        call = with_storage(call)
    packet = getattr(getattr(torch.ops, space, None), name, None) if name else None
    if packet is None or not hasattr(packet, "overloads"):
        return "this torch has no such operator"
    if call.overload is not None:
        overload = getattr(packet, call.overload or "default", None)
        if overload is None:
            return Text(
                "this torch has no overload '{overload}' of it", overload=call.overload or "default"
            )
        return OperatorOverload(overload, call)
    for overload in candidates(packet):
        bound = bind(overload, call)
        if bound is not None:
            return OperatorOverload(overload, bound)
    return "no overload takes the arguments that were recorded"


def attention(call: ReplayCall, names: Sequence[str]) -> ReplayCall:
    """A platform's attention as the operator that every platform has."""
    given = {**dict(zip(names, call.args[3:], strict=False)), **call.kwargs}
    mask, scale = given.get("attn_mask"), given.get("scale")
    args = (*call.args[:3], mask, float(given.get("dropout_p") or 0), bool(given.get("is_causal")))
    op = "aten::scaled_dot_product_attention"
    return replace(call, op=op, overload="", args=args, kwargs={"scale": scale} if scale else {})


def with_storage(call: ReplayCall) -> ReplayCall:
    """A view by strides of a storage that reaches far enough: it may see more than its tensor."""
    values = [*call.args[1:4], *[call.kwargs[k] for k in ("storage_offset",) if k in call.kwargs]]
    if len(values) < 2 or not isinstance(call.args[0], TensorArg):
        return call
    sizes, strides = (tuple(v) if isinstance(v, list | tuple) else () for v in values[:2])
    offset = values[2] if len(values) > 2 and isinstance(values[2], int) else 0
    length = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=False))
    room = replace(call.args[0], shape=(max(1, length),), stride=None)
    return replace(call, args=(room, *call.args[1:]))


def candidates(packet: Any) -> Iterator[Any]:
    """Overloads, those without `out` first."""
    names = sorted(packet.overloads(), key=lambda name: "out" in name)
    return (getattr(packet, name) for name in names)


def bind(overload: Any, call: ReplayCall) -> ReplayCall | None:
    """Positional arguments of a Chrome trace laid out by an overload's schema; None: no fit."""
    wanted = overload._schema.arguments
    if len(call.args) > len(wanted):
        return None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    named = False
    for index, argument in enumerate(wanted):
        if index >= len(call.args):
            if not argument.has_default_value():
                return None
            continue
        value = call.args[index]
        kind = str(argument.type)
        if value is None and not fits(value, kind) and argument.has_default_value():
            named = True  # a text, which such traces leave out: the default, and names from here
            continue
        if not fits(value, kind):
            return None
        value = translate_numbers(value, argument.name)
        if argument.kwarg_only or named:
            if value is not None:
                kwargs[argument.name] = value
        else:
            args.append(value)
    name = overload._overloadname
    return ReplayCall(
        call.op, "" if name == "default" else name, tuple(args), kwargs,
        call.calls, call.phase, call.where, call.module,
    )  # fmt: skip


def fits(value: Any, kind: str) -> bool:
    """Whether a recorded value can be this argument."""
    optional = kind.startswith("Optional[")
    inner = kind[9:-1] if optional else kind
    if value is None:
        return optional
    if isinstance(value, TensorArg):
        return inner == "Tensor"
    if isinstance(value, list | tuple):
        tensors = any(isinstance(item, TensorArg) or item is None for item in value)
        return inner.startswith("List[") and ("Tensor" in inner) == (tensors and bool(value))
    if isinstance(value, Named):
        return inner in ("Device", "str", "Layout", "int")
    if isinstance(value, bool):
        return inner in ("bool", "number", "Scalar")
    if isinstance(value, int):
        return inner in ("int", "SymInt", "float", "number", "Scalar", "bool")
    return isinstance(value, float) and inner in ("float", "number", "Scalar")


def translate_numbers(value: Any, name: str) -> Any:
    """Numbers that stand for dtypes, layouts and memory formats."""
    if isinstance(value, int) and not isinstance(value, bool):
        if name == "dtype" or name.endswith("_dtype"):
            return Named(SCALAR_TYPES.get(value, "float32"))
        if name == "memory_format":
            return Named(MEMORY_FORMATS.get(value, "contiguous_format"))
        if name == "layout":
            return None
    return value


def outputs(operator: OperatorOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Call it; its results and what it changed, flat, tensors and scalars."""
    result = operator.overload(*args, **kwargs)
    found = list(flat(result))
    for place, name, keyword in operator.writes:
        changed = kwargs.get(name) if keyword or place >= len(args) else args[place]
        known = {id(item) for item in found}
        found += [item for item in flat(changed) if id(item) not in known]
    return found


def flat(value: Any) -> Iterator[Any]:
    """Tensors and scalars inside of tuples and lists."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)
    elif isinstance(value, torch.Tensor | bool | int | float | complex):
        yield value

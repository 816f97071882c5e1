"""What the engine needs to know about one operator, read from its schema once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

# The memory of two devices may meet in these.
COPIES = ("copy_", "_copy_from", "_copy_from_and_resize", "copy", "_to_copy")
# As long as the data say, which their declaration does not.
COUNTED = ("npu_nms_rotated",)
# With a boolean index the shape depends on the data, though torch does not tag them.
MASKED = frozenset(("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"))
# These depend on data only where an index is a mask; with numbers the shapes say all.
INDEXED = MASKED | {"index", "_unsafe_index"}
# A CPU tensor with dimensions may be given to these together with device tensors.
HOST_INDICES = frozenset(
    {
        "index",
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "_unsafe_index",
        "_unsafe_index_put",
        "tensor_split",
        "_unsafe_masked_index",
    }
)
# Take numbers as tensors of the host: seed and offset of a dropout, the sizes of packed batches.
HOST_NUMBERS = (
    *("npu_fusion_attention_v3", "npu_fusion_attention_grad_v3"),
    *("npu_lstm_data", "npu_lstm_data_backward"),
    *("_npu_fusion_attention_v3_get_max_workspace",),
    *("_npu_fusion_attention_grad_v3_get_max_workspace",),
)
# Storage offsets mean the real storage here, so a kept alias won't do.
STRIDED = ("as_strided_scatter", "as_strided_copy")


@dataclass(slots=True)
class RehearsedOperator:
    """One operator that the engine computes.

    `writes` names the arguments that change: positions, and names for keyword-only ones.
    `returned[i]` is the argument that result i is (in-place and out variants), or None.
    """

    name: str  # aten::add.Tensor
    overload: Any
    base: str
    writes: tuple[int | str, ...] = ()
    returned: tuple[int | str | None, ...] = ()
    views: bool = False  # results may share the memory of an argument
    out: bool = False
    random: bool = False
    generator: int | str | None = None
    generator_name: str = "generator"
    data_dependent: bool = False
    indexed: bool = False  # data_dependent, but only where an argument is a mask
    mixes_devices: bool = False
    mixes_host: bool = False
    fresh_alias: bool = False
    on_host: frozenset[int] = frozenset()  # results that the vendor's C++ leaves on the host
    tensors: frozenset[int | str] = frozenset()  # arguments whose declared type is Tensor
    vendor: Any = None  # the package's own kernel, before it was overridden
    seen: dict[Any, Any] = field(default_factory=dict)  # plans by signature (see vendor.py)
    kernels: dict[Any, tuple[str, ...]] = field(default_factory=dict)  # by signature
    hits: dict[Any, int] = field(default_factory=dict)  # calls after the first, by signature
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)  # what a seal says, by signature
    judged: dict[Any, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # by signature
    overheads: dict[Any, Any] = field(default_factory=dict)  # by signature (see engine.py)
    usual: tuple[Any, ...] = ()  # plan of the last one, without strides
    direct: dict[Any, Any] = field(default_factory=dict)  # result forms by signature
    into: Any = None  # the out variant and its argument's name, where `direct` may be used


def out_variant(overload: Any) -> Any:
    """The overload with the same arguments and one to write to, and that one's name; or None.

    Only for an operator with one new tensor as result: then torch can compute straight into
    device memory.
    """
    schema = overload._schema
    if len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    drop = ("dtype", "layout", "device", "pin_memory")
    packet = overload.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        arguments = other._schema.arguments
        outs = [a for a in arguments if a.kwarg_only and a.alias_info and a.alias_info.is_write]
        rest = [(a.name, str(a.type)) for a in arguments if a not in outs]
        if len(outs) == 1 and rest == wanted:
            name = outs[0].name
            return None if any(item[0] in drop for item in wanted) else (other._op, name)
    return None


def describe(name: str, overload: Any) -> RehearsedOperator:
    """Read the schema of `overload` (an `OpOverload`)."""
    schema = overload._schema
    base = name.split("::")[1].split(".")[0]
    operator = RehearsedOperator(name, overload, base)
    places: dict[str, int | str] = {}
    writes: list[int | str] = []
    tensors: set[int | str] = set()
    for position, argument in enumerate(schema.arguments):
        place: int | str = argument.name if argument.kwarg_only else position
        kind = str(argument.type)
        if "Generator" in kind:
            operator.generator, operator.generator_name = place, argument.name
        if kind in ("Tensor", "Optional[Tensor]"):
            tensors.add(place)
        info = argument.alias_info
        if info is not None and info.is_write:
            writes.append(place)
            for alias in info.before_set:
                places[alias] = place
            operator.out |= argument.kwarg_only and bool(getattr(argument, "is_out", True))
    returned: list[int | str | None] = []
    for result in schema.returns:
        info = result.alias_info
        written = info is not None and info.is_write
        returned.append(next((places.get(a) for a in info.before_set), None) if written else None)
        operator.views |= info is not None and not info.is_write
    if returned and not any(place is not None for place in returned):
        operator.out = False  # it may write to an argument named out, and yet return something else
    operator.writes, operator.returned = tuple(writes), tuple(returned)
    operator.tensors = frozenset(tensors)
    tags = set(overload.tags)
    operator.random = torch.Tag.nondeterministic_seeded in tags or operator.generator is not None
    operator.data_dependent = base in (*MASKED, *COUNTED) or bool(
        tags & {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    )
    operator.indexed = base in INDEXED
    operator.mixes_devices = base in COPIES
    operator.mixes_host = base in (*HOST_INDICES, *HOST_NUMBERS) or operator.mixes_devices
    operator.mixes_host |= name.startswith("atb::")  # that library reads lengths on the host
    operator.fresh_alias = base in STRIDED
    return operator

"""Grouped matrix products: one per expert, groups along the rows or along the inner axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.language import Text
from joymigrate.run.rehearse import aliases
from joymigrate.run.rehearse.refs.activations import fast_gelu_of
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, torch_dtype
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.precondition import PreconditionError
from joymigrate.run.rehearse.refs.quant_matmul import (
    antiquantise,
    as_output,
    dequantise,
    exact_product,
    unpack_int4,
)

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None
Lists = Sequence[Tensor] | None
Groups = Tensor | Sequence[int] | None
ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {
    0: lambda x: x,
    1: F.relu,
    2: lambda x: F.gelu(x, approximate="tanh"),
    4: fast_gelu_of,
    5: F.silu,
}
INT8 = (torch.int8, torch.int32)


def bounds(groups: Groups, kind: int, count: int) -> list[tuple[int, int, int]]:
    """(group, start, stop) of every group; kind 0 cumulative ends, 1 sizes, 2 (group, size)."""
    if groups is None:
        return []
    if kind == 2:
        assert isinstance(groups, Tensor)
        pairs = [(int(g), int(size)) for g, size in groups.tolist()]
    else:
        values = [int(v) for v in groups]
        sizes = values if kind == 1 else [b - a for a, b in zip([0, *values], values, strict=False)]
        pairs = list(enumerate(sizes))
    if kind != 2 and len(pairs) > count:
        wrong = "a group list of {groups} for {experts} experts"
        raise PreconditionError(Text(wrong, groups=len(pairs), experts=count), "sglang#27748")
    found, at = [], 0
    for group, size in pairs[:count]:
        found.append((group, at, at + size))
        at += size
    return found


@dataclass(frozen=True, slots=True)
class Experts:
    """Weights and everything that belongs to them, by group."""

    weight: Sequence[Tensor]
    bias: Lists = None
    scale: Lists = None
    antiquant_scale: Lists = None
    antiquant_offset: Lists = None

    def __len__(self) -> int:
        return len(self.weight[0]) if self.stacked else len(self.weight)

    @property
    def stacked(self) -> bool:
        """One tensor holds the weights of all groups along its first axis."""
        return len(self.weight) == 1 and self.weight[0].dim() == 3

    def of(self, values: Lists, group: int) -> Maybe:
        if not values:
            return None
        return values[0][group] if self.stacked else values[group]

    def product(self, rows: Tensor, group: int, pertoken: Maybe, act: int) -> Tensor:
        """What one group's rows become, in working precision."""
        weight, bias = self.of(self.weight, group), self.of(self.bias, group)
        scale, anti = self.of(self.scale, group), self.of(self.antiquant_scale, group)
        assert weight is not None
        if anti is not None:
            size = -(-unpack_int4(weight).shape[-2] // anti.shape[-2]) if anti.dim() == 2 else 0
            offset = self.of(self.antiquant_offset, group)
            found = working(rows) @ antiquantise(weight, anti, offset, size)
            found = found if bias is None else found + bias
        elif rows.dtype in INT8:
            plain = torch.ones(1) if scale is None else scale
            found = dequantise(exact_product(rows, weight), plain, pertoken, bias, None)
        else:
            found = working(rows) @ working(weight)
            found = found if bias is None else found + bias
            found = found if scale is None else found * scale
        return ACTIVATIONS[act](found)


def multiply_groups(
    x: Sequence[Tensor],
    experts: Experts,
    groups: Groups,
    *,
    kind: int,
    axis: int,
    single: bool,
    pertoken: Lists,
    act: int,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Products by group. `axis` 0 cuts rows, 2 cuts the inner axis, -1 cuts nothing."""
    if act not in ACTIVATIONS:
        raise Unsimulated("npu_grouped_matmul", f"act_type {act}")
    if axis == 2:
        parts = _inner(x, experts, groups, kind)
        return [torch.stack(parts).to(dtype)] if single else [part.to(dtype) for part in parts]
    if len(x) > 1 or not bounds(groups, kind, len(experts)):
        scales: Sequence[Maybe] = pertoken or [None] * len(x)
        outputs = [experts.product(rows, group, scales[group], act) for group, rows in enumerate(x)]
        joined = [torch.cat(outputs)] if single else outputs
        return [as_output(part, dtype) for part in joined]
    rows, scale = x[0], None if not pertoken else pertoken[0]
    columns = _columns(experts)
    result = torch.empty(rows.shape[0], columns, dtype=dtype)
    aliases.poison(result)  # rows of no group stay what the memory held (vllm-ascend#6059)
    cuts = bounds(groups, kind, len(experts))
    for group, start, stop in cuts:
        own = None if scale is None else scale[start:stop]
        result[start:stop] = as_output(experts.product(rows[start:stop], group, own, act), dtype)
    return [result] if single else [result[start:stop] for _, start, stop in cuts]


def _columns(experts: Experts) -> int:
    weight = experts.weight[0]
    return int(unpack_int4(weight[0] if experts.stacked else weight).shape[-1])


def _inner(x: Sequence[Tensor], experts: Experts, groups: Groups, kind: int) -> list[Tensor]:
    """x [M, K] and weight [K, N] (or one weight per group) cut along K: [M, N] per group."""
    rows, parts = working(x[0]), []
    whole = len(experts.weight) == 1 and experts.weight[0].dim() == 2
    for group, start, stop in bounds(groups, kind, 10**9):
        weight = working(experts.weight[0][start:stop] if whole else experts.weight[group])
        parts.append(rows[:, start:stop] @ weight)
    return parts


@reference("npu_grouped_matmul", source=DOCS.format("npu_grouped_matmul"))
def npu_grouped_matmul(given: ReferenceArguments) -> list[Tensor]:
    """split_item 0 and 1: a tensor per group; 2 and 3: one tensor."""
    if any(code is not None for code in (given.x_dtype, given.weight_dtype, given.scale_dtype)):
        raise Unsimulated("npu_grouped_matmul", "dtypes that torch has no tensor for")
    return multiply_groups(
        given.x,
        Experts(
            given.weight, given.bias, given.scale, given.antiquant_scale, given.antiquant_offset
        ),
        given.group_list,
        kind=given.group_list_type or 0,
        axis=-1 if given.group_type is None else given.group_type,
        single=given.split_item in (2, 3),
        pertoken=given.per_token_scale,
        act=given.act_type or 0,
        dtype=torch_dtype(given.output_dtype, given.x[0].dtype, "npu_grouped_matmul"),
    )


@reference("npu_grouped_matmul.List", source=DOCS.format("npu_grouped_matmul"))
def npu_grouped_matmul_list(given: ReferenceArguments) -> list[Tensor]:
    """The older overload: the group list is a list of cumulative ends."""
    return multiply_groups(
        given.x,
        Experts(
            given.weight, given.bias, given.scale, given.antiquant_scale, given.antiquant_offset
        ),
        given.group_list,
        kind=given.group_list_type or 0,
        axis=0 if given.group_type is None else given.group_type,
        single=given.split_item in (2, 3),
        pertoken=given.per_token_scale,
        act=given.act_type or 0,
        dtype=given.output_dtype or given.x[0].dtype,
    )


def _accumulate(x: Tensor, weight: Tensor, groups: Tensor, kind: int) -> Tensor:
    """xᵀ @ weight by group, [G, M, N]; x [T, M] and weight [T, N] cut along T."""
    cuts = bounds(groups, kind, 10**9)
    return torch.stack(
        [working(x[start:stop]).mT @ working(weight[start:stop]) for _, start, stop in cuts]
    )


@reference("npu_grouped_matmul_add_", source="op-plugin GroupedMatmulAddKernelNpuOpApi.cpp")
def npu_grouped_matmul_add_(
    self: Tensor, x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int | None
) -> Tensor:
    """Gradient accumulation of experts: adds leftᵀ @ weight by group to float32 `self`."""
    found = _accumulate(x, weight, group_list, group_list_type or 0)
    return self.add_(found.reshape(self.shape).to(self.dtype))


@reference(
    "npu_grouped_matmul_finalize_routing", source=DOCS.format("npu_grouped_matmul_finalize_routing")
)
def npu_grouped_matmul_finalize_routing(given: ReferenceArguments) -> Tensor:
    """Grouped product, weighted by `logit` and added to the rows of `row_index`; float32."""
    if given.w.dim() != 3 or given.offset is not None:
        raise Unsimulated("npu_grouped_matmul_finalize_routing", "packed weights")
    (rows,) = multiply_groups(
        [given.x],
        Experts(
            [given.w],
            bias=None if given.bias is None else [given.bias],
            scale=None if given.scale is None else [given.scale],
        ),
        given.group_list,
        kind=1 if given.group_list_type is None else given.group_list_type,
        axis=0,
        single=True,
        pertoken=None if given.pertoken_scale is None else [given.pertoken_scale],
        act=0,
        dtype=torch.float32,
    )
    result = torch.zeros(given.output_bs or rows.shape[0], rows.shape[1])
    if given.shared_input is not None:
        start = given.shared_input_offset or 0
        weight = 1.0 if given.shared_input_weight is None else given.shared_input_weight
        result[start : start + len(given.shared_input)] = given.shared_input.float() * weight
    weighted = rows if given.logit is None else rows * given.logit.float().unsqueeze(-1)
    index = torch.arange(len(rows)) if given.row_index is None else given.row_index.long()
    return result.index_add_(0, index, weighted)

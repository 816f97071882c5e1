"""Products between ranks beside all_to_all, and quantised operands of them.

Formulas: op-plugin's documents and tests. Scales are one number, one per row of x1 and one per
column of x2; the bias comes before the scales. Blockwise scales and packed formats are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.between_ranks import RankGroup
from joymigrate.run.rehearse.refs.block_formats import element_of, mx_dequantised
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, torch_dtype
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.matmul_between_ranks import (
    multiply_shared,
    npu_alltoallv_gmm,
    npu_gmm_alltoallv,
)

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
TESTS = "op-plugin test_{}.py"
PER_CHANNEL, BLOCKS, DYNAMIC = 2, 6, 7  # quant modes
FLOAT8 = {torch.float8_e5m2: 291, torch.float8_e4m3fn: 292}  # dtypes' numbers
Maybe = Tensor | None


def scaled_product(
    operator: str, x1: Tensor, x2: Tensor, bias: Maybe, token: Maybe, channel: Maybe
) -> Tensor:
    """(x1 @ x2 + bias) by row and by column, float32 or wider."""
    wide = (torch.float64 if x1.dtype == torch.float64 else torch.float32, torch.float64)
    found = (x1.to(wide[1]) @ x2.to(wide[1])).to(wide[0])
    if bias is not None:
        found = found + working(bias)
    for scale, shape, length in ((token, (-1, 1), len(found)), (channel, (1, -1), x2.shape[1])):
        if scale is None:
            continue
        if scale.numel() not in (1, length) or not scale.is_floating_point():
            raise Unsimulated(operator, f"scales {tuple(scale.shape)} of {scale.dtype}")
        found = found * working(scale).reshape(shape if scale.numel() > 1 else (1, 1))
    return found


def plain(operator: str, **given: object) -> None:
    """Refuse what has no formula here."""
    for name, value in given.items():
        if value not in (None, 0, [], [0], [0, 0, 0]):
            raise Unsimulated(operator, name)


def native(operator: str, *pairs: tuple[Maybe, int | None]) -> None:
    """Refuse operands that are to be read as another dtype than torch's own."""
    for tensor, code in pairs:
        if tensor is not None and torch_dtype(code, tensor.dtype, operator) != tensor.dtype:
            raise Unsimulated(operator, f"{tensor.dtype} read as dtype {code}")


def exchange_rows(group: RankGroup, x: Tensor) -> Tensor:
    """[BS, H] → [BS / ranks, H * ranks]: this rank's share of everybody's rows, side by side."""
    each = len(x) // group.ranks
    mine = slice(group.rank * each, (group.rank + 1) * each)
    return torch.cat([part[mine] for part in group.gathered(x)], -1)


def exchange_columns(group: RankGroup, y: Tensor) -> Tensor:
    """[BS, H] → [BS * ranks, H / ranks]: this rank's columns of everybody's product."""
    each = y.shape[1] // group.ranks
    mine = slice(group.rank * each, (group.rank + 1) * each)
    return torch.cat([part[:, mine] for part in group.gathered(y)])


@reference("npu_all_to_all_matmul", source=DOCS.format("npu_all_to_all_matmul"))
def npu_all_to_all_matmul(
    x1: Tensor, x2: Tensor, hcom: str, world_size: int, bias: Maybe, all2all_out_flag: bool
) -> tuple[Tensor, Tensor]:
    """Rows exchanged for columns, then the product; also the exchanged operand (else empty)."""
    rows = exchange_rows(RankGroup(hcom, world_size), x1)
    found = scaled_product("npu_all_to_all_matmul", rows, x2, bias, None, None).to(x1.dtype)
    return found, rows if all2all_out_flag else rows.new_empty(0)


@reference("npu_matmul_all_to_all", source=DOCS.format("npu_matmul_all_to_all"))
def npu_matmul_all_to_all(
    x1: Tensor, x2: Tensor, hcom: str, world_size: int, bias: Maybe
) -> Tensor:
    """The product, its columns exchanged for rows."""
    found = scaled_product("npu_matmul_all_to_all", x1, x2, bias, None, None).to(x1.dtype)
    return exchange_columns(RankGroup(hcom, world_size), found)


@reference(
    "npu_all_to_all_quant_matmul",
    source=TESTS.format("npu_all_to_all_quant_matmul"),
    without="common_scale x1_offset x2_offset x1_scale_dtype x2_scale_dtype",
)
def npu_all_to_all_quant_matmul(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """As npu_all_to_all_matmul; the exchanged rows are quantised per row to float8."""
    operator = "npu_all_to_all_quant_matmul"
    native(operator, (given.x1, given.x1_dtype), (given.x2, given.x2_dtype))
    if given.x1_quant_mode not in (None, DYNAMIC) or given.x2_quant_mode not in (None, PER_CHANNEL):
        raise Unsimulated(operator, f"quant modes {given.x1_quant_mode}, {given.x2_quant_mode}")
    element = torch_dtype(given.x1_quant_dtype, given.x2.dtype, operator)
    if element not in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise Unsimulated(operator, f"rows quantised to {element}")
    rows = exchange_rows(RankGroup(given.hcom, given.world_size), given.x1)
    smooth = working(rows) if given.x1_scale is None else working(rows) * working(given.x1_scale)
    scale = smooth.abs().amax(-1, keepdim=True) / torch.finfo(element).max
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    quantised = (smooth / safe).to(element)
    found = scaled_product(operator, quantised, given.x2, given.bias, safe, given.x2_scale)
    dtype = torch_dtype(given.y_dtype, torch.float32, operator)
    return found.to(dtype), rows if given.all2all_out_flag else rows.new_empty(0)


@reference(
    "npu_quant_matmul_all_to_all",
    source=TESTS.format("npu_quant_matmul_all_to_all"),
    without="common_scale x1_offset x2_offset x1_scale_dtype x2_scale_dtype "
    "common_quant_mode group_sizes",
)
def npu_quant_matmul_all_to_all(given: ReferenceArguments) -> Tensor:
    """As npu_matmul_all_to_all, of quantised operands with scales per row and per column."""
    operator = "npu_quant_matmul_all_to_all"
    native(operator, (given.x1, given.x1_dtype), (given.x2, given.x2_dtype))
    found = scaled_product(operator, given.x1, given.x2, given.bias, given.x1_scale, given.x2_scale)
    dtype = torch_dtype(given.y_dtype, torch.float32, operator)
    return exchange_columns(RankGroup(given.hcom, given.world_size), found.to(dtype))


@reference(
    "npu_all_gather_quant_mm",
    source="torch_npu _op_plugin_docs.py",
    without="quant_scale block_size gather_index group_sizes amax_output",
)
def npu_all_gather_quant_mm(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    """Everybody's rows times x2, those rows (empty unless asked for), and an empty maximum."""
    operator = "npu_all_gather_quant_mm"
    native(operator, (given.self, given.x1_dtype), (given.x2, given.x2_dtype))
    group = RankGroup(given.hcom, given.world_size)
    rows = torch.cat(group.gathered(given.self))
    token = given.x1_scale
    if token is not None and token.numel() > 1:
        token = torch.cat(group.gathered(token.reshape(-1)))
    found = scaled_product(operator, rows, given.x2, given.bias, token, given.x2_scale)
    dtype = torch_dtype(given.y_dtype, given.self.dtype, operator)
    gathered = rows if given.gather_output else rows.new_empty(0)
    return found.to(dtype), gathered, torch.empty(0)


@reference(
    "npu_quant_mm_reduce_scatter",
    source="torch_npu _op_plugin_docs.py",
    without="quant_scale block_size group_sizes amax_output",
)
def npu_quant_mm_reduce_scatter(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """This rank's rows of the sum over ranks, and an empty maximum."""
    operator = "npu_quant_mm_reduce_scatter"
    native(operator, (given.self, given.x1_dtype), (given.x2, given.x2_dtype))
    if given.reduce_op != "sum":
        raise Unsimulated(operator, f"reduce_op {given.reduce_op}")
    group = RankGroup(given.hcom, given.world_size)
    total = group.summed(
        scaled_product(operator, given.self, given.x2, given.bias, given.x1_scale, given.x2_scale)
    )
    each = len(total) // group.ranks
    mine = total[group.rank * each : (group.rank + 1) * each]
    return mine.to(torch_dtype(given.y_dtype, given.self.dtype, operator)), torch.empty(0)


def real(operator: str, given: ReferenceArguments, name: str, axis: int) -> Maybe:
    """Numbers of a block format, whose blocks of 32 lie along an axis, as float32."""
    x, scale, code, mode = (
        getattr(given, name + part) for part in ("", "_scale", "_dtype", "_quant_mode")
    )
    if x is None:
        return None
    if mode != BLOCKS or scale is None:
        raise Unsimulated(operator, f"quant mode {mode}: the package takes hifloat8 there")
    element = element_of(FLOAT8.get(x.dtype, 0) if code is None else code, operator)
    return mx_dequantised(x, scale, element, axis)


def multiply_own(rows: Maybe, weight: Maybe, dtype: torch.dtype) -> Maybe:
    """The product of the rows that stay, [m, n], where there are any."""
    own = multiply_shared(rows, weight, False)
    return None if own is None else own.to(dtype)


@reference("npu_alltoallv_quant_gmm", source=DOCS.format("npu_alltoallv_quant_gmm"))
def npu_alltoallv_quant_gmm(given: ReferenceArguments) -> tuple[Tensor, Maybe, Maybe]:
    """As npu_alltoallv_gmm, of block formats; the rows travel as they are stored."""
    operator = "npu_alltoallv_quant_gmm"
    weight = real(operator, given, "gmm_weight", -2)
    rows = real(operator, given, "gmm_x", -1)
    assert weight is not None
    assert rows is not None
    counts = given.hcom, given.ep_world_size, given.send_counts, given.recv_counts
    found = npu_alltoallv_gmm(rows, weight, *counts)[0]
    came = None
    if given.permute_out_flag:
        stored = given.gmm_x.view(torch.uint8)
        came = npu_alltoallv_gmm(stored, weight[:, :1].expand(-1, stored.shape[1], -1), *counts,
                                 permute_out_flag=True)[2]  # fmt: skip
    dtype = torch_dtype(given.gmm_y_dtype, torch.bfloat16, operator)
    own = multiply_own(
        real(operator, given, "mm_x", -1),
        real(operator, given, "mm_weight", -2),
        torch_dtype(given.mm_y_dtype, dtype, operator),
    )
    return found.to(dtype), own, None if came is None else came.view(given.gmm_x.dtype)


@reference(
    "npu_quant_gmm_alltoallv",
    source=TESTS.format("quant_gmm_alltoallv"),
    without="comm_quant_mode comm_quant_scale",
)
def npu_quant_gmm_alltoallv(given: ReferenceArguments) -> tuple[Tensor, Maybe]:
    """As npu_gmm_alltoallv, of block formats."""
    operator = "npu_quant_gmm_alltoallv"
    weight = real(operator, given, "gmm_weight", -2)
    rows = real(operator, given, "gmm_x", -1)
    assert rows is not None
    assert weight is not None
    found = npu_gmm_alltoallv(
        rows, weight, given.hcom, given.ep_world_size, given.send_counts, given.recv_counts
    )[0]
    dtype = torch_dtype(given.gmm_y_dtype, torch.bfloat16, operator)
    own = multiply_own(
        real(operator, given, "mm_x", -1),
        real(operator, given, "mm_weight", -2),
        torch_dtype(given.mm_y_dtype, dtype, operator),
    )
    return found.to(dtype), own


@reference("_npu_distribute_barrier", source="ops-transformer aclnnDistributeBarrier.md")
def _npu_distribute_barrier(x_ref: Tensor, group: str, world_size: int) -> Tensor:
    """Waits for all ranks of the group; the tensor only says in which order."""
    RankGroup(group, world_size).gathered(torch.zeros(1))
    return x_ref.clone()

"""Training attention: how one call of npu_fusion_attention is planned and computed.

Layouts BSH, SBH, BSND, BNSD and TND (packed sequences), sparse_mode 0-8, pse in all four types,
sinks, rope parts, GQA, and dropout with seed, offset and length returned for the backward operator.
A fully hidden row is zero where the operator can tell from its parameters (inner_precise 2, or a
sparse_mode other than 0 and 1), and the mean of the values otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_core import (
    UNLIMITED,
    Attended,
    attend,
    from_bnsd,
    kv_heads_of,
    mask_of_mode,
    spans,
    to_bnsd,
)
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import vjp
from joymigrate.run.rehearse.refs.randomness import keep_mask, next_pair, unpack_bits

SOURCE = (
    "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_fusion_attention.md, "
    "FlashAttentionKernelNpuOpApi.cpp, FlashAttentionV2KernelNpuOpApi.cpp"
)
COMPRESSED_ROWS = 1024  # an ALiBi pse may hold only its last 1024 rows
Maybe = Tensor | None
Lengths = Sequence[int] | Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Everything about one call but its tensors."""

    layout: str
    heads: int
    scale: float
    keep_prob: float = 1.0
    before: int = UNLIMITED
    after: int = UNLIMITED
    inner_precise: int = 0
    prefix: tuple[int, ...] = ()
    q_ends: tuple[int, ...] = ()  # cumulative lengths of packed sequences
    kv_ends: tuple[int, ...] = ()
    sparse_mode: int = 0
    pse_type: int = 1
    shift: int = 0  # q_start_idx - kv_start_idx
    softmax_layout: str = ""


def plan(given: ReferenceArguments) -> AttentionCall:
    """A call's scalars, checked as the vendor's C++ checks them."""
    layout, keep_prob, sparse_mode = given.input_layout.upper(), given.keep_prob, given.sparse_mode
    if layout not in ("BSH", "SBH", "BNSD", "BSND", "TND"):
        raise RuntimeError(f"The input_layout should be BSH/SBH/BNSD/BSND/TND, but got {layout}")
    if not 0 < keep_prob <= 1:
        raise RuntimeError(f"The keep_prob value must be in range of (0, 1], but got {keep_prob}")
    packed = layout == "TND"
    if sparse_mode not in (range(9) if packed else range(7)) or (packed and sparse_mode == 5):
        raise RuntimeError(f"sparse_mode {sparse_mode} is not supported in layout {layout}")
    ends, kv = _ints(given.actual_seq_qlen), _ints(given.actual_seq_kvlen)
    if packed and (not ends or len(ends) != len(kv)):
        raise RuntimeError("the size of actual_seq_qlen and actual_seq_kvlen must be the same")
    return AttentionCall(
        layout=layout,
        heads=given.head_num,
        scale=given.get("scale", "scale_value"),
        keep_prob=keep_prob,
        before=given.get("pre_tockens", "pre_tokens"),
        after=given.get("next_tockens", "next_tokens"),
        inner_precise=given.inner_precise,
        prefix=_ints(given.prefix),
        q_ends=ends,
        kv_ends=kv,
        sparse_mode=sparse_mode,
        softmax_layout=given.softmax_layout,
        pse_type=given.get("pse_type", default=1),
        shift=_first(given.get("q_start_idx")) - _first(given.get("kv_start_idx")),
    )


def _first(index: Lengths) -> int:
    return int(index[0]) if index is not None and len(index) else 0


def _ints(values: Lengths) -> tuple[int, ...]:
    return () if values is None else tuple(int(value) for value in values)


def dropout_length(plan: AttentionCall, query: Tensor, key: Tensor) -> int:
    """Number of scores, which is the number of dropout decisions."""
    if plan.layout == "TND":
        pairs = zip(spans(list(plan.q_ends)), spans(list(plan.kv_ends)), strict=True)
        scores = [(q.stop - q.start) * (k.stop - k.start) for q, k in pairs]
        return int(query.shape[1] * sum(scores))
    axes: dict[str, tuple[int, int]] = {
        "BSH": (0, 1),
        "SBH": (1, 0),
        "BNSD": (0, 2),
        "BSND": (0, 1),
    }
    batch_axis, axis = axes[plan.layout]
    return query.shape[batch_axis] * plan.heads * query.shape[axis] * key.shape[axis]


def _bias(
    plan: AttentionCall, pse: Maybe, batch: int | None, rows: int, columns: int, at: int
) -> Maybe:
    """The pse of one sequence (or of the batch, `batch` None) as [B|1, N, rows|1, columns].

    `at` is where this sequence starts in a flat pse of all score matrices.
    """
    if pse is None:
        return None
    if plan.pse_type in (2, 3):
        return _alibi(plan, pse, batch, rows, columns)
    if pse.dim() == 1:
        count = plan.heads * rows * columns
        return pse[at : at + count].view(1, plan.heads, rows, columns)
    if batch is not None:
        pse = pse[batch if pse.shape[0] > 1 else 0].unsqueeze(0)
    if pse.shape[2] == COMPRESSED_ROWS and (rows != COMPRESSED_ROWS or batch is not None):
        return _from_last_row(pse, rows, columns)
    return pse[..., :rows, :columns]


def _alibi(
    plan: AttentionCall, slopes: Tensor, batch: int | None, rows: int, columns: int
) -> Tensor:
    """pse_type 2: -slope·|distance|; 3: -slope·√|distance|. Slopes are [N] or [B, N]."""
    distance = torch.arange(rows).view(-1, 1) - torch.arange(columns) + plan.shift
    size = distance.abs().to(slopes.dtype)
    if plan.pse_type == 3:
        size = size.sqrt()
    slopes = slopes if slopes.dim() == 2 else slopes.unsqueeze(0)
    if batch is not None and slopes.shape[0] > 1:
        slopes = slopes[batch : batch + 1]
    return -slopes[:, :, None, None] * size


def _from_last_row(pse: Tensor, rows: int, columns: int) -> Tensor:
    """A compressed ALiBi bias: it depends on the distance alone, which the last row holds."""
    last = pse[:, :, -1, :]
    distance = torch.arange(rows).view(-1, 1) - torch.arange(columns)
    index = (last.shape[-1] - 1 - distance).clamp(0, last.shape[-1] - 1)
    return last[..., index]


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The tensors of one call; gradients flow to all but the mask."""

    query: Tensor
    key: Tensor
    value: Tensor
    pse: Maybe = None
    sink: Maybe = None
    query_rope: Maybe = None
    key_rope: Maybe = None
    mask: Maybe = None

    @classmethod
    def of(cls, given: ReferenceArguments) -> AttentionInputs:
        names = ("query", "key", "value", "pse", "sink", "query_rope", "key_rope", "atten_mask")
        return cls(*(given.get(name) for name in names))


def _zero_empty_rows(plan: AttentionCall) -> bool:
    return plan.inner_precise == 2 or plan.sparse_mode not in (0, 1)


def _join_rope(plan: AttentionCall, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Query and key with their rope parts behind them along the head size."""
    if inputs.query_rope is None or inputs.key_rope is None:
        return inputs.query, inputs.key
    if plan.layout in ("BSH", "SBH"):
        raise Unsimulated("npu_fusion_attention_v2", f"query_rope in layout {plan.layout}")
    query = torch.cat((inputs.query, inputs.query_rope), -1)
    return query, torch.cat((inputs.key, inputs.key_rope), -1)


def _attend_batch(plan: AttentionCall, inputs: AttentionInputs, keep: Maybe) -> Attended:
    query, key = _join_rope(plan, inputs)
    kv_heads = kv_heads_of(key, query, plan.layout, plan.heads)
    query = to_bnsd(query, plan.layout, plan.heads)
    key = to_bnsd(key, plan.layout, kv_heads)
    value = to_bnsd(inputs.value, plan.layout, kv_heads)
    rows, columns = query.shape[2], key.shape[2]
    hide = _hidden_of_batch(plan, inputs.mask, query.shape[0], rows, columns)
    if keep is not None:
        keep = keep.view(query.shape[0], plan.heads, rows, columns)
    return attend(
        query,
        key,
        value,
        plan.scale,
        bias=_bias(plan, inputs.pse, None, rows, columns, 0),
        bias_first=plan.pse_type == 1,
        hide=hide,
        keep=keep,
        keep_prob=plan.keep_prob,
        sink=inputs.sink,
        empty_rows_zero=_zero_empty_rows(plan),
    )


def _hidden_of_batch(
    plan: AttentionCall, mask: Maybe, batch: int, rows: int, columns: int
) -> Maybe:
    """Hidden positions of all sequences; prefixes differ by sequence."""
    tokens: dict[str, Any] = {"before": plan.before, "after": plan.after}
    if plan.sparse_mode not in (5, 6) or mask is None:
        return mask_of_mode(plan.sparse_mode, rows, columns, mask, **tokens)
    each = []
    for number in range(batch):
        own = mask[number : number + 1] if mask.dim() == 4 and mask.shape[0] == batch else mask
        prefix = plan.prefix[number] if number < len(plan.prefix) else 0
        found = mask_of_mode(plan.sparse_mode, rows, columns, own, prefix=prefix)
        assert found is not None
        each.append(found.reshape(1, -1, rows, columns))
    return torch.cat(each)


def _attend_packed(plan: AttentionCall, inputs: AttentionInputs, keep: Maybe) -> Attended:
    """TND: every sequence on its own; the result is [1, N, T, …]."""
    query, key = _join_rope(plan, inputs)
    value, at, parts = inputs.value, 0, []
    pairs = list(zip(spans(list(plan.q_ends)), spans(list(plan.kv_ends)), strict=True))
    for number, (q_span, kv_span) in enumerate(pairs):
        rows, columns = q_span.stop - q_span.start, kv_span.stop - kv_span.start
        count = plan.heads * rows * columns
        own = None if keep is None else keep[at : at + count].view(1, plan.heads, rows, columns)
        place = _place(number, len(pairs))
        prefix = plan.prefix[number] if number < len(plan.prefix) else 0
        hide = mask_of_mode(
            plan.sparse_mode,
            rows,
            columns,
            inputs.mask,
            before=plan.before,
            after=plan.after,
            prefix=prefix,
            place=place,
        )
        parts.append(
            attend(
                query[q_span].transpose(0, 1).unsqueeze(0),
                key[kv_span].transpose(0, 1).unsqueeze(0),
                value[kv_span].transpose(0, 1).unsqueeze(0),
                plan.scale,
                bias=_bias(plan, inputs.pse, number, rows, columns, at),
                bias_first=plan.pse_type == 1,
                hide=hide,
                keep=own,
                keep_prob=plan.keep_prob,
                sink=inputs.sink,
                empty_rows_zero=_zero_empty_rows(plan),
            )
        )
        at += count
    rest = query.shape[0] - plan.q_ends[-1]
    return Attended(*(_along_tokens(parts, name, rest) for name in ("output", "maximum", "total")))


def _place(number: int, count: int) -> str:
    if count == 1:
        return "only"
    return {0: "first", count - 1: "last"}.get(number, "")


def _along_tokens(parts: list[Attended], name: str, rest: int) -> Tensor:
    """Join the sequences along S, with zeros for tokens behind the last one."""
    joined = torch.cat([getattr(part, name) for part in parts], 2)
    return torch.nn.functional.pad(joined, (0, 0, 0, rest))


def fusion_attention(
    plan: AttentionCall, inputs: AttentionInputs, keep: Maybe
) -> tuple[Tensor, Tensor, Tensor]:
    """Output in the call's layout, softmax maximum and sum in the form of the vendor."""
    if plan.layout != "TND":
        found = _attend_batch(plan, inputs, keep)
        wide = [x.expand(*x.shape[:3], 8).contiguous() for x in (found.maximum, found.total)]
        return from_bnsd(found.output, plan.layout), wide[0].float(), wide[1].float()
    found = _attend_packed(plan, inputs, keep)
    output = found.output.squeeze(0).transpose(0, 1).contiguous()
    return output, _statistics(plan, found.maximum), _statistics(plan, found.total)


def _statistics(plan: AttentionCall, values: Tensor) -> Tensor:
    """[1, N, T, 1] → [T, N, 8]; in memory TND when asked for, else NTD sequence by sequence."""
    wide = values.squeeze(0).expand(-1, -1, 8).float()  # [N, T, 8]
    if plan.softmax_layout == "TND":
        return wide.transpose(0, 1).contiguous()
    tokens = wide.shape[1]
    edges = spans([*plan.q_ends, *([tokens] if tokens > plan.q_ends[-1] else [])])
    flat = torch.cat([wide[:, edge].reshape(-1, 8) for edge in edges])
    return flat.view(tokens, wide.shape[0], 8)


@dataclass(frozen=True, slots=True)
class Dropout:
    """What the backward operator needs to make the same dropout mask again."""

    keep: Maybe
    seed: int
    offset: int
    length: int


def draw_dropout(
    plan: AttentionCall, query: Tensor, key: Tensor, given: Maybe, seed: int, offset: int
) -> Dropout:
    """The mask of a forward call. A mask from outside comes with its seed and offset."""
    length = dropout_length(plan, query, key)
    if given is not None:
        return Dropout(unpack_bits(given, length), seed, offset, length)
    if plan.keep_prob == 1.0:
        return Dropout(None, seed, offset, length)
    seed, offset = next_pair()
    return redraw_dropout(plan, seed, offset, length)


def redraw_dropout(plan: AttentionCall, seed: int, offset: int, length: int) -> Dropout:
    """The mask of a backward call."""
    if plan.keep_prob == 1.0:
        return Dropout(None, seed, offset, length)
    return Dropout(keep_mask(length, plan.keep_prob, seed, offset), seed, offset, length)


def gradients(
    plan: AttentionCall, inputs: AttentionInputs, dy: Tensor, keep: Maybe
) -> tuple[Tensor, ...]:
    """dq, dk, dv, dpse, dquery_rope, dkey_rope, dsink; empty where the input is absent."""
    names = ("query", "key", "value", "pse", "query_rope", "key_rope", "sink")
    given = [getattr(inputs, name) for name in names]

    def forward(*tensors: Maybe) -> Tensor:
        changed: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return fusion_attention(plan, replace(inputs, **changed), keep)[0]

    grads = vjp(forward, given, dy)
    return tuple(inputs.query.new_empty(0) if grad is None else grad for grad in grads)

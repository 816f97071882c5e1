"""What all attention operators share: layouts, hidden positions, and attention itself.

Shapes: B batch, N heads, S sequence, D head size, H = N·D, T tokens of all sequences. Inside,
everything is BNSD; a packed layout (TND, NTD) is cut into sequences first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import working

HIDDEN = torch.finfo(torch.float32).min  # the score of a hidden position
UNLIMITED = 2147483647  # default of pre_tokens and next_tokens


@dataclass(frozen=True, slots=True)
class Attended:
    """One attention: output [B, N, Sq, Dv], row maximum and row sum [B, N, Sq, 1], in float32."""

    output: Tensor
    maximum: Tensor
    total: Tensor


def split_last(tensor: Tensor, heads: int) -> Tensor:
    """[..., N·D] → [..., N, D]."""
    return tensor.reshape(*tensor.shape[:-1], heads, tensor.shape[-1] // heads)


def to_bnsd(tensor: Tensor, layout: str, heads: int) -> Tensor:
    """A tensor of an unpacked layout as BNSD (a view where possible)."""
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "BSH":
        return split_last(tensor, heads).transpose(1, 2)
    if layout == "SBH":
        return split_last(tensor, heads).permute(1, 2, 0, 3)
    if layout == "NSD":
        return tensor.unsqueeze(0)
    raise Unsimulated("attention", f"input_layout {layout}")


def from_bnsd(tensor: Tensor, layout: str) -> Tensor:
    """BNSD as a contiguous tensor of `layout`."""
    orders = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "NBSD": (1, 0, 2, 3)}
    if layout in orders:
        return tensor.permute(orders[layout]).contiguous()
    if layout == "BSH":
        return tensor.transpose(1, 2).flatten(2)
    if layout == "SBH":
        return tensor.permute(2, 0, 1, 3).flatten(2)
    if layout == "NSD":
        return tensor.squeeze(0)
    raise Unsimulated("attention", f"output layout {layout}")


def kv_heads_of(key: Tensor, query: Tensor, layout: str, heads: int) -> int:
    """Number of key heads, of a layout that hides it in H from the query's head size."""
    if layout in ("BSH", "SBH"):
        return max(1, key.shape[-1] * heads // max(1, query.shape[-1]))
    return key.shape[{"BNSD": 1, "BSND": 2, "NSD": 0}[layout]]


def spans(cumulative: list[int]) -> list[slice]:
    """Cumulative lengths [2, 5] → the slices [0:2], [2:5]."""
    return [slice(start, stop) for start, stop in pairwise([0, *cumulative])]


def outside_band(rows: int, columns: int, before: int, after: int, *, bottom_right: bool) -> Tensor:
    """True where column j is not in [i - before, i + after]; [rows, columns].

    The diagonal starts in the upper left corner, or ends in the lower right one.
    """
    i = torch.arange(rows).unsqueeze(1) + (columns - rows if bottom_right else 0)
    j = torch.arange(columns).unsqueeze(0)
    return (j > i + after) | (j < i - before)


def mask_of_mode(
    mode: int,
    rows: int,
    columns: int,
    mask: Tensor | None,
    *,
    before: int = UNLIMITED,
    after: int = UNLIMITED,
    prefix: int = 0,
    place: str = "",
) -> Tensor | None:
    """Positions that `sparse_mode` hides: bool, broadcastable to [B, N, rows, columns].

    Without a mask nothing is hidden, whatever the mode (documented for npu_fusion_attention_v2).
    In modes 2-4 and 6-8 the mask is a compressed constant, so only the mode is read. `place` says
    for packed sequences whether this one is "first", "last" or "only" (modes 7 and 8).
    """
    if mask is None:
        return None
    if mode in (0, 1, 5):
        given = mask[..., :rows, :columns].bool()
        if mode == 0 and (before < columns + rows or after < columns + rows):
            return given | outside_band(rows, columns, before, after, bottom_right=False)
        if mode == 5:
            return given | _prefix(rows, columns, prefix)
        return given
    if mode == 2 or (mode == 8 and place not in ("first", "only")):
        return outside_band(rows, columns, UNLIMITED, 0, bottom_right=False)
    if mode == 3 or (mode == 7 and place not in ("last", "only")):
        return outside_band(rows, columns, UNLIMITED, 0, bottom_right=True)
    if mode in (4, 7, 8):
        return outside_band(rows, columns, before, after, bottom_right=True)
    if mode == 6:
        return _prefix(rows, columns, prefix)
    raise Unsimulated("attention", f"sparse_mode {mode}")


def _prefix(rows: int, columns: int, prefix: int) -> Tensor:
    causal = outside_band(rows, columns, UNLIMITED, 0, bottom_right=True)
    return causal & (torch.arange(columns) >= prefix)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    bias: Tensor | None = None,
    bias_first: bool = True,
    hide: Tensor | None = None,
    keep: Tensor | None = None,
    keep_prob: float = 1.0,
    sink: Tensor | None = None,
    empty_rows_zero: bool = False,
) -> Attended:
    """softmax(scale·(Q·Kᵀ + bias)) · V over BNSD tensors, in float32 (float64 stays).

    `bias_first`: add before scaling, else after. `keep` are dropout's kept positions. A `sink`
    [N] is one more logit per head that takes part in maximum and sum alone. Rows with nothing
    visible become zero when asked for, otherwise the mean of V, as a finite mask gives it.
    """
    query, key, value = working(query), working(key), working(value)
    groups = query.shape[1] // max(1, key.shape[1])
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if key.shape[2] == 0:
        return _nothing(query, value)
    scores = query @ key.transpose(-1, -2)
    if bias is None:
        scores = scores * scale
    else:
        bias = bias.to(scores.dtype)
        scores = (scores + bias) * scale if bias_first else scores * scale + bias
    if hide is not None:
        scores = scores.masked_fill(hide, HIDDEN)
    maximum = scores.detach().amax(-1, keepdim=True)
    if sink is not None:
        logit = sink.to(scores.dtype).view(1, -1, 1, 1)
        maximum = torch.maximum(maximum, logit.detach())
    weights = (scores - maximum).exp()
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (logit - maximum).exp()
    if keep is not None:
        weights = weights * keep / keep_prob
    output = (weights / total) @ value
    if hide is not None and empty_rows_zero:
        output = output.masked_fill(hide.all(-1, keepdim=True), 0.0)
    return Attended(output, maximum, total)


def _nothing(query: Tensor, value: Tensor) -> Attended:
    rows = query.shape[:3]
    return Attended(
        query.new_zeros(*rows, value.shape[-1]),
        query.new_full((*rows, 1), HIDDEN),
        query.new_zeros(*rows, 1),
    )

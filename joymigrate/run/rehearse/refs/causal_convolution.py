"""Causal convolution of sequences; the last rows of each are kept in a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import working

SOURCE = (
    "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_causal_conv1d.md, "
    "test_npu_fused_causal_conv1d.py"
)
Maybe = Tensor | None


def convolve(
    x: Tensor,
    weight: Tensor,
    states: Tensor,
    *,
    starts: Maybe,
    lines: Maybe,
    accepted: Maybe,
    computed: Maybe,
    pad: int,
    residual: bool,
    zeroed: bool,
) -> Tensor:
    """x [T, D] or [B, S, D], weight [K, D]; states [lines, at least K - 1, D] are written in place.

    A sequence goes on from its line of the cache, or from zeros at its first token. Of drafted
    tokens the last `accepted` count of the step before says where it goes on. A sequence whose
    line is `pad` is left out: its rows stay as they are.
    """
    flat, history = x.reshape(-1, x.shape[-1]), len(weight) - 1
    if starts is None:
        ends = [x.shape[1] * number for number in range(len(x) + 1)]
    else:
        ends = [int(one) for one in starts]
    out = flat.clone()
    for number in range(len(ends) - 1):
        rows = flat[ends[number] : ends[number + 1]]
        line = number if lines is None else int(lines[number])
        if line == pad:
            continue
        if computed is not None and int(computed[number]) == 0:
            skipped, before = 0, rows.new_zeros(history, rows.shape[1])
        else:
            skipped = states.shape[1] - history
            if accepted is not None:
                skipped = int(accepted[number]) - 1
            before = states[line, : skipped + history].clone()
        whole = torch.cat((before, rows))
        kept = min(states.shape[1], len(whole))
        states[line, states.shape[1] - kept :] = whole[len(whole) - kept :]
        windows = working(whole[skipped:]).unfold(0, len(weight), 1)  # [S, D, K]
        found = torch.einsum("sdk,kd->sd", windows, working(weight))
        if zeroed:
            assert computed is not None
            found[: min(max(history - int(computed[number]), 0), len(rows))] = 0
        found = found + working(rows) if residual else found
        out[ends[number] : ends[number + 1]] = found.to(x.dtype)
    return out.reshape(x.shape)


def by_arguments(
    x: Tensor,
    weight: Tensor,
    conv_states: Tensor,
    query_start_loc: Maybe,
    cache_indices: Maybe,
    num_accepted_tokens: Maybe,
    pad_slot_id: int,
    residual_connection: int,
    num_computed_tokens: Maybe,
    last_block: Maybe,
    conv_mode: str,
) -> Tensor:
    if last_block is not None:
        raise Unsimulated("npu_fused_causal_conv1d", "a prefix cache")
    return convolve(
        x,
        weight,
        conv_states,
        starts=query_start_loc,
        lines=cache_indices,
        accepted=num_accepted_tokens,
        computed=num_computed_tokens,
        pad=pad_slot_id,
        residual=residual_connection == 1,
        zeroed=conv_mode == "pangu",
    )


@reference("npu_fused_causal_conv1d", source=SOURCE)
def npu_fused_causal_conv1d(given: ReferenceArguments) -> Tensor:
    """The documents say that bias, activation, run mode and initial state mode do nothing."""
    return by_arguments(
        given.x,
        given.weight,
        given.conv_states,
        given.query_start_loc,
        given.cache_indices,
        given.num_accepted_tokens,
        -1 if given.pad_slot_id is None else given.pad_slot_id,
        given.residual_connection or 0,
        given.num_computed_tokens,
        given.block_idx_last_scheduled_token,
        given.conv_mode or "default",
    )


@reference("npu_fused_causal_conv1d_v2", source=SOURCE)
def npu_fused_causal_conv1d_v2(given: ReferenceArguments) -> None:
    """The same, written over x."""
    convolved = npu_fused_causal_conv1d(
        given.x,
        given.weight,
        given.conv_states,
        query_start_loc=given.query_start_loc,
        cache_indices=given.cache_indices,
        num_accepted_tokens=given.num_accepted_tokens,
        pad_slot_id=given.pad_slot_id,
        residual_connection=given.residual_connection,
        num_computed_tokens=given.num_computed_tokens,
        block_idx_last_scheduled_token=given.block_idx_last_scheduled_token,
        conv_mode=given.conv_mode,
    )
    given.x.copy_(convolved)

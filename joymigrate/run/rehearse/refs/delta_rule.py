"""Linear attention by the gated delta rule, token by token, over a cache of states."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import working

Maybe = Tensor | None
SOURCE = "op-plugin torch_npu-npu_recurrent_gated_delta_rule.md"


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of all heads: output [N, Dv] and the new state [N, Dv, Dk]."""
    state = state * decay
    missing = value - (state * key[:, None, :]).sum(-1)
    state = state + (beta[:, None] * missing)[..., None] * key[:, None, :]
    return (state * query[:, None, :]).sum(-1), state


@reference("npu_recurrent_gated_delta_rule", source=SOURCE)
def npu_recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    beta: Maybe,
    scale: float | None,
    actual_seq_lengths: Maybe,
    ssm_state_indices: Maybe,
    num_accepted_tokens: Maybe,
    g: Maybe,
    gk: Maybe,
) -> Tensor:
    """[T, Nv, Dv]. A sequence starts from the state of its last accepted token.

    `state` [blocks, Nv, Dv, Dk] is written in place: each token's state goes to its block.
    """
    tokens, heads, _ = value.shape
    repeat = heads // query.shape[1]
    q = working(query).repeat_interleave(repeat, 1) * (
        query.shape[-1] ** -0.5 if scale is None else scale
    )
    k, v = working(key).repeat_interleave(repeat, 1), working(value)
    strength = torch.ones(tokens, heads) if beta is None else working(beta)
    decay = torch.ones(tokens, heads, 1, 1)
    decay = decay if g is None else decay * working(g).exp()[..., None, None]
    decay = decay if gk is None else decay * working(gk).exp()[:, :, None, :]
    blocks = range(tokens) if ssm_state_indices is None else ssm_state_indices.tolist()
    lengths = [tokens] if actual_seq_lengths is None else actual_seq_lengths.tolist()
    accepted = [1] * len(lengths) if num_accepted_tokens is None else num_accepted_tokens.tolist()
    found, start = [], 0
    for length, count in zip(lengths, accepted, strict=True):
        current = working(state[blocks[start + count - 1]]).clone()
        for t in range(start, start + length):
            output, current = recurrence(q[t], k[t], v[t], current, decay[t], strength[t])
            state[blocks[t]] = current.to(state.dtype)
            found.append(output)
        start += length
    return torch.stack(found).to(torch.bfloat16)


@reference("npu_recurrent_gated_delta_rule_functional", source=SOURCE)
def npu_recurrent_gated_delta_rule_functional(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    beta: Maybe,
    scale: float | None,
    actual_seq_lengths: Maybe,
    ssm_state_indices: Maybe,
    num_accepted_tokens: Maybe,
    g: Maybe,
    gk: Maybe,
) -> tuple[Tensor, Tensor]:
    """The output, and the states as a new tensor."""
    states = state.clone()
    output = npu_recurrent_gated_delta_rule(
        *(query, key, value, states),
        beta=beta,
        scale=scale,
        actual_seq_lengths=actual_seq_lengths,
        ssm_state_indices=ssm_state_indices,
        num_accepted_tokens=num_accepted_tokens,
        g=g,
        gk=gk,
    )
    return output, states


@reference("npu_chunk_gated_delta_rule", source="torch_npu _op_plugin_docs.py")
def npu_chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Maybe,
    initial_state: Maybe,
    actual_seq_lengths: Maybe,
    scale: float | None,
    g: Maybe,
) -> tuple[Tensor, Tensor]:
    """[T, Nv, Dv], and the states [B, Nv, Dv, Dk] after each sequence; each has its own to begin
    with. The same as token by token: chunks are how the chip computes it."""
    assert initial_state is not None
    states = initial_state.clone()
    lengths = [len(value)] if actual_seq_lengths is None else actual_seq_lengths.tolist()
    output, start = torch.zeros_like(value, dtype=torch.bfloat16), 0
    for number, length in enumerate(lengths):
        part = slice(start, start + length)
        start += length
        if not length:
            continue
        # Every token writes the one block that the sequence has.
        own = working(states[number : number + 1]).clone()
        output[part] = npu_recurrent_gated_delta_rule(
            *(query[part], key[part], value[part], own),
            beta=None if beta is None else beta[part],
            scale=scale,
            ssm_state_indices=torch.zeros(length, dtype=torch.int64),
            g=None if g is None else g[part],
        )
        states[number] = own[0].to(states.dtype)
    return output, states

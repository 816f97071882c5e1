"""Linear attention by the gated delta rule, token by token, over a cache of states."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
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
def npu_recurrent_gated_delta_rule(given: ReferenceArguments) -> Tensor:
    """[T, Nv, Dv]. A sequence starts from the state of its last accepted token.

    `state` [blocks, Nv, Dv, Dk] is written in place: each token's state goes to its block.
    """
    tokens, heads, _ = given.value.shape
    repeat = heads // given.query.shape[1]
    q = working(given.query).repeat_interleave(repeat, 1) * (
        given.query.shape[-1] ** -0.5 if given.scale is None else given.scale
    )
    k, v = working(given.key).repeat_interleave(repeat, 1), working(given.value)
    strength = torch.ones(tokens, heads) if given.beta is None else working(given.beta)
    decay = torch.ones(tokens, heads, 1, 1)
    decay = decay if given.g is None else decay * working(given.g).exp()[..., None, None]
    decay = decay if given.gk is None else decay * working(given.gk).exp()[:, :, None, :]
    blocks = range(tokens) if given.ssm_state_indices is None else given.ssm_state_indices.tolist()
    lengths = [tokens] if given.actual_seq_lengths is None else given.actual_seq_lengths.tolist()
    accepted = (
        [1] * len(lengths)
        if given.num_accepted_tokens is None
        else given.num_accepted_tokens.tolist()
    )
    found, start = [], 0
    for length, count in zip(lengths, accepted, strict=True):
        current = working(given.state[blocks[start + count - 1]]).clone()
        for t in range(start, start + length):
            output, current = recurrence(q[t], k[t], v[t], current, decay[t], strength[t])
            given.state[blocks[t]] = current.to(given.state.dtype)
            found.append(output)
        start += length
    return torch.stack(found).to(torch.bfloat16)


@reference("npu_chunk_gated_delta_rule", source="torch_npu _op_plugin_docs.py")
def npu_chunk_gated_delta_rule(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """[T, Nv, Dv], and the states [B, Nv, Dv, Dk] after each sequence; each has its own to begin
    with. The same as token by token: chunks are how the chip computes it."""
    assert given.initial_state is not None
    states = given.initial_state.clone()
    lengths = (
        [len(given.value)]
        if given.actual_seq_lengths is None
        else given.actual_seq_lengths.tolist()
    )
    output, start = torch.zeros_like(given.value, dtype=torch.bfloat16), 0
    for number, length in enumerate(lengths):
        part = slice(start, start + length)
        start += length
        if not length:
            continue
        # Every token writes the one block that the sequence has.
        own = working(states[number : number + 1]).clone()
        output[part] = npu_recurrent_gated_delta_rule(
            *(given.query[part], given.key[part], given.value[part], own),
            beta=None if given.beta is None else given.beta[part],
            scale=given.scale,
            ssm_state_indices=torch.zeros(length, dtype=torch.int64),
            g=None if given.g is None else given.g[part],
        )
        states[number] = own[0].to(states.dtype)
    return output, states

"""Token permutation of Megatron-style experts, by indices or by a routing map, with gradients.

`sorted_indices[t·k + j]` is the row of the permuted tensor that holds token t's j-th copy; rows at
or behind the number of kept tokens were dropped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import vjp, working

TESTS = "op-plugin derivatives.yaml and test/test_custom_ops/{}.py"
Maybe = Tensor | None
Shape = list[int] | None


@reference("npu_moe_token_permute", source=TESTS.format("test_npu_moe_token_permute_and_unpermute"))
def npu_moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None, padded_mode: bool
) -> tuple[Tensor, Tensor]:
    """Tokens sorted by expert (stable), and where every copy went."""
    if padded_mode:
        return tokens[indices.reshape(-1).long()], indices.to(torch.int32)
    k = indices.shape[1] if indices.dim() > 1 else 1
    order = indices.reshape(-1).sort(stable=True).indices
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    wanted = num_out_tokens or 0
    kept = min(wanted, len(order)) if wanted > 0 else len(order) + wanted
    return tokens[order[:kept] // k], place.to(torch.int32)


def gather_copies(permuted: Tensor, place: Tensor, probs: Maybe) -> Tensor:
    """Every token's copies, weighted and added up; dropped copies count as zero."""
    index = place.reshape(-1).long()
    kept = index < len(permuted)
    rows = permuted[index.clamp(max=max(0, len(permuted) - 1))] * kept.unsqueeze(-1)
    k = 1 if probs is None else probs.shape[1]
    rows = rows.reshape(-1, k, permuted.shape[-1])
    return (rows if probs is None else rows * probs.unsqueeze(-1)).sum(1)


def _scatter(permuted: Tensor, index: Tensor, probs: Maybe, shape: Shape) -> Tensor:
    """Padded form: rows added to the tokens that `index` names."""
    assert shape is not None
    rows = permuted if probs is None else permuted * probs.reshape(-1, 1)
    return permuted.new_zeros(shape).index_add(0, index.reshape(-1).long(), rows)


def _unpermute(permuted: Tensor, place: Tensor, probs: Maybe, padded: bool, shape: Shape) -> Tensor:
    if padded:
        return _scatter(permuted, place, probs, shape)
    return gather_copies(permuted, place, probs)


@reference(
    "npu_moe_token_unpermute", source=TESTS.format("test_npu_moe_token_permute_and_unpermute")
)
def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Maybe,
    padded_mode: bool,
    restore_shape: Shape,
) -> Tensor:
    weights = None if probs is None else working(probs)
    found = _unpermute(
        working(permuted_tokens), sorted_indices, weights, padded_mode, restore_shape
    )
    return found.to(permuted_tokens.dtype)


@reference("_npu_moe_token_unpermute", source="op-plugin derivatives.yaml")
def _npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Maybe,
    padded_mode: bool,
    restore_shape: Shape,
) -> tuple[Tensor, Tensor]:
    """The tokens, and the permuted ones kept for backward (empty when no probs need them)."""
    found = npu_moe_token_unpermute(
        permuted_tokens, sorted_indices, probs, padded_mode, restore_shape
    )
    return found, permuted_tokens.new_empty(0) if probs is None else permuted_tokens.clone()


@reference("npu_moe_token_permute_grad", source="op-plugin derivatives.yaml")
def npu_moe_token_permute_grad(
    tokens: Tensor,
    grad_permuted_tokens: Tensor,
    indices: Tensor,
    sorted_indices: Tensor,
    padded_mode: bool,
) -> Tensor:
    k = indices.shape[-1] if indices.dim() > 1 else 1
    return npu_moe_token_permute_grad_v2(
        grad_permuted_tokens, sorted_indices, len(tokens), tokens.dtype, k, padded_mode
    )


@reference("npu_moe_token_permute_grad_v2", source="op-plugin derivatives.yaml")
def npu_moe_token_permute_grad_v2(
    grad_permuted_tokens: Tensor,
    sorted_indices: Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,
    padded_mode: bool,
) -> Tensor:
    grad = working(grad_permuted_tokens)
    if padded_mode:
        found = _scatter(grad, sorted_indices, None, [tokens_size_0, grad.shape[-1]])
    else:
        found = gather_copies(
            grad, sorted_indices, torch.ones(tokens_size_0, num_topK).to(grad.dtype)
        )
    return found.to(tokens_dtype)


@reference("npu_moe_token_unpermute_grad", source="op-plugin derivatives.yaml")
def npu_moe_token_unpermute_grad(
    permuted_tokens: Tensor,
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Maybe,
    padded_mode: bool,
    restore_shape: Shape,
) -> tuple[Tensor, Maybe]:
    dtokens, dprobs = vjp(
        lambda rows, weights: _unpermute(rows, sorted_indices, weights, padded_mode, restore_shape),
        (permuted_tokens, probs),
        grad_unpermuted_tokens,
    )
    assert dtokens is not None
    return dtokens, dprobs


@reference("npu_moe_token_unpermute_grad_v2", source="op-plugin derivatives.yaml")
def npu_moe_token_unpermute_grad_v2(
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: Maybe,
    padded_mode: bool,
    restore_shape: Shape,
    permuted_tokens: Maybe,
) -> tuple[Tensor, Maybe]:
    rows = permuted_tokens
    if rows is None or not rows.numel():
        size = permuted_tokens_size_0, grad_unpermuted_tokens.shape[-1]
        rows = torch.zeros(size, dtype=permuted_tokens_dtype)
    return npu_moe_token_unpermute_grad(
        rows, grad_unpermuted_tokens, sorted_indices, probs, padded_mode, restore_shape
    )


# ── by routing map [tokens, experts] ────────────────────────────────────────────────────────────


def _sources(routing_map: Tensor, capacity: int, padded: bool) -> tuple[Tensor, Tensor]:
    """Token and expert of every permuted row, expert by expert."""
    chosen = routing_map.bool().T
    experts, tokens = chosen.shape
    if padded:
        order = chosen.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
        token = order[:, :capacity].reshape(-1)
        return token, torch.arange(experts).repeat_interleave(min(capacity, tokens))
    expert, token = chosen.nonzero(as_tuple=True)
    return token, expert


@reference(
    "npu_moe_token_permute_with_routing_map",
    source=TESTS.format("test_npu_moe_token_permute_with_routing_map"),
)
def npu_moe_token_permute_with_routing_map(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Maybe,
    num_out_tokens: int | None,
    drop_and_pad: bool,
) -> tuple[Tensor, Maybe, Tensor]:
    """Permuted tokens, their probabilities, and the index: of tokens (padded), else inverse."""
    count = len(tokens) if num_out_tokens is None else num_out_tokens
    token, expert = _sources(routing_map, count // routing_map.shape[1], drop_and_pad)
    chosen = None if probs is None else probs[token, expert]
    index = token if drop_and_pad else token.sort(stable=True).indices
    return tokens[token], chosen, index.to(torch.int32)


@reference("npu_moe_token_permute_with_routing_map_grad", source="op-plugin derivatives.yaml")
def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: Tensor,
    probs_grad: Maybe,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Maybe]:
    capacity = len(permuted_token_out_grad) // max(1, experts_num)
    token, expert = _sources(routing_map, capacity, drop_and_pad)
    grad = working(permuted_token_out_grad)
    found = grad.new_zeros(tokens_num, grad.shape[-1]).index_add(0, token, grad)
    dprobs = None
    if probs_grad is not None:
        dprobs = probs_grad.new_zeros(tokens_num, experts_num)
        dprobs[token, expert] = probs_grad
    return found.to(permuted_token_out_grad.dtype), dprobs


def _restore(
    rows: Tensor,
    probs: Maybe,
    index: Tensor,
    routing_map: Maybe,
    shape: list[int],
    padded: bool,
) -> Tensor:
    if padded:
        weights = None
        if probs is not None:
            experts = torch.arange(probs.shape[1])
            weights = probs[index, experts.repeat_interleave(len(index) // len(experts))]
        return _scatter(rows, index, weights, shape)
    copies = rows[index].reshape(shape[0], -1, rows.shape[-1])
    if probs is not None:
        assert routing_map is not None
        weights = probs[routing_map.bool()].reshape(shape[0], -1)
        copies = copies * weights.unsqueeze(-1)
    return copies.sum(1)


@reference(
    "_npu_moe_token_unpermute_with_routing_map",
    source=TESTS.format("test_npu_moe_token_unpermute_with_routing_map"),
)
def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    probs: Maybe,
    routing_map: Maybe,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor, Tensor, Maybe]:
    """Tokens; then for backward: the order and the tokens of the rows, and their probabilities."""
    index = sorted_indices.reshape(-1).long()
    found = _restore(
        working(permuted_tokens),
        None if probs is None else working(probs),
        index,
        routing_map,
        restore_shape,
        drop_and_pad,
    ).to(permuted_tokens.dtype)
    token, order = index.sort(stable=True)
    out = (order if drop_and_pad else index).to(sorted_indices.dtype)
    kept = None
    if probs is not None:
        experts = torch.arange(probs.shape[1])
        if drop_and_pad:
            kept = probs[index, experts.repeat_interleave(len(index) // len(experts))]
        elif routing_map is not None:
            kept = probs[routing_map.bool()]
    return found, out, (token if drop_and_pad else index).to(sorted_indices.dtype), kept


@reference(
    "npu_moe_token_unpermute_with_routing_map",
    source=TESTS.format("test_npu_moe_token_unpermute_with_routing_map"),
)
def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    probs: Maybe,
    routing_map: Maybe,
    drop_and_pad: bool,
) -> Tensor:
    return _npu_moe_token_unpermute_with_routing_map(
        permuted_tokens,
        sorted_indices,
        restore_shape,
        probs=probs,
        routing_map=routing_map,
        drop_and_pad=drop_and_pad,
    )[0]


@reference("npu_moe_token_unpermute_with_routing_map_grad", source="op-plugin derivatives.yaml")
def npu_moe_token_unpermute_with_routing_map_grad(
    given: ReferenceArguments,
) -> tuple[Tensor, Maybe]:
    """Gradients of the permuted tokens and of the probabilities."""
    index = given.out_index.long()
    if given.drop_and_pad:
        source = torch.empty_like(index)
        source[index] = given.permuted_token_id.long()
        index = source
    size = len(given.out_index), given.unpermuted_tokens_grad.shape[-1]
    rows = torch.zeros(size) if given.permuted_tokens is None else given.permuted_tokens
    dtokens, dprobs = vjp(
        lambda a, w: _restore(
            a, w, index, given.routing_map, given.restore_shape, given.drop_and_pad
        ),
        (rows, given.probs),
        given.unpermuted_tokens_grad,
    )
    assert dtokens is not None
    return dtokens.to(given.unpermuted_tokens_grad.dtype), dprobs

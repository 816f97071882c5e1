"""Training of the lightning indexer: its gradient, and the divergence from the attention it serves.

The indexer's score of a key is `sum over heads of weight * relu(query . key)`. One sequence at a
time, in working precision; positions that are not seen have no part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import gradients_of, working
from joymigrate.run.rehearse.refs.indexer import CAUSAL, rows

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{0}.md, test_{0}.py"
CLIPPED = 1e-8  # below it a share counts as this in the logarithm
Maybe = Tensor | None
Lengths = Sequence[int] | Tensor | None


def numbers(lengths: Lengths) -> list[int] | None:
    return None if lengths is None else [int(one) for one in lengths]


def scores(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    """[S1, N, D], [S2, 1, D] and [S1, N] → [S1, S2]."""
    if key.shape[1] != 1:
        raise Unsimulated("npu_lightning_indexer_grad", f"{key.shape[1]} heads of keys")
    each = torch.einsum("snd,td->snt", query, key[:, 0]).relu()
    return torch.einsum("snt,sn->st", each, weights)


def hide_behind(rows_count: int, keys: int, mode: int | None) -> Tensor:
    """[S1, S2]: behind the diagonal that ends at the last query and the last key."""
    last = torch.arange(rows_count) + keys - rows_count
    hidden = torch.arange(keys)[None, :] > last[:, None]
    return hidden if mode == CAUSAL else torch.zeros_like(hidden)


def each_sequence(
    tensors: Sequence[Tensor], layout: str | None, lengths: tuple[Lengths, ...]
) -> list[tuple[Tensor, ...]]:
    """The tensors sequence by sequence; `lengths` belongs to them one by one."""
    parts = [
        rows(one, layout or "BSND", numbers(length) if layout == "TND" else None)
        for one, length in zip(tensors, lengths, strict=True)
    ]
    return list(zip(*parts, strict=True))


def together(parts: list[Tensor], layout: str | None, axis: int = 0) -> Tensor:
    return torch.cat(parts, axis) if layout == "TND" else torch.stack(parts)


@reference(
    "npu_lightning_indexer_grad",
    source="ops-transformer aclnnLightningIndexerGrad.md, test_npu_lightning_indexer_grad.py",
)
def npu_lightning_indexer_grad(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and weights from those of the chosen scores [.., (1,) count]."""
    own, theirs = given.actual_seq_lengths_query, given.actual_seq_lengths_key
    flat = [
        one.squeeze(-2) if one.ndim == given.query.ndim else one
        for one in (given.dy, given.sparse_indices)
    ]
    tensors = given.query, given.key, given.weights, *flat
    found = []
    for q, k, w, grad, at in each_sequence(tensors, given.layout, (own, theirs, own, own, own)):
        chosen = at.long()
        used = (chosen >= 0) & (chosen < len(k))

        def forward(
            a: Tensor, b: Tensor, c: Tensor, at: Tensor = chosen, used: Tensor = used
        ) -> Tensor:
            return scores(a, b, c).gather(1, at.clamp(0, len(b) - 1)) * used

        found.append(gradients_of(forward, [q, k, w], working(grad)))
    dq, dk, dw = (together([one[n] for one in found], given.layout) for n in range(3))
    return dq, dk, dw


def target(
    query: Tensor, key: Tensor, top: Tensor, total: Tensor, scale: float, hidden: Tensor
) -> Tensor:
    """The attention's shares, averaged over heads, [S1, S2]; maxima and sums [N2, S1, G]."""
    heads = key.shape[1]
    grouped = working(query).unflatten(1, (heads, -1))  # type: ignore[no-untyped-call]
    score = torch.einsum("sngd,tnd->ngst", grouped, working(key)) * scale
    score = score.masked_fill(hidden, float("-inf"))
    share = (score - working(top).transpose(1, 2).unsqueeze(-1)).exp()
    share = share / working(total).transpose(1, 2).unsqueeze(-1)
    return share.sum((0, 1)) / query.shape[1]


def divergence(shares: Tensor, guess: Tensor) -> Tensor:
    """Σ p·(log p - log q), both clipped from below in the logarithm."""
    return (shares * (shares.clamp(min=CLIPPED).log() - guess.clamp(min=CLIPPED).log())).sum()


def gradients_of_scores(
    q: Tensor, k: Tensor, w: Tensor, shares: Tensor, guess: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the divergence: that of the scores is `guess - shares`."""
    dq, dk, dw = gradients_of(scores, [q, k, w], guess - shares)
    return dq, dk, dw


@reference(
    "npu_dense_lightning_indexer_softmax_lse",
    source=DOCS.format("npu_dense_lightning_indexer_softmax_lse"),
)
def npu_dense_lightning_indexer_softmax_lse(
    query_index: Tensor,
    key_index: Tensor,
    weights: Tensor,
    actual_seq_qlen: Lengths,
    actual_seq_klen: Lengths,
    layout: str | None,
    sparse_mode: int | None,
) -> tuple[Tensor, Tensor]:
    """Maxima and sums of the scores' softmax, [B, 1, S1] or [1, T1]."""
    lengths = actual_seq_qlen, actual_seq_klen, actual_seq_qlen
    tops, totals = [], []
    for q, k, w in each_sequence((query_index, key_index, weights), layout, lengths):
        score = scores(working(q), working(k), working(w))
        score = score.masked_fill(hide_behind(len(q), len(k), sparse_mode), float("-inf"))
        top = score.amax(-1)
        tops.append(top.unsqueeze(0))
        totals.append((score - top.unsqueeze(-1)).exp().sum(-1).unsqueeze(0))
    return together(tops, layout, 1).float(), together(totals, layout, 1).float()


@reference(
    "npu_dense_lightning_indexer_grad_kl_loss",
    source=DOCS.format("npu_dense_lightning_indexer_grad_kl_loss"),
)
def npu_dense_lightning_indexer_grad_kl_loss(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the indexer's query, key and weights, and the divergence over all keys [1].

    Maxima and sums of the attention are [(B,) N2, S1, G], those of the indexer [(B,) 1, S1].
    """
    whole_q = (
        given.query if given.query_rope is None else torch.cat((given.query, given.query_rope), -1)
    )
    whole_k = given.key if given.key_rope is None else torch.cat((given.key, given.key_rope), -1)
    own, theirs = given.actual_seq_qlen, given.actual_seq_klen
    by_row = [
        statistic.movedim(-2 if n < 2 else -1, -3 if n < 2 else -2)
        for n, statistic in enumerate(
            (given.softmax_max, given.softmax_sum, given.softmax_max_index, given.softmax_sum_index)
        )
    ]  # the axis of the queries to the front, as in the other tensors
    tensors = whole_q, whole_k, given.query_index, given.key_index, given.weights, *by_row
    lengths = own, theirs, own, theirs, own, own, own, own, own
    found, loss = [], torch.zeros(())
    for q, k, qi, ki, w, top, total, top_i, total_i in each_sequence(
        tensors, given.layout, lengths
    ):
        hidden = hide_behind(len(q), len(k), given.sparse_mode)
        front = top.transpose(0, 1), total.transpose(0, 1)
        shares = target(q, k, *front, given.scale_value, hidden)
        score = scores(working(qi), working(ki), working(w))
        guess = (score - top_i).exp() / total_i
        guess = guess.masked_fill(hidden, 0.0)
        loss = loss + divergence(shares, guess)
        found.append(gradients_of_scores(qi, ki, w, shares, guess))
    dq, dk, dw = (together([one[n] for one in found], given.layout) for n in range(3))
    return dq, dk, dw, loss.float().reshape(1)


@reference(
    "npu_sparse_lightning_indexer_grad_kl_loss",
    source="op-plugin docs/zh/custom_APIs/torch_npu/"
    "torch_npu-npu_sparse_lightning_indexer_grad_kl_loss.md",
    without="sinks",
)
def npu_sparse_lightning_indexer_grad_kl_loss(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same over the chosen keys alone (-1: none); shares and scores are softmaxed over them."""
    whole_q = (
        given.query if given.query_rope is None else torch.cat((given.query, given.query_rope), -1)
    )
    whole_k = given.key if given.key_rope is None else torch.cat((given.key, given.key_rope), -1)
    own, theirs = given.actual_seq_qlen, given.actual_seq_klen
    by_row = [statistic.movedim(-2, -3) for statistic in (given.softmax_max, given.softmax_sum)]
    indices = (
        given.sparse_indices.squeeze(-2)
        if given.sparse_indices.ndim == given.query.ndim
        else given.sparse_indices
    )
    tensors = whole_q, whole_k, given.query_index, given.key_index, given.weights, indices, *by_row
    lengths = own, theirs, own, theirs, own, own, own, own
    found, loss = [], torch.zeros(())
    for q, k, qi, ki, w, at, top, total in each_sequence(tensors, given.layout, lengths):
        place = torch.where((at >= 0) & (at < len(k)), at, len(k)).long()
        seen = torch.zeros(len(q), len(k) + 1, dtype=torch.bool).scatter(1, place, True)
        hidden = hide_behind(len(q), len(k), given.sparse_mode) | ~seen[:, :-1]
        front = top.transpose(0, 1), total.transpose(0, 1)
        shares = target(q, k, *front, given.scale_value, hidden)
        score = scores(working(qi), working(ki), working(w)).masked_fill(hidden, float("-inf"))
        guess = score.softmax(-1).nan_to_num(0.0)  # a query without a key
        loss = loss + divergence(shares, guess)
        found.append(gradients_of_scores(qi, ki, w, shares, guess))
    dq, dk, dw = (together([one[n] for one in found], given.layout) for n in range(3))
    return dq, dk, dw, loss.float().reshape(1)

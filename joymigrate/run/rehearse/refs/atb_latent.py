"""Latent attention, prefixes and masks of the Ascend Transformer Boost library (`atb::`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.atb import SOURCE, _attend_paged, _heads, _pack, _splitfuse
from joymigrate.run.rehearse.refs.attention_core import UNLIMITED, attend, outside_band
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.kv_cache import read_sequence

Maybe = Tensor | None
NO_MASK, MASK, ALIBI, CAUSAL = 0, 1, 2, 3  # mask_type of the operators with `int mask_type`
DEQUANTISED = 1  # quant_type: keys and values are int8 with a scale per channel


def as_lengths(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([int(one) for one in lengths], dtype=torch.int32)


@reference("atb::_npu_flash_attention_v2.out", source=SOURCE.format("SelfAttentionAtbV2.cpp"))
def _npu_flash_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Sequence[int],
    mask: Maybe,
    mask_type: int,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> Tensor:
    """mask_type 1 hides what is not zero; 2 adds the mask [(batch,) heads, S, S] to the scores."""
    heads = num_heads, num_kv_heads or num_heads
    if mask_type == MASK:
        return _pack(query, key, value, seq_len, scale_value, heads, out, mask)
    if mask_type != ALIBI or mask is None:
        raise Unsimulated("_npu_flash_attention_v2", f"mask_type {mask_type}")
    q, k, v = _heads(query, heads[0]), _heads(key, heads[1]), _heads(value, heads[1])
    target, at = out.view(len(q), heads[0], -1), 0
    for number, length in enumerate(int(one) for one in seq_len):
        own = mask[number if len(mask) > 1 else 0] if mask.ndim == 4 else mask
        span = slice(at, at + length)
        bias = own[..., :length, :length].unsqueeze(0)
        target[span] = attend_with_bias(q[span], k[span], v[span], scale_value, bias).to(out.dtype)
        at += length
    return out


def attend_with_bias(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Maybe
) -> Tensor:
    """Attention of one sequence [S, N, D] with a bias [1, N, S, S'] on the scaled scores."""
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
    return attend(q, k, v, scale, bias=bias, bias_first=False).output[0].transpose(0, 1)


@reference("atb::_npu_paged_attention_v2.out", source=SOURCE.format("PagedAttentionAtbV2.cpp"))
def _npu_paged_attention_v2(
    query: Tensor,
    key_cache: Tensor,
    block_table: Tensor,
    context_lens: Sequence[int],
    value_cache: Maybe,
    mask: Maybe,
    num_heads: int,
    scale_value: float,
    mask_type: int,
    out: Tensor,
) -> Tensor:
    """One query token per sequence; mask_type 2 adds a mask [batch, heads, 1, S]."""
    if value_cache is None:
        raise Unsimulated("_npu_paged_attention_v2", "keys without values")
    if mask_type == NO_MASK:
        caches = key_cache, value_cache
        lengths = as_lengths(context_lens)
        _attend_paged(query, *caches, scale_value, block_table, lengths, out, num_heads)
        return out
    if mask_type != ALIBI or mask is None:
        raise Unsimulated("_npu_paged_attention_v2", f"mask_type {mask_type}")
    rows, target = _heads(query, num_heads), out.view(len(query), num_heads, -1)
    for number, length in enumerate(int(one) for one in context_lens):
        key = read_sequence(key_cache, block_table[number], 0, length)
        value = read_sequence(value_cache, block_table[number], 0, length)
        bias = mask[number : number + 1, ..., :length].reshape(1, num_heads, 1, length)
        found = attend_with_bias(rows[number : number + 1], key, value, scale_value, bias)
        target[number] = found[0].to(out.dtype)
    return out


@reference("atb::_npu_paged_attention_quant", source=SOURCE.format("PagedAttentionQuantAtb.cpp"))
def _npu_paged_attention_quant(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    quant_type: int,
    k_descale: Tensor,
    v_descale: Tensor,
    out: Tensor,
) -> None:
    """int8 caches [blocks, size, N, D] times a scale per head and channel [N * D]."""
    if quant_type != DEQUANTISED:
        raise Unsimulated("_npu_paged_attention_quant", f"quant_type {quant_type}")
    caches = [
        cache.float() * working(scale).reshape(cache.shape[2:])
        for cache, scale in ((key_cache, k_descale), (value_cache, v_descale))
    ]
    wide = torch.empty_like(out, dtype=torch.float32)
    _attend_paged(
        query, caches[0], caches[1], scale_value, block_table, context_lens, wide, num_heads
    )
    out.copy_(wide)


@reference(
    "atb::_npu_flash_attention_prefix_v2.out", source=SOURCE.format("SelfAttentionPrefixAtbV2.cpp")
)
def _npu_flash_attention_prefix_v2(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_len: Sequence[int],
    context_lens: Sequence[int],
    mask_type: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> Tensor:
    """Queries behind a prefix in a paged cache; the mask is a compressed causal constant."""
    if mask_type != CAUSAL:
        raise Unsimulated("_npu_flash_attention_prefix_v2", f"mask_type {mask_type}")
    lengths = as_lengths(context_lens), as_lengths(seq_len)
    caches = key_cache, value_cache
    _splitfuse(query, caches, block_table, *lengths, num_heads, scale_value, out)
    return out


@reference(
    "atb::npu_self_attention_prefix_encoder",
    source=SOURCE.format("SelfAttentionPrefixEncoderAtb.cpp"),
)
def npu_self_attention_prefix_encoder(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_tables: Tensor,
    seqlen: Sequence[int],
    kv_seqlen: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    mask_type: str | None,
) -> Tensor:
    """The same, by the names of its masks; key and value are paged."""
    if mask_type not in (None, "mask_type_causal_mask", "mask_type_norm_compress"):
        raise Unsimulated("npu_self_attention_prefix_encoder", str(mask_type))
    out, lengths = torch.empty_like(query), (as_lengths(kv_seqlen), as_lengths(seqlen))
    _splitfuse(query, (key, value), block_tables, *lengths, q_headnum, qk_scale, out)
    return out


def latent(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Output [T, N, 512] and log-sum-exp [T, N]; the latent [.., 512] is key and value at once.

    Caches [blocks, size, 1, D]. Several tokens of a sequence need a mask [T, S], which is added.
    """
    operator = "npu_multi_head_latent_attention"
    mask, context_lens = given.mask, given.context_lens
    quantised = given.qk_descale is not None or given.pv_descale is not None
    if given.cache_mode not in (None, "krope_ctkv") or quantised:
        raise Unsimulated(operator, f"cache mode {given.cache_mode}, or quantised")
    if mask is not None and (given.mask_type == "mask_type_free" or mask.ndim != 2):
        raise Unsimulated(operator, f"{given.mask_type} of {mask.ndim} dimensions")
    counts = [int(one) for one in given.qseqlen] if given.qseqlen else [1] * len(context_lens)
    query = torch.cat((working(given.q_nope), working(given.q_rope)), -1)
    out, sums, at = [], [], 0
    for number, (count, length) in enumerate(zip(counts, context_lens, strict=True)):
        held = [
            read_sequence(cache, given.block_tables[number], 0, int(length))
            for cache in (given.ctkv, given.k_rope)
        ]
        keys = torch.cat([working(one) for one in held], -1)
        bias = None if mask is None else mask[at : at + count, : int(length)][None, None]
        parts = query[at : at + count], keys, held[0]
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in parts)
        found = attend(q, k, v, given.qk_scale, bias=bias, bias_first=False)
        out.append(found.output[0].transpose(0, 1))
        score = (q @ k.transpose(-1, -2)) * given.qk_scale + (0.0 if bias is None else bias)
        sums.append(score.logsumexp(-1)[0].T)
        at += count
    return torch.cat(out).to(given.q_rope.dtype), torch.cat(sums)


@reference(
    "atb::npu_multi_head_latent_attention", source=SOURCE.format("MultiHeadLatentAttentionAtb.cpp")
)
def npu_multi_head_latent_attention(given: ReferenceArguments) -> Tensor:
    return latent(given)[0]


@reference(
    "atb::npu_multi_head_latent_attention.lse",
    source=SOURCE.format("MultiHeadLatentAttentionAtb.cpp"),
)
def npu_multi_head_latent_attention_lse(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Also the log-sum-exp [T, N, 1] in the query's dtype."""
    found, sums = latent(given)
    return found, sums.unsqueeze(-1).to(given.q_nope.dtype)


def ring(
    query: tuple[Tensor, Tensor],
    key: tuple[Tensor, Tensor],
    value: Tensor,
    lengths: Tensor,
    scale: float,
    before: tuple[Maybe, Maybe],
    triangle: bool,
) -> tuple[Tensor, Tensor]:
    """Output [T, N, D] and log-sum-exp [N, T], merged with an earlier pair where there is one."""
    q_all = torch.cat([working(one) for one in query], -1)
    k_all = torch.cat([working(one) for one in key], -1)
    pairs = lengths.reshape(-1, lengths.shape[-1])
    own, theirs = pairs[0].tolist(), pairs[-1].tolist()
    out, sums, at, of = [], [], 0, 0
    for count, length in zip(own, theirs, strict=True):
        if triangle and count != length:
            raise Unsimulated("npu_ring_mla", "a triangle over other lengths than its own")
        parts = q_all[at : at + count], k_all[of : of + length], value[of : of + length]
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in parts)
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        hide = outside_band(count, length, UNLIMITED, 0, bottom_right=True) if triangle else None
        score = (q @ k.transpose(-1, -2)) * scale
        score = score if hide is None else score.masked_fill(hide, float("-inf"))
        sums.append(score.logsumexp(-1)[0])
        out.append((score.softmax(-1) @ working(v))[0].transpose(0, 1))
        at, of = at + count, of + length
    found, total = torch.cat(out), torch.cat(sums, -1)
    if before[0] is None or before[1] is None:
        return found, total
    earlier = working(before[1])
    both = torch.logaddexp(earlier, total)
    shares = [(one - both).exp().T.unsqueeze(-1) for one in (earlier, total)]
    return working(before[0]) * shares[0] + found * shares[1], both


@reference("atb::npu_ring_mla", source=SOURCE.format("RingMlaAtb.cpp"))
def npu_ring_mla(
    q_nope: Tensor,
    q_rope: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    value: Tensor,
    seqlen: Tensor,
    pre_out: Maybe,
    prev_lse: Maybe,
    qk_scale: float,
    mask_type: str | None,
    calc_type: str | None,
) -> tuple[Tensor, Tensor]:
    """One part of a ring: `calc_type_default` goes on from pre_out and prev_lse."""
    before = (pre_out, prev_lse) if calc_type == "calc_type_default" else (None, None)
    parts = (q_nope, q_rope), (k_nope, k_rope), value, seqlen, qk_scale, before
    found, total = ring(*parts, mask_type == "mask_type_triu")
    return found.to(q_nope.dtype), total.float()


def route(
    x: Tensor,
    add_num: Tensor,
    mapping: tuple[Maybe, Maybe],
    group_num: int,
    group_topk: int,
    n: int,
    k: int,
    is_norm: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Sigmoid shares of the k experts that score best with add_num, among the best groups."""
    share = working(x).sigmoid()
    groups = (share + working(add_num)).unflatten(-1, (group_num, -1))  # type: ignore[no-untyped-call]
    best = groups.topk(n, -1).values.sum(-1).sort(dim=-1, descending=True, stable=True).indices
    lost = best[:, group_topk:].unsqueeze(-1).expand(-1, -1, groups.shape[-1])
    order = groups.scatter(1, lost, 0.0).flatten(1).sort(dim=-1, descending=True, stable=True)
    chosen = order.indices[:, :k]
    y = share.gather(-1, chosen)
    if is_norm:
        y = y / y.sum(-1, keepdim=True) * scale
    number, table = mapping
    if number is not None and table is not None:
        token = torch.arange(len(chosen)).unsqueeze(-1)
        chosen = table.long()[chosen, token % number.long()[chosen].clamp(min=1)]
    return y.float(), chosen.to(torch.int32)


@reference(
    "atb::npu_fused_add_topk_div",
    source=SOURCE.format("FusedAddTopkDivAtb.cpp") + ", test_fused_add_topk_div.py",
)
def npu_fused_add_topk_div(
    x: Tensor,
    add_num: Tensor,
    mapping_num: Maybe,
    mapping_table: Maybe,
    activation_type: str | None,
    group_num: int,
    group_topk: int,
    n: int,
    k: int,
    is_norm: bool,
    scale: float,
    enable_expert_mapping: bool,
) -> tuple[Tensor, Tensor]:
    """With a mapping, experts become the physical ones that the token's number chooses among."""
    if activation_type not in (None, "activation_sigmoid"):
        raise Unsimulated("npu_fused_add_topk_div", str(activation_type))
    mapping = (mapping_num, mapping_table) if enable_expert_mapping else (None, None)
    return route(x, add_num, mapping, group_num, group_topk, n, k, is_norm, scale)

"""What latent attention (MLA) does before it attends: projections, norms, rope, caches.

Four ways of a token x: its query without position (cq = norm(x·Wdq), cq·Wuq·Wuk), the query's rope
part (rope of cq·Wqr), the latent key (norm of x·Wdkv) and the key's rope part; the last two go
into caches. Weights of int8 or float8 come with scales per channel, their inputs per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.kv_cache import write_slots
from joymigrate.run.rehearse.refs.norms import rms_of
from joymigrate.run.rehearse.refs.quantise import dynamic
from joymigrate.run.rehearse.refs.rotary import deinterleave, rope

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None
NONE, TENSOR, CHANNEL, TILE = range(4)  # kv_cache_quant_mode
QUERY, WHOLE, MX, HIF8 = 1, 2, 3, 5  # weight_quant_mode: wuq·wqr alone, or all three weights


@dataclass(frozen=True, slots=True)
class PrologWeights:
    """The projections and what belongs to them; scales are None for weights in bfloat16."""

    dq: Tensor  # [He, Hcq]
    uq_qr: Tensor  # [Hcq, N·(D + Dr)]
    uk: Tensor  # [N, D, Hckv]
    dkv_kr: Tensor  # [He, Hckv + Dr]
    gamma_q: Tensor
    gamma_kv: Tensor
    dq_scale: Maybe = None
    uq_qr_scale: Maybe = None
    dkv_kr_scale: Maybe = None
    smooth: Maybe = None

    @classmethod
    def of(cls, given: ReferenceArguments) -> PrologWeights:
        return cls(
            given.weight_dq,
            given.weight_uq_qr,
            given.weight_uk,
            given.weight_dkv_kr,
            given.rmsnorm_gamma_cq,
            given.rmsnorm_gamma_ckv,
            given.dequant_scale_w_dq,
            given.dequant_scale_w_uq_qr,
            given.dequant_scale_w_dkv_kr,
            given.smooth_scales_cq,
        )


@dataclass(frozen=True, slots=True)
class How:
    """The scalars of a call."""

    epsilon_q: float
    epsilon_kv: float
    alpha_q: float = 1.0
    alpha_kv: float = 1.0
    cache: int = NONE
    tile: int = 128
    clip: Maybe = None


@dataclass(frozen=True, slots=True)
class PrologResult:
    """One call's results, tokens in a row [T, …]."""

    query: Tensor
    rope: Tensor
    latent: Tensor
    key_rope: Tensor
    query_scale: Maybe
    norm: Tensor
    norm_scale: Maybe


def product(x: Tensor, weight: Tensor, token: Maybe, channel: Maybe) -> Tensor:
    """x @ weight, dequantised where there are scales."""
    if channel is None:
        return working(x) @ working(weight)
    found = x.double() @ weight.double() * channel.double()
    return (found if token is None else found * token.double().reshape(-1, 1)).float()


def prepare(
    x: Tensor,
    token_scale: Maybe,
    weights: PrologWeights,
    cos: Tensor,
    sin: Tensor,
    scale_kv: Maybe,
    how: How,
) -> PrologResult:
    """All four ways, before the caches; x [T, He], cos and sin [T, Dr]."""
    cos, sin = working(cos), working(sin)
    heads, inner, latent_size = weights.uk.shape
    down = product(x, weights.dq, token_scale, weights.dq_scale)
    norm = rms_of(down, weights.gamma_q, how.epsilon_q)[0] * how.alpha_q
    norm_scale: Maybe = None
    stored: Tensor = norm
    if weights.uq_qr_scale is not None:
        smoothed = norm if weights.smooth is None else norm * weights.smooth.float().reshape(-1)
        stored, norm_scale = dynamic(smoothed, weights.uq_qr.dtype, "npu_mla_prolog")
    up = product(stored, weights.uq_qr, norm_scale, weights.uq_qr_scale)
    up = up.unflatten(1, (heads, -1))  # type: ignore[no-untyped-call]
    plain, turned = up[..., :inner], up[..., inner:]
    query = torch.einsum("tnd,ndh->tnh", plain, working(weights.uk))
    query_rope = rope(deinterleave(turned), cos[:, None], sin[:, None], "half")
    query_scale: Maybe = None
    if how.cache == TENSOR:
        query, flat = dynamic(query, x.dtype, "npu_mla_prolog")
        query_scale = flat.unsqueeze(-1)
        assert scale_kv is not None
        query_rope = query_rope * scale_kv.reshape(-1)[:1].float() / query_scale
    kv = product(x, weights.dkv_kr, token_scale, weights.dkv_kr_scale)
    latent = rms_of(kv[:, :latent_size], weights.gamma_kv, how.epsilon_kv)[0] * how.alpha_kv
    key_rope = rope(deinterleave(kv[:, latent_size:]), cos, sin, "half")
    return PrologResult(query, query_rope, latent, key_rope, query_scale, stored, norm_scale)


def scale_values(values: Tensor, scale: Maybe, like: torch.dtype) -> Tensor:
    """Values as a cache holds them."""
    if scale is None:
        return values.to(like)
    return saturate(values * scale.reshape(-1).float(), like)


def tiles(
    latent: Tensor, key_rope: Tensor, cache: Tensor, kr_dtype: torch.dtype, how: How
) -> Tensor:
    """A cache row of bytes: quantised values, the rope part, a float32 scale for each tile."""
    blocks = latent.float().unflatten(-1, (-1, how.tile))  # type: ignore[no-untyped-call]
    if how.clip is not None:
        top = blocks.abs().amax(-1, keepdim=True) * how.clip.float()
        blocks = torch.minimum(torch.maximum(blocks, -top), top)
    values, scale = dynamic(blocks, cache.dtype, "npu_mla_prolog")
    parts = (values.flatten(-2), key_rope.to(kr_dtype), scale)
    return torch.cat([one.contiguous().view(torch.uint8) for one in parts], -1)


def write(
    rows: Tensor, cache: Tensor, index: Maybe, mode: str, ends: Maybe, lengths: list[int]
) -> None:
    """Rows [T, …] into a cache, in place. `lengths`: tokens of each sequence."""
    lanes = cache.view(torch.uint8) if rows.dtype is torch.uint8 else cache
    if mode in ("BSND", "TND"):
        lanes.copy_(rows.reshape(lanes.shape))
        return
    assert index is not None
    if mode not in ("PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ"):
        raise Unsimulated("npu_mla_prolog", f"cache_mode {mode}")
    slots = index.reshape(-1)
    if "BLK" in mode:
        size = cache.shape[1]
        if ends is not None:
            flat = [int(end) for end in ends]
            lengths = [stop - start for start, stop in zip([0, *flat], flat, strict=False)]
        blocks, found, at = slots.tolist(), [], 0
        for length in lengths:
            for step in range(length):
                found.append(blocks[at + step // size] * size + step % size)
            at += -(-length // size)
        slots = torch.tensor(found, dtype=torch.int64)
    # PA_NZ in the logical form of the ND cache is stored as ND here: format has no bytes.
    write_slots(rows, lanes, slots, fractal=False)


def prolog(given: ReferenceArguments, how: How) -> PrologResult:
    """Everything, the caches written; results have the leading axes of token_x."""
    x, cos, scale_kv = given.token_x, given.rope_cos, given.quant_scale_ckv
    index, mode, ends = given.cache_index, given.cache_mode, given.get("actual_seq_len")
    lead = x.shape[:-1]
    flat = x.flatten(0, -2)
    made = prepare(
        flat,
        given.dequant_scale_x,
        PrologWeights.of(given),
        cos.reshape(len(flat), -1),
        given.rope_sin.reshape(len(flat), -1),
        scale_kv,
        how,
    )
    lengths = [x.shape[1]] * x.shape[0] if x.dim() == 3 else [len(flat)]
    kv_cache, kr_cache = given.kv_cache, given.kr_cache
    if how.cache == TILE:
        rows = tiles(made.latent, made.key_rope, kv_cache, cos.dtype, how)
        write(rows, kv_cache, index, mode, ends, lengths)
    else:
        kv_scale = (
            scale_kv.reshape(-1)[:1] if how.cache == TENSOR and scale_kv is not None else scale_kv
        )
        latent = scale_values(made.latent, kv_scale, kv_cache.dtype)
        write(latent, kv_cache, index, mode, ends, lengths)
        key_rope = scale_values(made.key_rope, given.quant_scale_ckr, kr_cache.dtype)
        write(key_rope, kr_cache, index, mode, ends, lengths)
    plain = how.cache == TENSOR
    return PrologResult(
        made.query.to(made.query.dtype if plain else cos.dtype).reshape(
            *lead, *made.query.shape[1:]
        ),
        made.rope.to(cos.dtype).reshape(*lead, *made.rope.shape[1:]),
        made.latent,
        made.key_rope,
        made.query_scale,
        made.norm.reshape(*lead, -1),
        made.norm_scale,
    )


def cache_mode_of(x: Tensor, kv_cache: Tensor) -> int:
    """What versions 1 and 2 do with the cache, which they tell from its dtype and the token's."""
    if kv_cache.dtype.is_floating_point:
        return NONE
    return CHANNEL if x.dtype.is_floating_point else TENSOR


@reference("npu_mla_prolog_v2", source=DOCS.format("npu_mla_prolog_v2"))
def npu_mla_prolog_v2(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query, its rope part, both caches (written in place), and the query's scales [T, N, 1]."""
    cache = cache_mode_of(given.token_x, given.kv_cache)
    made = prolog(given, How(given.rmsnorm_epsilon_cq, given.rmsnorm_epsilon_ckv, cache=cache))
    scale = torch.zeros(1) if made.query_scale is None else made.query_scale.float()
    return made.query, made.rope, given.kv_cache, given.kr_cache, scale


@reference("npu_mla_prolog", source=DOCS.format("npu_mla_prolog"))
def npu_mla_prolog(**given: Any) -> tuple[Tensor, ...]:
    """The first form: without scales of the query."""
    return npu_mla_prolog_v2(**given)[:4]


@reference("npu_mla_prolog_v3", source=DOCS.format("npu_mla_prolog_v3"))
def npu_mla_prolog_v3(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query, its rope part, the query's scales, the normed query and its scales (empty where not
    asked for, or not quantised). Both caches are written in place."""
    if given.weight_quant_mode in (MX, HIF8):
        raise Unsimulated("npu_mla_prolog_v3", f"weight_quant_mode {given.weight_quant_mode}")
    how = How(
        given.rmsnorm_epsilon_cq,
        given.rmsnorm_epsilon_ckv,
        given.qc_qr_scale,
        given.kc_scale,
        given.kv_cache_quant_mode,
        given.tile_size,
        given.k_nope_clip_alpha,
    )
    made = prolog(given, how)
    empty = torch.empty(0)
    scale = empty if made.query_scale is None else made.query_scale.float()
    if not given.query_norm_flag:
        return made.query, made.rope, scale, torch.empty(0, dtype=given.weight_uq_qr.dtype), empty
    norm_scale = empty if made.norm_scale is None else made.norm_scale.float().reshape(-1, 1)
    return made.query, made.rope, scale, made.norm.to(given.weight_uq_qr.dtype), norm_scale

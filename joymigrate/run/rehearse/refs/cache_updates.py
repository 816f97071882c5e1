"""Projections normed, rotated, quantised and stored into caches of keys and values in one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.kv_cache import npu_kv_rmsnorm_rope_cache, write_slots
from joymigrate.run.rehearse.refs.norms import rms_of
from joymigrate.run.rehearse.refs.rotary import rope

CACHE = "ops-transformer aclnnDequantRopeQuantKvcache.md, op-plugin test_npu_rope_quant_kvcache.py"
QKV = "op-plugin test_npu_qkv_rms_norm_rope_cache.py"
Maybe = Tensor | None
LANES = 32  # numbers side by side in a cache of int8 in the chip's block order


def quantise(rows: Tensor, scale: Tensor, offset: Maybe, dtype: torch.dtype) -> Tensor:
    shift = 0.0 if offset is None else working(offset)
    return saturate(working(rows) * working(scale) + shift, dtype)


def store(rows: Tensor, cache: Tensor, indices: Tensor, paged: bool) -> None:
    """Rows [B, S, N, D] into a cache [.., .., N, D], from an index of each row or of each batch."""
    if paged:
        flat = cache.view(-1, *cache.shape[-2:])
        flat[indices.long()] = rows.flatten(0, 1)
        return
    for batch, start in enumerate(indices.tolist()):
        cache[batch, start : start + rows.shape[1]] = rows[batch]


def rotate_and_store(
    operator: str,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    caches: tuple[Tensor, Tensor],
    indices: Tensor,
    scales: tuple[Tensor, Tensor],
    offsets: tuple[Maybe, Maybe],
    size_splits: Sequence[int],
    modes: tuple[int, str, str],
    kv_output: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x [B, (S,) (Nq + 2 N) * D] in working precision: q, k, v in the dtype of cos, the caches."""
    quant_mode, layout, cache_mode = modes
    if quant_mode or layout != "BSND" or cache_mode not in ("contiguous", "page"):
        raise Unsimulated(operator, f"quant_mode {quant_mode}, {layout}, {cache_mode}")
    size, flat = cos.shape[-1], x.ndim == 2
    parts = [part.unflatten(-1, (-1, size)) for part in x.split(list(size_splits), -1)]  # type: ignore[no-untyped-call]
    c, s = (working(one).unsqueeze(-2) if flat else working(one) for one in (cos, sin))
    q, k = (rope(part, c, s, "half") for part in parts[:2])
    for rows, cache, scale, offset in zip((k, parts[2]), caches, scales, offsets, strict=True):
        values = quantise(rows, scale, offset, cache.dtype)
        values = values.unsqueeze(1) if flat else values
        store(values, cache, indices, cache_mode == "page")
    nothing = torch.empty(0, dtype=cos.dtype)
    own = (k.to(cos.dtype), parts[2].to(cos.dtype)) if kv_output else (nothing, nothing.clone())
    return q.to(cos.dtype), *own, *caches


@reference("npu_rope_quant_kvcache", source=CACHE)
def npu_rope_quant_kvcache(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indices: Tensor,
    scale_k: Tensor,
    scale_v: Tensor,
    size_splits: Sequence[int],
    offset_k: Maybe,
    offset_v: Maybe,
    quant_mode: int,
    input_layout: str,
    kv_output: bool,
    cache_mode: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys rotated, keys and values quantised into their caches, in place."""
    return rotate_and_store(
        "npu_rope_quant_kvcache",
        *(working(x), cos, sin, (k_cache, v_cache), indices, (scale_k, scale_v)),
        *((offset_k, offset_v), size_splits, (quant_mode, input_layout, cache_mode), kv_output),
    )


@reference("npu_dequant_rope_quant_kvcache", source=CACHE)
def npu_dequant_rope_quant_kvcache(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same of int32 sums; an int32 bias is added before the scales, any other after."""
    wide = (
        given.x if given.bias is None or given.bias.dtype != torch.int32 else given.x + given.bias
    )
    wide = working(wide)
    if given.weight_scale is not None:
        wide = wide * working(given.weight_scale)
    if given.activation_scale is not None:
        wide = wide * working(given.activation_scale).reshape(*given.x.shape[:-1], 1)
    if given.bias is not None and given.bias.dtype != torch.int32:
        wide = wide + working(given.bias)
    return rotate_and_store(
        "npu_dequant_rope_quant_kvcache",
        *(
            wide,
            given.cos,
            given.sin,
            (given.k_cache, given.v_cache),
            given.indices,
            (given.scale_k, given.scale_v),
        ),
        *(
            (given.offset_k, given.offset_v),
            given.size_splits,
            (given.quant_mode, given.input_layout, given.cache_mode),
            given.kv_output,
        ),
    )


def divide(rows: Tensor, scale: Maybe, offset: Maybe, cache: Tensor) -> Tensor:
    """Rows [T, N, D] over their scales [N, D], as the cache stores them."""
    if scale is None:
        return rows.to(cache.dtype)
    shift = 0.0 if offset is None else working(offset)
    return saturate(rows / working(scale) + shift, cache.dtype)


@reference("npu_qkv_rms_norm_rope_cache", source=QKV)
def npu_qkv_rms_norm_rope_cache(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    """q and k normed and rotated, k and v into caches [blocks, N * D / 32, size, 32], in place.

    Also q, k and v before quantisation where asked for, else a single number each.
    """
    if given.cache_mode != "PA_NZ":
        raise Unsimulated("npu_qkv_rms_norm_rope_cache", f"cache_mode {given.cache_mode}")
    size = given.q_gamma.shape[0]
    widths = [count * size for count in given.head_nums]
    q, k, v = (part.unflatten(-1, (-1, size)) for part in working(given.qkv).split(widths, -1))  # type: ignore[no-untyped-call]
    rows = q.shape[0]
    c, s = (
        working(one).repeat_interleave(rows // len(one), 0).unsqueeze(1)
        for one in (given.cos, given.sin)
    )
    q, k = (
        rope(rms_of(part, working(gamma), given.epsilon)[0], c, s, "half")
        for part, gamma in ((q, given.q_gamma), (k, given.k_gamma))
    )
    given.q_out.copy_(q.flatten(1))
    for part, cache, scale, offset in (
        (k, given.k_cache, given.k_scale, given.k_offset),
        (v, given.v_cache, given.v_scale, given.v_offset),
    ):
        write_slots(divide(part, scale, offset, cache).flatten(1), cache, given.index, fractal=True)
    if given.is_output_qkv:
        return tuple(part.flatten(1).to(given.qkv.dtype) for part in (q, k, v))  # type: ignore[return-value]
    return tuple(torch.zeros((), dtype=given.qkv.dtype) for _ in range(3))  # type: ignore[return-value]


@reference(
    "npu_kv_rmsnorm_rope_cache_v2",
    source="op-plugin KvRmsNormRopeCacheNpuOpApi.cpp",
    without="k_cache_dtype ckv_cache_dtype",
)
def npu_kv_rmsnorm_rope_cache_v2(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """As npu_kv_rmsnorm_rope_cache, with the caches written in place and not returned."""
    found = npu_kv_rmsnorm_rope_cache(
        *(given.kv, given.gamma, given.cos, given.sin, given.index, given.k_cache, given.ckv_cache),
        k_rope_scale=given.k_rope_scale,
        c_kv_scale=given.c_kv_scale,
        k_rope_offset=given.k_rope_offset,
        c_kv_offset=given.c_kv_offset,
        v=given.v,
        epsilon=given.epsilon,
        cache_mode=given.cache_mode,
        is_output_kv=given.is_output_kv,
    )
    return found[2], found[3]

"""Key/value caches: writing tokens into slots, reading sequences out, and fused norm and rope.

A slot is `block · block_size + offset`; a negative slot is skipped. Cache forms: ND
[blocks, size, N, D]; NZ (fractal) [blocks, N·D/lane, size, lane].
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.norms import rms_of
from joymigrate.run.rehearse.refs.rotary import deinterleave, rope

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
ATB = "op-plugin op_plugin/ops/atb/{}"
Maybe = Tensor | None


def write_slots(rows: Tensor, cache: Tensor, slots: Tensor, fractal: bool) -> None:
    """Write rows [T, …] of tokens into the cache's slots, in place."""
    slots = slots.reshape(-1).long()
    used = slots >= 0
    slots, rows = slots[used], rows[used].to(cache.dtype)
    if fractal:
        size, lane = cache.shape[-2], cache.shape[-1]
        cache[slots // size, :, slots % size] = rows.reshape(len(rows), -1, lane)
        return
    size = cache.shape[1]
    cache[slots // size, slots % size] = rows.reshape(len(rows), *cache.shape[2:])


def _is_fractal(mode: str | None, key: Tensor, cache: Tensor) -> bool:
    """PA_NZ in the logical form of the ND cache is stored as ND here: format has no bytes."""
    return mode == "PA_NZ" and tuple(cache.shape[2:]) != tuple(key.shape[1:])


@reference("npu_scatter_pa_kv_cache", source=DOCS.format("npu_scatter_pa_kv_cache"))
def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    compress_lens: Maybe,
    cache_mode: str | None,
) -> None:
    """Tokens into both caches, in place."""
    if compress_lens is not None or key.dim() == 4:
        raise Unsimulated("npu_scatter_pa_kv_cache", "compressed caches")
    for rows, cache in ((key, key_cache), (value, value_cache)):
        write_slots(rows, cache, slot_mapping, _is_fractal(cache_mode, rows, cache))


@reference(
    "npu_scatter_pa_cache.value",
    source="op-plugin ScatterPaCacheNpuOpApi.cpp",
    without="compress_lens",
)
def npu_scatter_pa_cache(key: Tensor, slot_mapping: Tensor, key_cache: Tensor) -> Tensor:
    """Tokens into one cache, in place."""
    write_slots(key, key_cache, slot_mapping, fractal=False)
    return key_cache


@reference("atb::_npu_reshape_and_cache", source=ATB.format("ReshapeAndCachAtb.cpp"))
def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    for rows, cache in ((key, key_cache), (value, value_cache)):
        write_slots(rows, cache, slot_indices, _is_fractal("PA_NZ", rows, cache))


@reference("atb::_npu_reshape_and_cache_siso", source=ATB.format("ReshapeAndCacheSisoAtb.cpp"))
def _npu_reshape_and_cache_siso(key: Tensor, key_cache: Tensor, slot_indices: Tensor) -> None:
    write_slots(key, key_cache, slot_indices, fractal=False)


def read_sequence(cache: Tensor, table: Tensor, start: int, length: int) -> Tensor:
    """`length` tokens of an ND cache from token `start` of one sequence: [length, …]."""
    size = cache.shape[1]
    at = torch.arange(start, start + length)
    return cache[table.long()[at // size], at % size]


def _lengths(seq_lens: Tensor, cumulative: bool) -> list[int]:
    values = [int(value) for value in seq_lens]
    if not cumulative:
        return values
    return [stop - start for start, stop in pairwise(values)]


def _gather(
    caches: tuple[Tensor, Tensor],
    tables: Tensor,
    seq_lens: Tensor,
    outputs: tuple[Tensor, Tensor],
    offsets: Maybe,
    cumulative: bool,
) -> None:
    at = 0
    for number, length in enumerate(_lengths(seq_lens, cumulative)):
        length = min(length, outputs[0].shape[0] - at)
        start = 0 if offsets is None else int(offsets[number])
        for cache, output in zip(caches, outputs, strict=True):
            rows = read_sequence(cache, tables[number], start, length)
            output[at : at + length] = rows.reshape(length, *output.shape[1:])
        at += length


@reference("npu_gather_pa_kv_cache", source="op-plugin GatherPaKvCacheKernelNpuOpApi.cpp")
def npu_gather_pa_kv_cache(given: ReferenceArguments) -> None:
    """Sequences out of ND caches into `key` and `value`, one behind the other."""
    _gather(
        (given.key_cache, given.value_cache),
        given.block_tables,
        given.seq_lens,
        (given.key, given.value),
        given.seq_offset,
        given.is_seq_lens_cumsum,
    )


@reference("atb::npu_paged_cache_load", source=ATB.format("PagedCacheLoadAtb.cpp"))
def npu_paged_cache_load(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    seq_starts: Maybe,
    cumsum: bool,
) -> tuple[Tensor, Tensor]:
    tokens = sum(_lengths(context_lens, cumsum))
    outputs = tuple(cache.new_zeros(tokens, *cache.shape[2:]) for cache in (key_cache, value_cache))
    caches = key_cache, value_cache
    _gather(caches, block_table, context_lens, (outputs[0], outputs[1]), seq_starts, cumsum)
    return outputs[0], outputs[1]


def _store(rows: Tensor, cache: Tensor, index: Tensor, mode: str) -> None:
    """Rows [B, S, D] into a cache by `cache_mode` of the fused operators."""
    batch, steps, size = rows.shape
    if mode == "Norm":
        for number in range(batch):
            places = index.reshape(batch, steps)[number].long()
            used = places >= 0
            cache[number, 0, places[used]] = rows[number, used].to(cache.dtype)
        return
    blocks, length = cache.shape[0], cache.shape[1]
    if "BLK" in mode:
        starts = index.reshape(batch, -1).long()
        step = torch.arange(steps)
        slots = starts[:, step // length] + step % length
        slots = torch.where(starts[:, step // length] < 0, -1, slots)
    else:
        slots = index
    flat = rows.reshape(-1, size)
    if mode.endswith("NZ"):
        lane = 32 if cache.dtype == torch.int8 else 16
        view = cache.view(blocks, size // lane, length, lane)
        write_slots(flat, view, slots, fractal=True)
        return
    write_slots(flat.unsqueeze(1), cache, slots, fractal=False)


def _quantise(rows: Tensor, scale: Maybe, offset: Maybe, cache: Tensor) -> Tensor:
    """Rows as the cache stores them: int8(rows·scale + offset), or rounded to its dtype."""
    if scale is None:
        return rows.to(cache.dtype)
    shift = 0.0 if offset is None else offset.float()
    return saturate(rows.float() * scale.float() + shift, cache.dtype)


@reference(
    "npu_kv_rmsnorm_rope_cache", source=DOCS.format("npu_kv_rmsnorm_rope_cache"), without="v"
)
def npu_kv_rmsnorm_rope_cache(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latent attention's cache: rms norm of the first part, rope of the last, both stored.

    kv is [B, 1, S, rms + rope]. Both caches are written in place and returned.
    """
    size = given.gamma.shape[0]
    latent = rms_of(given.kv[..., :size], given.gamma, given.epsilon)[0].to(given.kv.dtype)
    turned = rope(
        deinterleave(working(given.kv[..., size:])), working(given.cos), working(given.sin), "half"
    )
    key = turned.to(given.kv.dtype)
    _store(
        _quantise(key, given.k_rope_scale, given.k_rope_offset, given.k_cache)[:, 0],
        given.k_cache,
        given.index,
        given.cache_mode,
    )
    stored = _quantise(latent, given.c_kv_scale, given.c_kv_offset, given.ckv_cache)
    _store(stored[:, 0], given.ckv_cache, given.index, given.cache_mode)
    return given.k_cache, given.ckv_cache, key, latent

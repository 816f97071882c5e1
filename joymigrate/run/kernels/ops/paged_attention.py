"""Attention of packed sequences over keys and values in a paged cache, which it fills first.

    paged_attention(query, key, value, key_cache, value_cache, slots, table, starts, lengths, *,
                    scale=None, window=None, softcap=None, sinks=None, memo=None)
        -> (output, key_cache, value_cache)

Legend: T new tokens of all sequences, S sequences, H query heads, N key/value heads, D size of a
key, E size of a value, P blocks, B tokens of a block.

`query` [T, H, D], `key` [T, N, D] and `value` [T, N, E] of the new tokens, packed one sequence
after the other: sequence i owns rows starts[i] … starts[i+1], which are its newest tokens.
`key_cache` [P, B, N, D] and `value_cache` [P, B, N, E] are changed in place; only the shape is
fixed, `layout` gives the order in memory that an implementation reads fastest. `slots` [T] says
where each new token goes (block · B + offset), `table` [S, blocks] which blocks a sequence has, in
order, `lengths` [S] its tokens with the new ones. `starts` and `lengths` are on the CPU, as
tensors or tuples. `window`: a token sees itself and the window-1 before it. `softcap` c: scores
become c·tanh(score / c). `sinks` [H] are scores of a token without a value. `memo` is an empty
dict at the beginning of a step; calls of one step share what they prepare in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import Call, Implementation, Operator, OperatorCase
from joymigrate.run.kernels.samples import Samples

OWN = "joymigrate.run.kernels.own.paged_attention"
Numbers = Sequence[int] | Tensor
Result = tuple[Tensor, Tensor, Tensor]


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    table: Tensor,
    starts: Numbers,
    lengths: Numbers,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    memo: dict[Any, Any] | None = None,
) -> Result:
    """The definition: one sequence after the other, all its scores at once."""
    size = key_cache.shape[1]
    key_cache[slots // size, slots % size] = key
    value_cache[slots // size, slots % size] = value
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    bounds = numbers(starts)
    output = query.new_empty(*query.shape[:2], value.shape[-1])
    for i, length in enumerate(numbers(lengths)):
        rows = slice(bounds[i], bounds[i + 1])
        new = bounds[i + 1] - bounds[i]
        if not new:
            continue
        blocks = table[i, : -(-length // size)]
        keys = key_cache[blocks].flatten(0, 1)[:length]
        values = value_cache[blocks].flatten(0, 1)[:length]
        seen = visible(new, length, window, query.device)
        output[rows] = attend(query[rows], keys, values, seen, scale, softcap, sinks)
    return output, key_cache, value_cache


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """softmax(q·k)·v of one sequence; `seen` [queries, keys]."""
    groups = query.shape[1] // keys.shape[1]
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    k_HLD = keys.repeat_interleave(groups, 1).transpose(0, 1).to(wide)
    v_HLE = values.repeat_interleave(groups, 1).transpose(0, 1).to(wide)
    scores = torch.matmul(query.transpose(0, 1).to(wide), k_HLD.transpose(1, 2)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        column = sinks.to(wide)[:, None, None].expand(-1, scores.shape[1], 1)
        shares = torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1]
    else:
        shares = torch.softmax(scores, -1)
    return torch.matmul(shares, v_HLE).transpose(0, 1).to(query.dtype)


def visible(new: int, length: int, window: int | None, device: torch.device | str) -> Tensor:
    """[new, length]: whether each of the newest tokens sees each token."""
    query = torch.arange(length - new, length, device=device)[:, None]
    keys = torch.arange(length, device=device)[None]
    seen = keys <= query
    return seen if window is None else seen & (keys > query - window)


def numbers(values: Numbers) -> Sequence[int]:
    """Python integers of a sequence or a tensor."""
    return values.tolist() if isinstance(values, Tensor) else values


def layout(implementation: str) -> tuple[int, ...]:
    """Order of a cache's axes [blocks, tokens, heads, size] in memory, outermost first."""
    return (2, 0, 1, 3) if implementation == "gather" else (0, 1, 2, 3)


def describe(
    query: Tensor, key: Tensor, *_: Any, **options: Any
) -> tuple[Tensor, tuple[int, ...], str]:
    named = [name for name in ("softcap", "sinks") if options.get(name) is not None]
    return query, (query.shape[1], key.shape[1], query.shape[2]), " ".join(named)


def no_extras(call: Call) -> str | None:
    """A library's kernel without softcap and sinks."""
    return f"has no {call.variant}" if call.variant else None


def cases(random: Samples) -> Iterator[OperatorCase]:
    usual: dict[str, Any] = {"heads": 4, "kv_heads": 2, "size": 16, "block": 16}
    yield make(random, "prompts", news=(5, 17, 32), pasts=(0, 0, 0), **usual)
    yield make(random, "decode", news=(1, 1, 1), pasts=(1, 30, 63), **usual)
    yield make(random, "mixed", news=(7, 20, 1, 1), pasts=(16, 0, 15, 47), **usual)
    yield make(random, "one head each", news=(3, 1), pasts=(0, 40), heads=2, kv_heads=2)
    yield make(random, "window", news=(9, 1, 1), pasts=(14, 3, 60), window=8, **usual)
    wide = {**usual, "size": 64}  # one of the sizes that vendors' kernels take
    yield make(random, "heads of 64", news=(7, 20, 1, 1), pasts=(16, 0, 15, 47), **wide)
    yield make(random, "heads of 64, window", news=(9, 1, 1), pasts=(14, 3, 60), window=8, **wide)
    extras: dict[str, Any] = {"softcap": 20.0, "scale": 0.3, **usual}
    yield make(random, "softcap", news=(9, 1, 1), pasts=(14, 3, 60), **extras)
    yield make(random, "sinks", news=(9, 1, 1), pasts=(0, 3, 60), sinks=True, **usual)


def make(
    random: Samples,
    name: str,
    *,
    news: tuple[int, ...],
    pasts: tuple[int, ...],
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 16,
    block: int = 16,
    sinks: bool = False,
    **options: Any,
) -> OperatorCase:
    """A case with `news[i]` new tokens after `pasts[i]` cached ones, in shuffled blocks."""
    lengths = [new + past for new, past in zip(news, pasts, strict=True)]
    needed = [-(-length // block) for length in lengths]
    pool = 2 * sum(needed) + 1
    order = torch.randperm(pool, generator=random.generator)
    table = torch.zeros(len(news), max(needed), dtype=torch.int64)
    starts, slots, first = [0], [], 0
    for i, (length, past) in enumerate(zip(lengths, pasts, strict=True)):
        table[i, : needed[i]] = order[first : first + needed[i]]
        first += needed[i]
        places = torch.arange(past, length)
        slots.append(table[i, places // block] * block + places % block)
        starts.append(starts[-1] + news[i])
    total = starts[-1]
    if sinks:
        options["sinks"] = random.normal(heads)
    args = (
        random.normal(total, heads, size),
        random.normal(total, kv_heads, size),
        random.normal(total, kv_heads, size),
        random.normal(pool, block, kv_heads, size),
        random.normal(pool, block, kv_heads, size),
        torch.cat(slots),
        table,
        tuple(starts),
        tuple(lengths),
    )
    return OperatorCase(name, args, options)


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    shape: dict[str, Any] = {"heads": 16, "kv_heads": 4, "size": 64, "block": 16}
    for count in (1, 8, 32):
        yield (
            f"decode of {count} after 256",
            lambda n=count: make(random, "", news=(1,) * n, pasts=(256,) * n, **shape),  # type: ignore[misc]
        )
    yield "a prompt of 256", lambda: make(random, "", news=(256,), pasts=(0,), **shape)


OPERATOR = Operator(
    name="paged_attention",
    signature="paged_attention(query, key, value, key_cache, value_cache, slots, table, starts, "
    "lengths, *, scale=None, window=None, softcap=None, sinks=None, memo=None) "
    "-> (output, key_cache, value_cache)",
    formula="cache[slots] = key, value;  y = softmax(scale · q·kᵀ over the sequence's blocks) · v",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    mutates=True,
    differentiable=False,
    implementations=(
        Implementation(
            "gather",
            f"{OWN}:gather",
            10,
            dtypes=("float32", "float16", "bfloat16", "float64"),
            backward=False,
            note="blocks gathered per head; grouped query heads are rows of one product",
        ),
        Implementation(
            "varlen",
            f"{OWN}:varlen",
            30,
            devices=("cuda",),
            dtypes=("float16", "bfloat16"),
            backward=False,
            when=no_extras,
            calls="torch.nn.attention.varlen.varlen_attn(block_table=…)",
            source="torch 2.13, torch/nn/attention/varlen.py",
        ),
    ),
)

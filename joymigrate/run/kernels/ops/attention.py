"""Attention under a mask description (see `mask.py`), grouped key heads included.

    attention(q, k, v, mask=Causal(), *, scale=None, bias=None, activation=None) -> y

Dense: q [B, N, S, D], k [B, M, L, D], v [B, M, L, E], N a multiple of M; y [B, N, S, E].
`JaggedMask`: q [T, N, D], k [T, M, D], v [T, M, E]; y [T, N, E]. `scale` is 1/sqrt(D) by default.
A query that sees no key gives zeros. `bias` is added to the scores and `activation` replaces
softmax, see `scores.py`.

What needs a mask as a tensor is computed so up to LARGEST_MASK pairs a sequence; above it, and for
biases and other activations, the implementation `blockwise` makes no such tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.mask import (
    CAUSAL,
    BlockSparseMask,
    CandidateMask,
    Causal,
    Dense,
    Full,
    Globals,
    JaggedMask,
    Mask,
    Prefix,
    SharedPrefixMask,
    Simple,
    WindowMask,
    dense,
    trivial,
)
from joymigrate.run.kernels.operator import (
    CPU,
    WIDE,
    Call,
    Implementation,
    Operator,
    OperatorCase,
    OperatorTolerance,
)
from joymigrate.run.kernels.samples import Samples
from joymigrate.run.kernels.scores import Bias, Silu

LARGEST_MASK = 1 << 22  # pairs of a mask that is made as a tensor: 4 MB of booleans


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = CAUSAL,
    *,
    scale: float | None = None,
    bias: Bias | None = None,
    activation: Silu | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ + bias, visible keys) v, kept in float32 until the end."""
    if isinstance(mask, JaggedMask):
        return by_sequence(reference, q, k, v, mask, scale, bias, activation)
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    groups = q.shape[1] // max(1, k.shape[1])
    keys, values = (t.to(wide).repeat_interleave(groups, 1) for t in (k, v))
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    scores = (q.to(wide) @ keys.transpose(-1, -2)) * factor
    rows, columns = q.shape[-2], k.shape[-2]
    if bias is not None:
        places = torch.arange(columns, device=q.device)
        first = torch.arange(rows, device=q.device) + (columns - rows)
        scores = scores + bias.tile(first, places, columns - rows).to(wide)
    seen = dense(mask, rows, columns, q.device)
    if activation is not None:
        kept = F.silu(scores) / activation.divisor
        kept = kept if seen is None else kept.masked_fill(~seen, 0.0)
        return (kept @ values).to(q.dtype)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    # A row without a visible key would be NaN; its weights are zero.
    weights = torch.where(scores.isneginf().all(-1, keepdim=True), 0.0, scores).softmax(-1)
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)
    return (weights @ values).to(q.dtype)


def by_sequence(
    run: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: JaggedMask,
    scale: float | None,
    bias: Bias | None = None,
    activation: Silu | None = None,
) -> Tensor:
    """Jagged attention one sequence at a time: exactly the work there is, B launches."""
    found = []
    more: dict[str, Any] = {} if activation is None else {"activation": activation}
    for number, (start, stop) in enumerate(mask.bounds()):
        parts = (t[start:stop].transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        mine = more if bias is None else {**more, "bias": bias.part(start, stop)}
        found.append(run(*parts, mask.of(number), scale=scale, **mine)[0].transpose(0, 1))
    return torch.cat(found) if found else nothing(q, k, v)


def nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Zeros in the result's shape that pass gradients of zero on."""
    return q.new_zeros(*q.shape[:-1], v.shape[-1]) + 0 * (q.sum() + k.sum() + v.sum())


def torch_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """scaled_dot_product_attention, told "causal" instead of given a mask where that is right."""
    if isinstance(mask, JaggedMask):
        return by_sequence(torch_sdpa, q, k, v, mask, scale)
    rows, columns = q.shape[-2], k.shape[-2]
    if q.numel() == 0 or k.numel() == 0:
        return nothing(q, k, v)
    grouped = q.shape[1] != k.shape[1]
    # is_causal counts from the upper left corner: right only when there are as many keys.
    square = isinstance(mask, Causal) and rows == columns
    seen = None if square or trivial(mask, rows, columns) else dense(mask, rows, columns, q.device)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=square and rows > 1, scale=scale, enable_gqa=grouped
    )


def torch_varlen(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """torch's variable-length flash attention: one launch for all sequences."""
    from torch.nn.attention.varlen import varlen_attn

    if not isinstance(mask, JaggedMask):
        raise TypeError("varlen takes packed sequences")
    inner, longest = mask.inner, mask.length()
    window = (-1, -1) if isinstance(inner, Full) else (-1, 0)
    if isinstance(inner, WindowMask):
        window = (inner.size - 1, 0)
    offsets = mask.offsets.to(torch.int32)
    found = varlen_attn(
        q, k, v, offsets, offsets, longest, longest,
        scale=scale, window_size=window, enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    return found[0] if isinstance(found, tuple) else found


def torch_flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """FlexAttention compiled for the mask: blocks that are hidden are not computed."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows, columns = q.shape[-2], k.shape[-2]
    rule = rule_of(mask, columns - rows)
    blocks = create_block_mask(rule, None, None, rows, columns, device=str(q.device))
    run: Callable[..., Any] = flex_attention
    if q.device.type == "cuda":
        run = compile_once(flex_attention)
    found: Tensor = run(
        q, k, v, block_mask=blocks, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return found


def rule_of(mask: Mask, shift: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A mask's rule in FlexAttention's form."""
    if isinstance(mask, (Dense, JaggedMask)):
        raise TypeError(f"{mask.name} has no rule")
    rule: Simple = mask

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return rule.visible(i + shift, j)

    return visible


COMPILED: dict[str, Callable[..., Any]] = {}


def compile_once(run: Callable[..., Any]) -> Callable[..., Any]:
    """FlexAttention is only fast compiled; once per process."""
    if "flex" not in COMPILED:
        COMPILED["flex"] = torch.compile(run, dynamic=False)
    return COMPILED["flex"]


def pays_on_cpu(call: Call) -> str | None:
    """Measured on a CPU: 1.4 to 7 times the reference, but 0.84 for one bfloat16 query a head."""
    if call.device != CPU or call.variant.startswith("jagged"):
        return None
    slow = call.dtype == "bfloat16" and call.shape[2] == 1 and not call.grad
    return "slower than the reference for one bfloat16 query on a CPU" if slow else None


def plain(call: Call) -> str | None:
    """Libraries' attention: softmax without a relative bias."""
    if call.variant.endswith(" biased") or SILU in call.variant:
        return "for softmax without a relative bias"
    return None


def only_small(call: Call) -> str | None:
    """SDPA: not where a mask would have to be a large tensor."""
    return "would make a large mask" if LONG in call.variant else plain(call)


LONG, SILU, BIASED = " long", " silu", " biased"
RULES = ("window", "prefix", "shared", "candidates", "globals", "blocks", "composed")


def only_rules(call: Call) -> str | None:
    """FlexAttention: rules that SDPA has no kernel for, in whole blocks."""
    if call.variant.removesuffix(LONG) not in RULES:
        return f"not for {call.variant} masks"
    return None if call.shape[2] >= 128 else "for 128 queries or more"


def only_packed(call: Call) -> str | None:
    """Variable-length flash attention: packed sequences, two-byte floats."""
    known = ("jagged full", "jagged causal", "jagged window")
    if call.variant.removesuffix(LONG) not in known:
        return "for packed sequences (full, causal, window)"
    return None if call.shape[-1] <= 256 else "for head sizes up to 256"


def only_jagged(call: Call) -> str | None:
    """Our kernel: packed sequences, a head size that its blocks hold."""
    known = ("full", "causal", "window", "candidates")
    if call.variant.removesuffix(LONG) not in [f"jagged {name}" for name in known]:
        return f"for packed sequences ({', '.join(known)})"
    size = call.shape[-1]
    return None if 1 <= size <= 256 else f"for head sizes up to 256, got {size}"


def describe(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias | None, activation: Silu | None
) -> tuple[Tensor, tuple[int, ...], str]:
    kind = mask.name + (LONG if is_long(mask, q, k) else "")
    kind += (SILU if activation is not None else "") + (BIASED if bias is not None else "")
    if isinstance(mask, JaggedMask):
        sizes = (mask.offsets.numel() - 1, q.shape[0], q.shape[1], k.shape[1], q.shape[-1])
        return q, sizes, kind
    return q, (q.shape[0], q.shape[1], q.shape[2], k.shape[2], k.shape[1], q.shape[-1]), kind


def is_long(mask: Mask, q: Tensor, k: Tensor) -> bool:
    """Whether the mask as a tensor would be larger than LARGEST_MASK."""
    if isinstance(mask, (Full, Dense)):
        return False
    if isinstance(mask, JaggedMask):
        if isinstance(mask.inner, (Full, Causal)) or q.shape[0] ** 2 <= LARGEST_MASK:
            return False
        return mask.length() ** 2 > LARGEST_MASK
    rows, columns = q.shape[-2], k.shape[-2]
    square = isinstance(mask, Causal) and rows == columns
    return not square and not trivial(mask, rows, columns) and rows * columns > LARGEST_MASK


def qkv(random: Samples, b: int, n: int, m: int, s: int, length: int, d: int) -> tuple[Tensor, ...]:
    """Inputs of dense attention."""
    keys = random.normal(b, m, length, d), random.normal(b, m, length, d)
    return random.normal(b, n, s, d), *keys


def draw_packed(
    random: Samples, lengths: tuple[int, ...], n: int, m: int, d: int
) -> tuple[Tensor, ...]:
    """Inputs of jagged attention."""
    total = sum(lengths)
    return random.normal(total, n, d), random.normal(total, m, d), random.normal(total, m, d)


def offsets_of(lengths: tuple[int, ...]) -> Tensor:
    """[0, l₀, l₀ + l₁, …]"""
    return torch.tensor((0, *lengths)).cumsum(0)


def cases(random: Samples) -> Iterator[OperatorCase]:
    g = (0, 1, 2)
    yield OperatorCase("causal", (*qkv(random, 2, 4, 2, 24, 24, 16), Causal()), grad=g)
    lengths = (5, 17, 1, 9)
    mask = JaggedMask(offsets_of(lengths), Causal())
    yield OperatorCase("jagged causal", (*draw_packed(random, lengths, 4, 2, 16), mask), grad=g)
    yield OperatorCase("full", (*qkv(random, 1, 2, 2, 7, 13, 8), Full()), grad=g)
    yield OperatorCase(
        "more keys than queries", (*qkv(random, 2, 2, 1, 3, 19, 16), Causal()), grad=g
    )
    yield OperatorCase("one query", (*qkv(random, 2, 2, 2, 1, 33, 16), Causal()), grad=g)
    yield OperatorCase("window", (*qkv(random, 1, 2, 2, 40, 40, 16), WindowMask(7)), grad=g)
    yield OperatorCase(
        "window over a cache", (*qkv(random, 1, 2, 2, 3, 40, 16), WindowMask(7)), grad=g
    )
    yield OperatorCase("prefix", (*qkv(random, 1, 2, 1, 21, 21, 16), Prefix(6)), grad=g)
    yield OperatorCase(
        "shared", (*qkv(random, 1, 2, 2, 30, 30, 16), SharedPrefixMask(10, (7, 0, 13))), grad=g
    )
    yield OperatorCase("candidates", (*qkv(random, 1, 2, 2, 25, 25, 16), CandidateMask(18)), grad=g)
    both = CandidateMask(18, causal=False)
    yield OperatorCase(
        "candidates, whole context", (*qkv(random, 1, 2, 2, 25, 25, 16), both), grad=g
    )
    hidden = Dense(random.uniform(2, 1, 9, 11) > 0.4)
    yield OperatorCase("dense", (*qkv(random, 2, 2, 2, 9, 11, 16), hidden), grad=g)
    scaled = (*qkv(random, 1, 2, 2, 8, 8, 24), Causal())
    yield OperatorCase("own scale, odd head", scaled, {"scale": 0.3}, grad=g)
    yield OperatorCase(
        "fewer keys than queries", (*qkv(random, 1, 1, 1, 6, 4, 16), Causal()), grad=g
    )
    yield OperatorCase("no batch", (*qkv(random, 0, 2, 2, 4, 4, 16), Causal()), grad=g)
    yield from jagged_cases(random)


def jagged_cases(random: Samples) -> Iterator[OperatorCase]:
    g = (0, 1, 2)
    lengths = (33, 0, 20)
    offsets = offsets_of(lengths)
    yield OperatorCase(
        "jagged full",
        (*draw_packed(random, lengths, 2, 2, 16), JaggedMask(offsets, Full())),
        grad=g,
    )
    window = JaggedMask(offsets, WindowMask(6))
    yield OperatorCase("jagged window", (*draw_packed(random, lengths, 2, 1, 24), window), grad=g)
    contexts = torch.tensor([20, 0, 11])
    target = JaggedMask(offsets, CandidateMask(), contexts=contexts)
    yield OperatorCase(
        "jagged candidates", (*draw_packed(random, lengths, 2, 2, 16), target), grad=g
    )
    whole = JaggedMask(offsets, CandidateMask(causal=False), contexts=contexts)
    yield OperatorCase(
        "jagged candidates, whole context", (*draw_packed(random, lengths, 2, 2, 16), whole), grad=g
    )
    none = JaggedMask(offsets_of((0, 0)), Causal())
    yield OperatorCase("jagged, no tokens", (*draw_packed(random, (0, 0), 2, 2, 16), none), grad=g)
    yield from described_cases(random)


def described_cases(random: Samples) -> Iterator[OperatorCase]:
    """Compositions, relative biases and SiLU."""
    g = (0, 1, 2)
    near = Causal() & (WindowMask(5) | Globals(3))
    yield OperatorCase("composed", (*qkv(random, 1, 2, 1, 29, 29, 16), near), grad=g)
    sparse = BlockSparseMask(8, ((0,), (0, 1), (0, 2), (1, 3)))
    yield OperatorCase("blocks", (*qkv(random, 2, 2, 2, 30, 30, 16), sparse | Globals(2)), grad=g)
    lengths = (300, 0, 21)
    times = random.integers(0, 10**6, sum(lengths))
    bias = Bias(
        position=random.normal(1, 199), time=random.normal(2, 40), times=times, query_times=times
    )
    both = {"bias": bias, "activation": Silu(300.0), "scale": 1.0}
    for mask in (Causal(), CandidateMask(12), near):
        packing = JaggedMask(offsets_of(lengths), mask)
        label = f"jagged {mask.name}, SiLU with bias (HSTU)"
        yield OperatorCase(label, (*draw_packed(random, lengths, 2, 2, 16), packing), both, grad=g)
    by_place = {"bias": Bias(position=random.normal(4, 31))}
    yield OperatorCase(
        "softmax with bias", (*qkv(random, 2, 4, 2, 3, 20, 16), Causal()), by_place, grad=g
    )


GRID: tuple[tuple[str, tuple[int, ...], Mask], ...] = (
    ("causal 1x8x512x64", (1, 8, 8, 512, 512, 64), Causal()),
    ("causal gqa 1x14/2x1024x64", (1, 14, 2, 1024, 1024, 64), Causal()),
    ("decode 8x14/2x1x1024x64", (8, 14, 2, 1, 1024, 64), Causal()),
    ("window-128 1x8x1024x64", (1, 8, 8, 1024, 1024, 64), WindowMask(128)),
    ("candidates 1x4x768x64", (1, 4, 4, 768, 768, 64), CandidateMask(512)),
)
LENGTHS = (700, 31, 250, 12, 90, 44, 5, 120)  # lengths as a Zipf law gives them


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for label, sizes, mask in GRID:
        yield label, lambda s=sizes, m=mask: OperatorCase("", (*qkv(random, *s), m), grad=(0, 1, 2))  # type: ignore[misc]
    yield (
        f"jagged causal {len(LENGTHS)} sequences, {sum(LENGTHS)} tokens",
        lambda: OperatorCase(
            "",
            (*draw_packed(random, LENGTHS, 8, 8, 64), JaggedMask(offsets_of(LENGTHS), Causal())),
            grad=(0, 1, 2),
        ),
    )


def pairs(mask: Mask, rows: int, columns: int) -> float:
    """Visible (query, key) pairs of one head, for counting FLOPs."""
    if isinstance(mask, JaggedMask):
        return sum(pairs(mask.of(n), b - a, b - a) for n, (a, b) in enumerate(mask.bounds()))
    seen = dense(mask, rows, columns, torch.device("cpu"))
    return float(rows * columns if seen is None else seen.double().mean() * rows * columns)


def flops(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> int:
    """Two products of 2·D operations for each visible pair."""
    heads = q.shape[1] * (1 if isinstance(mask, JaggedMask) else q.shape[0])
    return int(heads * pairs(mask, q.shape[-2], k.shape[-2]) * 2 * (q.shape[-1] + v.shape[-1]))


OPERATOR = Operator(
    name="attention",
    signature="attention(q, k, v, mask=Causal(), *, scale, bias, activation) -> y",
    formula="y = softmax(scale · q kᵀ + bias over the keys that the mask shows) v",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    # Weights are rounded to the dtype before the second product by most kernels.
    tolerance=OperatorTolerance(1e-5, 4e-3, 3e-2),
    implementations=(
        Implementation("torch", torch_sdpa, 10, dtypes=WIDE, when=only_small, pays=pays_on_cpu),
        Implementation(
            "blockwise", "joymigrate.run.kernels.own.blockwise_attention:attention", 5, dtypes=WIDE,
            note="plain torch in tiles: any mask, bias or activation, no tensor of the mask",
        ),
        Implementation(
            "varlen", torch_varlen, 30, devices=("cuda",), dtypes=("float16", "bfloat16"),
            when=only_packed, calls="torch.nn.attention.varlen.varlen_attn",
        ),
        Implementation("flex", torch_flex, 20, devices=("cuda",), when=only_rules),
        Implementation(
            "triton", "joymigrate.run.kernels.own.jagged_attention:attention", 15,
            devices=("cuda",), packages=("triton",), when=only_jagged, interpreted=True,
        ),
    ),
    flops=flops,
)  # fmt: skip

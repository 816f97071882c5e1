"""Sequences of different lengths: packed back to back, or padded to one length.

    jagged_to_padded(values, offsets, length, *, fill=0.0) -> padded
    padded_to_jagged(padded, offsets, total) -> values

`values` [T, ...], `offsets` [B + 1] (sequence b is values[offsets[b]:offsets[b + 1]]); `padded`
[B, length, ...]. What is beyond `length` is cut off; the way back fills what was cut with zeros.
`total` is T, so that nothing has to be read from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import POINTWISE, WIDE, Implementation, Operator, OperatorCase
from joymigrate.run.kernels.samples import Samples


def padded_loop(values: Tensor, offsets: Tensor, length: int, *, fill: float = 0.0) -> Tensor:
    """Sequence by sequence."""
    edges: list[int] = offsets.tolist()
    rows = []
    for start, stop in pairwise(edges):
        kept = values[start : min(stop, start + length)]
        rest = kept.new_full((length - len(kept), *values.shape[1:]), fill)
        rows.append(torch.cat((kept, rest)))
    return torch.stack(rows) if rows else values.new_empty(0, length, *values.shape[1:])


def places(offsets: Tensor, total: int, length: int) -> Tensor:
    """Where each token stands among B · length rows; what is cut off, behind them. [T]"""
    count = offsets.numel() - 1
    token = torch.arange(total, device=offsets.device)
    sequence = torch.bucketize(token, offsets[1:], right=True)
    if count == 0:
        return sequence
    step = token - offsets[sequence]
    return torch.where(step < length, sequence * length + step, count * length)


def padded_gather(values: Tensor, offsets: Tensor, length: int, *, fill: float = 0.0) -> Tensor:
    """One copy for all tokens; nothing is read from the device."""
    count, rest = offsets.numel() - 1, values.shape[1:]
    place = places(offsets, values.shape[0], length)
    # What is cut off goes to one row behind the last, which is dropped.
    flat = values.new_full((count * length + 1, *rest), fill)
    return flat.index_copy(0, place, values)[:-1].view(count, length, *rest)


def jagged_loop(padded: Tensor, offsets: Tensor, total: int) -> Tensor:
    """Sequence by sequence."""
    edges: list[int] = offsets.tolist()
    rows = []
    for number, (start, stop) in enumerate(pairwise(edges)):
        kept = padded[number, : stop - start]
        rows += [kept, kept.new_zeros(stop - start - len(kept), *padded.shape[2:])]
    return torch.cat(rows) if rows else padded.new_empty(0, *padded.shape[2:])


def jagged_gather(padded: Tensor, offsets: Tensor, total: int) -> Tensor:
    """One gather for all tokens."""
    token = torch.arange(total, device=padded.device)
    sequence = torch.bucketize(token, offsets[1:], right=True)
    sequence = sequence.clamp(max=max(0, padded.shape[0] - 1))
    if padded.numel() == 0:
        return padded.new_zeros(total, *padded.shape[2:]) + 0 * padded.sum()
    step = token - offsets[sequence]
    found = padded[sequence, step.clamp(max=padded.shape[1] - 1)]
    there = (step < padded.shape[1]).reshape(-1, *[1] * (padded.dim() - 2))
    return torch.where(there, found, 0)


def describe_padded(
    values: Tensor, offsets: Tensor, length: int, **_: Any
) -> tuple[Tensor, tuple[int, ...], str]:
    width = values.numel() // values.shape[0] if values.shape[0] else 0
    return values, (offsets.numel() - 1, length, width), ""


def describe_jagged(
    padded: Tensor, offsets: Tensor, total: int
) -> tuple[Tensor, tuple[int, ...], str]:
    width = padded[0, 0].numel() if padded.numel() else 0
    return padded, (offsets.numel() - 1, padded.shape[1], width), ""


LENGTHS = {
    "usual": (5, 3, 8),
    "an empty sequence": (4, 0, 7, 1),
    "cut off": (2, 12, 9),
    "no tokens": (0, 0),
    "no sequences": (),
}
LONGEST = 8


def edges_of(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor((0, *lengths)).cumsum(0)


def padded_cases(random: Samples) -> Iterator[OperatorCase]:
    for name, lengths in LENGTHS.items():
        values = random.normal(sum(lengths), 6)
        yield OperatorCase(name, (values, edges_of(lengths), LONGEST), grad=(0,))
    lengths = LENGTHS["usual"]
    values = random.normal(sum(lengths))
    yield OperatorCase(
        "one axis, filled", (values, edges_of(lengths), LONGEST), {"fill": -1.5}, grad=(0,)
    )
    wide = random.normal(sum(lengths), 2, 5)
    yield OperatorCase("three axes", (wide, edges_of(lengths), LONGEST), grad=(0,))


def jagged_cases(random: Samples) -> Iterator[OperatorCase]:
    for name, lengths in LENGTHS.items():
        padded = random.normal(len(lengths), LONGEST, 6)
        yield OperatorCase(name, (padded, edges_of(lengths), sum(lengths)), grad=(0,))


GRID = ((32, 50, 64), (128, 200, 64))


def uneven(count: int, longest: int) -> tuple[int, ...]:
    """Lengths falling off as 1/rank."""
    return tuple(max(1, longest // (1 + n % 16)) for n in range(count))


def padded_grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for count, longest, width in GRID:

        def build(c: int = count, n: int = longest, w: int = width) -> OperatorCase:
            lengths = uneven(c, n)
            return OperatorCase(
                "", (random.normal(sum(lengths), w), edges_of(lengths), n), grad=(0,)
            )

        yield f"{count}x{longest}x{width}", build


def jagged_grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for count, longest, width in GRID:

        def build(c: int = count, n: int = longest, w: int = width) -> OperatorCase:
            lengths = uneven(c, n)
            return OperatorCase(
                "", (random.normal(c, n, w), edges_of(lengths), sum(lengths)), grad=(0,)
            )

        yield f"{count}x{longest}x{width}", build


OPERATORS = (
    Operator(
        name="jagged_to_padded",
        signature="jagged_to_padded(values, offsets, length, *, fill=0.0) -> padded",
        formula="padded[b, i] = values[offsets[b] + i] where i < the length of b, else fill",
        reference=padded_loop,
        describe=describe_padded,
        cases=padded_cases,
        grid=padded_grid,
        tolerance=POINTWISE,
        implementations=(Implementation("torch", padded_gather, 10, dtypes=WIDE),),
    ),
    Operator(
        name="padded_to_jagged",
        signature="padded_to_jagged(padded, offsets, total) -> values",
        formula="values[offsets[b] + i] = padded[b, i]",
        reference=jagged_loop,
        describe=describe_jagged,
        cases=jagged_cases,
        grid=jagged_grid,
        tolerance=POINTWISE,
        implementations=(Implementation("torch", jagged_gather, 10, dtypes=WIDE),),
    ),
)

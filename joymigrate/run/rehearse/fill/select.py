"""Choosing and counting: mode, nonzero_static; and random numbers out of uniform ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import fill


@fill("mode", rtol=0, atol=0)
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The most frequent value (the smallest of several) and an index of it along `dim`."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    ordered, origin = torch.sort(x, dim=dim, stable=True)
    number = x.shape[dim]
    shape = [1] * x.dim()
    shape[dim] = number
    place = torch.arange(number, device=x.device, dtype=torch.int32).reshape(shape)
    start = torch.ones_like(ordered, dtype=torch.bool)
    if number > 1:
        changed = ordered.narrow(dim, 1, number - 1) != ordered.narrow(dim, 0, number - 1)
        start = torch.cat([start.narrow(dim, 0, 1), changed], dim)
    # where a run began, carried along by a running maximum (of numbers that float32 holds exactly)
    began = torch.cummax(torch.where(start, place, 0).to(torch.float32), dim).values
    length = place.to(torch.float32) - began
    best = torch.argmax(length, dim, keepdim=True)
    values, indices = ordered.gather(dim, best), origin.gather(dim, best)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


@fill("nonzero_static nonzero_static.out", rtol=0, atol=0)
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` places that are not zero, without a shape that depends on the data."""
    hit = (x != 0).reshape(-1)
    rank = hit.to(torch.int64).cumsum(0) - 1
    slot = torch.where(hit & (rank < size), rank, size)
    flat = torch.arange(hit.numel(), device=x.device, dtype=torch.int64)
    found = torch.full((size + 1,), -1, dtype=torch.int64, device=x.device)
    found = found.scatter(0, slot, flat)[:size]
    columns, rest = [], found
    for length in reversed(x.shape):
        columns.append(torch.remainder(rest, max(length, 1)))
        rest = torch.div(rest, max(length, 1), rounding_mode="floor")
    if not columns:
        return torch.empty(size, 0, dtype=torch.int64, device=x.device)
    places = torch.stack(columns[::-1], 1)
    return torch.where((found < 0)[:, None], fill_value, places)


def uniform(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers above 0 and below 1 of x's shape, in float32 or x's wider dtype."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    drawn = torch.empty(x.shape, dtype=dtype, device=x.device).uniform_(0, 1, generator=generator)
    return drawn.clamp(torch.finfo(dtype).tiny, 1 - torch.finfo(dtype).eps / 2)


@fill("geometric_", note="its own random stream: no number is torch's, their distribution is")
def geometric(x: Tensor, p: float, *, generator: torch.Generator | None = None) -> Tensor:
    """The number of trials up to the first success."""
    return torch.ceil(torch.log(uniform(x, generator)) / math.log1p(-p)).clamp(min=1)


@fill("cauchy_", note="its own random stream: no number is torch's, their distribution is")
def cauchy(
    x: Tensor, median: float = 0, sigma: float = 1, *, generator: torch.Generator | None = None
) -> Tensor:
    """Cauchy numbers by the inverse of the distribution function."""
    return median + sigma * torch.tan(math.pi * (uniform(x, generator) - 0.5))


@fill("log_normal_", note="its own random stream: no number is torch's, their distribution is")
def log_normal(
    x: Tensor, mean: float = 1, std: float = 2, *, generator: torch.Generator | None = None
) -> Tensor:
    """exp of normal numbers."""
    return torch.exp(torch.empty_like(x).normal_(mean, std, generator=generator))

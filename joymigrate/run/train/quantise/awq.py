"""AWQ: scale up the weights that meet large inputs before rounding them to four bits, then clip.

s = mean|x|^β, or that over mean|w|^(1-β), per input channel; W · s is rounded and x / s multiplied
(Lin et al. 2023, arXiv 2306.00978). β is searched for every group of linears by the error of their
outputs; no scaling is one of the candidates. Then the span of every group of weights is narrowed
while that lessens the error of its own part of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from joymigrate.run.train.quantise.observe import InputStatistics
from joymigrate.run.train.quantise.rounding import int4_rounded, int4_scale, storable
from joymigrate.run.train.quantise.smooth import LEAST, SmoothingScale, best_scale

GRID = tuple(i / 20 for i in range(1, 21))
SPANS = tuple(1 - i / 20 for i in range(1, 11))  # of the largest weight
CHUNK = 1 << 24  # numbers worked on at once while clipping


def search(
    inputs: InputStatistics,
    weight: Tensor,
    admissible: Callable[[Tensor], Tensor] | None,
    *,
    group: int,
    dtype: torch.dtype,
) -> SmoothingScale:
    """The best scale for linears [N, K] of one input."""
    x = inputs.kept

    def outputs(s: Tensor) -> Tensor:
        scaled = weight * s
        return (x / s) @ int4_rounded(scaled, int4_scale(scaled, group, dtype)).T

    tried = (
        (beta, scale_of(inputs, weight, beta, balanced=balanced))
        for beta in GRID
        for balanced in (False, True)
    )
    return best_scale(inputs, weight, outputs, admissible, tried)


def scale_of(inputs: InputStatistics, weight: Tensor, beta: float, *, balanced: bool) -> Tensor:
    """s [K] for one β, its least and largest around 1."""
    s = inputs.mean.clamp(min=LEAST).pow(beta)
    if balanced:
        s = s / weight.abs().mean(0).clamp(min=LEAST).pow(1 - beta)
    s = s.clamp(min=1e-4)
    return s / (s.max() * s.min()).sqrt()


def clip_scales(weight: Tensor, x: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Scales [N, K / group], each of the span that errs least on inputs x [T, K]."""
    rows, inputs = weight.shape
    apart_x = x.view(len(x), -1, group)
    by_group = apart_x.transpose(0, 1)
    gram = (
        by_group.transpose(1, 2) @ by_group
    )  # [K / group, group, group]: what an error of weights costs
    full = int4_scale(weight, group, dtype)
    best = full.clone()
    step = max(1, CHUNK // inputs)
    for first in range(0, rows, step):
        part = slice(first, min(first + step, rows))
        least = cost(weight[part], full[part], gram)
        for span in SPANS:
            scale = storable(full[part] * span, dtype)
            found = cost(weight[part], scale, gram)
            better = found < least
            best[part] = torch.where(better, scale, best[part])
            least = torch.where(better, found, least)
    return best


def cost(weight: Tensor, scale: Tensor, gram: Tensor) -> Tensor:
    """The squared error [N, K / group] that rounding with these scales makes in the outputs."""
    wrong = (int4_rounded(weight, scale) - weight).view(*scale.shape, -1)
    apart = wrong.transpose(0, 1)  # [K / group, N, group]
    return ((apart @ gram) * apart).sum(-1).T

"""SmoothQuant: move a part of the inputs' range into the weights, so that both fit int8.

s = max|x|^α / max|w|^(1-α) per input channel; x / s and W · s are quantised (Xiao et al. 2022,
arXiv 2211.10438). α is searched for every group of linears, by the error of their outputs on
calibration rows; no scaling at all is one of the candidates, so the search never makes it worse
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from joymigrate.run.train.quantise.observe import InputStatistics
from joymigrate.run.train.quantise.rounding import (
    fixed_rounded,
    input_range,
    int8_rounded,
    rows_rounded,
)

GRID = tuple(i / 20 for i in range(0, 21))
LEAST = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class SmoothingScale:
    """The scale [K] of a group (None: none helps), its parameter, and the outputs' relative
    errors without and with it."""

    scale: Tensor | None
    parameter: float | None
    before: float
    after: float


def search(
    inputs: InputStatistics,
    weight: Tensor,
    admissible: Callable[[Tensor], Tensor] | None,
    *,
    alpha: float | None,
    static: bool,
    symmetric: bool,
) -> SmoothingScale:
    """The best α for linears [N, K] of one input; a given `alpha` is taken as it is."""
    x = inputs.kept

    def outputs(s: Tensor) -> Tensor:
        got = rounded_inputs(inputs, x / s, s, static=static, symmetric=symmetric)
        return got @ int8_rounded(weight * s).T

    grid = GRID if alpha is None else (alpha,)
    tried = ((one, scale_of(inputs, weight, one)) for one in grid)
    return best_scale(inputs, weight, outputs, admissible, tried, force=alpha is not None)


def best_scale(
    inputs: InputStatistics,
    weight: Tensor,
    outputs: Callable[[Tensor], Tensor],
    admissible: Callable[[Tensor], Tensor] | None,
    tried: Iterable[tuple[float, Tensor]],
    *,
    force: bool = False,
) -> SmoothingScale:
    """The scale [K] of those tried whose rounded `outputs` are nearest to the plain ones.

    None where no scale can be folded or none helps; with `force` the last one is taken.
    """
    want = inputs.kept @ weight.T
    norm = float(torch.linalg.vector_norm(want)) or 1.0

    def error(s: Tensor) -> float:
        return float(torch.linalg.vector_norm(outputs(s) - want)) / norm

    plain = error(torch.ones_like(inputs.low))
    best = SmoothingScale(None, None, plain, plain)
    for parameter, scale in tried if admissible is not None else ():
        s = admissible(scale)  # type: ignore[misc]
        after = error(s)
        if after < best.after or force:
            best = SmoothingScale(s, parameter, plain, after)
    return best


def scale_of(inputs: InputStatistics, weight: Tensor, alpha: float) -> Tensor:
    """s [K] for one α, of geometric mean 1 over the channels."""
    x = inputs.largest.clamp(min=LEAST)
    w = weight.abs().amax(0).clamp(min=LEAST)
    s = x.pow(alpha) / w.pow(1 - alpha)
    return (s / s.log().mean().exp()).clamp(min=LEAST, max=1 / LEAST)


def rounded_inputs(
    inputs: InputStatistics, x: Tensor, s: Tensor, *, static: bool, symmetric: bool
) -> Tensor:
    """What int8 makes of scaled inputs."""
    if not static:
        return rows_rounded(x)
    low, high = inputs.span()
    scale, offset = input_range(low / s, high / s, symmetric=symmetric)
    return fixed_rounded(x, scale, offset)

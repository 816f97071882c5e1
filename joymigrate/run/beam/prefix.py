"""Attention of beams on a prefix that all share and on what each of them wrote itself.

The prefix' keys and values are stored once: its scores are one product of all beams' queries with
the same keys, where a copy per beam would read W times as much (Jia et al., xGR, 2025, section 4,
arXiv 2512.11529). Both parts go through one softmax.

W beams, N heads, M key heads, P tokens of the prefix, S of each beam's own, D columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PAIRS = 1 << 22  # scores that are held together: 16 MB of float32


def attend(
    q: Tensor,
    prefix: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor] | None,
    scale: float | None = None,
) -> Tensor:
    """q [W, N, D]; prefix [P, M, D]; own [W, S, M, D]; the result is [W, N, D]."""
    beams, heads, size = q.shape
    keys, values = prefix
    groups = heads // keys.shape[1]
    factor = 1 / math.sqrt(size) if scale is None else scale
    step = max(1, PAIRS // max(1, heads * keys.shape[0]))
    found = []
    for start in range(0, beams, step):
        rows = q[start : start + step]
        # [M, rows · G, D] against [M, D, P]
        asked = rows.unflatten(1, (-1, groups)).permute(1, 0, 2, 3)  # type: ignore[no-untyped-call]
        shared = asked.flatten(1, 2) @ keys.permute(1, 2, 0) * factor
        if own is None:
            mixed = shared.softmax(-1) @ values.transpose(0, 1)
            found.append(fold(mixed, len(rows), groups))
            continue
        mine_k, mine_v = (t[start : start + step].permute(2, 0, 1, 3) for t in own)  # [M, W, S, D]
        alone = (asked @ mine_k.transpose(-1, -2) * factor).flatten(1, 2)
        weights = torch.cat([shared, alone], -1).softmax(-1)
        count = keys.shape[0]
        mixed = weights[..., :count] @ values.transpose(0, 1)
        rest = weights[..., count:].view(*asked.shape[:3], -1) @ mine_v
        found.append(fold(mixed + rest.flatten(1, 2), len(rows), groups))
    return torch.cat(found)


def remember(
    own: list[tuple[Tensor, Tensor]], number: int, parents: Tensor, new: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Keep the keys and values [W, 1, M, D] that beams wrote at a layer, behind their parents'."""
    if number == len(own):
        own.append(new)
        return new
    keys, values = own[number]
    own[number] = torch.cat([keys[parents], new[0]], 1), torch.cat([values[parents], new[1]], 1)
    return own[number]


def fold(x: Tensor, beams: int, groups: int) -> Tensor:
    """[M, W · G, D] as [W, N, D]."""
    return x.view(x.shape[0], beams, groups, -1).permute(1, 0, 2, 3).flatten(1, 2)

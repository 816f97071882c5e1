"""A value as 64 signed sums in float64, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from joymigrate.verify.isolated_pass import content_of
from joymigrate.verify.signs import WIDTH, signs


def summary(value: Any) -> dict[str, Any]:
    """A value as 64 signed sums in float64, its norm and shape; whole numbers by content too."""
    if isinstance(value, float | int):
        value = torch.tensor(float(value), dtype=torch.float64)
    value = value.detach().to("cpu")
    made: dict[str, Any] = {"shape": list(value.shape)}
    if not (value.is_floating_point() or value.is_complex()):
        made["content"] = content_of(value.to(torch.int64).contiguous())
    if value.is_complex():
        value = torch.view_as_real(value)
    flat = value.to(torch.float64).reshape(-1)
    rows, rest = divmod(flat.numel(), WIDTH)
    known = torch.from_numpy(signs(rows + 1, 0, np.float64))
    folded = known[:rows] @ flat[: rows * WIDTH].view(rows, WIDTH)  # numpy's BLAS has own threads
    if rest:
        folded[:rest] += flat[rows * WIDTH :] * known[rows]
    made["sketch"] = folded.tolist()
    made["norm"] = float(torch.linalg.vector_norm(flat))
    return made


def apart(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Relative L2 distance of two values by their sketches (exact for up to 64 elements)."""
    if mine["shape"] != theirs["shape"] and len(mine["sketch"]) != len(theirs["sketch"]):
        return float("inf")
    a, b = np.asarray(mine["sketch"]), np.asarray(theirs["sketch"])
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    scale = max(theirs["norm"], 1e-30)
    error = float(np.linalg.norm(a - b)) / scale
    norms = abs(mine["norm"] - theirs["norm"]) / scale
    error = max(error, norms)
    return min(error, 1e300) if np.isfinite(error) else 1e300

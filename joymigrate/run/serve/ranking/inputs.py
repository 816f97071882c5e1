"""Random requests that a signature allows: for measurements and trials at the start."""

from __future__ import annotations

from typing import Any

import numpy as np

from joymigrate.run.serve.ranking.request import Arrays, RankingRequest, check
from joymigrate.run.serve.ranking.signature import (
    CANDIDATE,
    DERIVED,
    JAGGED,
    SEQUENCE,
    Input,
    ModelSignature,
)

UNKNOWN_IDS = 2  # ids below it exist in every table


def draw(signature: ModelSignature, candidates: int, length: int, seed: int = 0) -> RankingRequest:
    """A request of one user with so many candidates and so long a history."""
    random = np.random.default_rng(seed)
    arrays: Arrays = {}
    for one in signature.inputs:
        if one.role in DERIVED:
            continue
        first = candidates if one.axis == CANDIDATE else 1
        shape = [first, *(1 if size is None else size for size in one.shape[1:])]
        if one.role == SEQUENCE:
            shape[0 if one.layout == JAGGED else 1] = length
        if one.axis == "fixed":
            shape = [1 if size is None else size for size in one.shape]
        arrays[one.name] = values(one, tuple(shape), random)
    return check(signature, arrays)


def values(one: Input, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Numbers, flags, or ids within their bounds."""
    if one.held.startswith("float"):
        return random.standard_normal(shape).astype(one.held)
    if one.dtype == "bool":
        return random.random(shape) < 0.5
    high = UNKNOWN_IDS if one.ids is None else np.asarray(one.ids)
    return random.integers(0, high, shape).astype(one.dtype)

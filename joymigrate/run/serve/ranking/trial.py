"""Before the first request: is merging the same as answering alone, and what does it cost?

A model that compares a request's candidates with each other (a softmax over them, a norm over the
batch) must not be merged; padding must be masked. Both are tried here with random requests, not
believed. What was tried is said in the log; other inputs may still behave otherwise.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from joymigrate.run.serve.ranking.cost import CostModel
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import Engine, measure_request
from joymigrate.run.serve.ranking.merge import merge, mergeable
from joymigrate.run.serve.ranking.program import Program
from joymigrate.run.serve.ranking.request import Request
from joymigrate.run.serve.ranking.signature import Signature
from joymigrate.run.serve.ranking.tensors import as_arrays

log = logging.getLogger("joymigrate.serve")
# Candidates and lengths of the requests that are tried together: equal ones, one, many, none.
TRIED = ((1, 7), (3, 7), (5, 2), (4, 0), (17, 12))
TOLERANCE = 1e-5  # of the largest score; sums of another order differ by a few units of rounding
SHAPES = ((1, 1), (1, 64), (8, 8), (32, 1), (32, 32), (64, 128), (128, 16))
ROUNDS = 3


def try_merging(program: Program) -> tuple[Signature, str]:
    """The signature with what may be merged, and why not where it may not."""
    signature = program.signature
    if signature.alone:
        return signature, signature.alone
    requests = [draw_if_possible(signature, *size, seed) for seed, size in enumerate(TRIED)]
    usable = [request for request in requests if request is not None]
    equal = [one for one in usable if one.sizes.length == usable[0].sizes.length]
    if difference(program, signature, equal):
        return signature, "merged candidates score otherwise than alone: the model compares them"
    if difference(program, signature, usable):
        for one in signature.inputs:
            if one.pad is not None:
                log.warning("input '%s': padding changes scores; lengths are not mixed", one.name)
        without = tuple(replace(one, pad=None) for one in signature.inputs)
        signature = replace(signature, inputs=without, by_name={one.name: one for one in without})
    return signature, ""


def draw_if_possible(
    signature: Signature, candidates: int, length: int, seed: int
) -> Request | None:
    """A request, unless this model has no such length."""
    try:
        return draw(signature, candidates, length, seed)
    except Exception:
        return None


def difference(program: Program, signature: Signature, requests: list[Request]) -> bool:
    """Whether the merged answer differs from those of each alone."""
    together = [one for one in requests if mergeable(signature, requests[0], one)]
    alone = []
    kept = []
    for request in together:
        try:
            alone.append(as_arrays(program.run(request.arrays)))
        except Exception:
            continue  # a size that this program does not take
        kept.append(request)
    if len(kept) < 2:
        return False
    try:
        merged = merge(signature, kept)
        outputs = as_arrays(program.run(merged.arrays))
    except Exception:
        return True
    for (start, stop), single in zip(merged.spans, alone, strict=True):
        for part, whole in zip(single, outputs, strict=True):
            if not close(part, whole[start:stop]):
                return True
    return False


def close(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Equal but for rounding."""
    if left.shape != right.shape:
        return False
    scale = max(1.0, float(np.abs(left).max(initial=0.0)))
    return bool(np.allclose(left, right, rtol=0, atol=TOLERANCE * scale))


def fit(engine: Engine) -> None:
    """Teach the cost model requests of several sizes; the first round only warms up."""
    seen: list[tuple[Request, float]] = []
    for turn in range(ROUNDS + 1):
        if turn == 1:  # what the warm-up taught is forgotten
            engine.cost = CostModel()
            seen = []
        for place, (candidates, length) in enumerate(SHAPES):
            request = draw_if_possible(engine.program.signature, candidates, length, place)
            if request is None:
                continue
            try:
                seen.append((request, measure_request(engine, request)))
            except Exception:
                continue  # a size that this program does not take
    cost = engine.cost
    cost.errors.clear()  # those of a model that was still learning
    cost.errors.extend(seconds / cost.predict(one.sizes) for one, seconds in seen)
    log.info("cost: %d measurements, median error %.0f %%", len(seen), 100 * cost.error)

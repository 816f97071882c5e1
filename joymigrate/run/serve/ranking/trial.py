"""Before the first request: may requests be merged and cut, and what does it cost?

Whether the candidates of a request know of each other is proven on the program's graph (`proof`);
what is not proven is computed alone. Then both is tried: requests merged with themselves, with
equal ids, with long lists and histories. Whether padding is masked is tried, not proven.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joymigrate.run.serve.ranking import slicing
from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.cost import CostModel
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import RankingEngine, measure_request
from joymigrate.run.serve.ranking.merge import merge, mergeable
from joymigrate.run.serve.ranking.program import RankingProgram
from joymigrate.run.serve.ranking.proof import prove
from joymigrate.run.serve.ranking.proof.prove import Axes
from joymigrate.run.serve.ranking.proof.shapes import ROW
from joymigrate.run.serve.ranking.request import RankingRequest
from joymigrate.run.serve.ranking.results import RankingResult
from joymigrate.run.serve.ranking.signature import (
    CANDIDATE,
    JAGGED,
    LENGTHS,
    OFFSETS,
    OWNER,
    USER,
    ModelSignature,
)
from joymigrate.run.serve.ranking.tensors import as_arrays, close

log = logging.getLogger("joymigrate.serve")
# Candidates and lengths of the requests that are tried together: equal ones, one, many, none; long.
TRIED = ((1, 7), (3, 7), (5, 2), (4, 0), (17, 12))
LONG = ((700, 7), (300, 7), (5, 200))
CUT = 5  # of a request with twice so many candidates, and one
SHAPES = ((1, 1), (1, 64), (8, 8), (32, 1), (32, 32), (64, 128), (128, 16))
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Freedom:
    """What may be done with requests: why they are not merged, why none is cut, and how many
    candidates the program takes at most."""

    signature: ModelSignature
    alone: str = ""
    whole: str = ""
    most: int | None = None

    def limit(self, limits: BatchLimits) -> BatchLimits:
        """Batches that the program takes."""
        most = limits.candidates if self.most is None else min(limits.candidates, self.most)
        return replace(limits, candidates=most)


def find_freedom(program: RankingProgram) -> Freedom:
    """Prove what may be done, then try it."""
    signature = program.signature
    if signature.alone:
        return Freedom(signature, signature.alone, signature.alone)
    if program.exported is None:
        why = "a compiled package has no graph in which candidates could be told apart"
        return Freedom(signature, why, why)
    core, axes = prove.decompose(program.exported), axes_of(signature)
    merging, cutting = prove.prove(core, axes), prove.prove(core, prove.cut_only(axes))
    alone = f"candidates may know of each other: {merging.why}" if merging.why else ""
    whole = f"candidates may know of each other: {cutting.why}" if cutting.why else ""
    if not whole and differs_in_pieces(program):
        whole = "a request in pieces scores otherwise than whole"
    if not alone and any(differs(program, signature, some) for some in equal_lengths(signature)):
        alone = "merged candidates score otherwise than alone"
    if not alone and differs(program, signature, draw_each(signature, TRIED)):
        for one in signature.inputs:
            if one.pad is not None:
                log.warning("input '%s': padding changes scores; lengths are not mixed", one.name)
        without = tuple(replace(one, pad=None) for one in signature.inputs)
        signature = replace(signature, inputs=without, by_name={one.name: one for one in without})
    return Freedom(signature, alone, whole, merging.most)


def axes_of(signature: ModelSignature) -> Axes:
    """What the proof has to know of a signature's inputs."""
    names = {CANDIDATE: ROW, USER: USER}
    rows = {one.name: names.get(one.axis, f"token of {one.name}") for one in signature.inputs
            if one.axis in (CANDIDATE, USER, "token") and one.role != OFFSETS}  # fmt: skip
    cuts = {one.name: (rows[one.of], names[one.axis]) for one in signature.inputs
            if one.role in (LENGTHS, OFFSETS)
            and signature.by_name[one.of].layout == JAGGED}  # fmt: skip
    lengths = {name: cut for name, cut in cuts.items() if signature.by_name[name].role == LENGTHS}
    offsets = {name: cut for name, cut in cuts.items() if name not in lengths}
    places = {one.name: USER for one in signature.inputs if one.role == OWNER}
    return Axes(rows, places, lengths, offsets)


def equal_lengths(signature: ModelSignature) -> Iterator[list[RankingRequest]]:
    """Groups of requests with histories of one length that are tried together."""
    usual = draw_each(signature, [size for size in TRIED if size[1] == TRIED[0][1]])
    yield usual
    yield usual[1:2] * 2
    yield [with_equal_rows(signature, one) for one in usual]
    yield draw_each(signature, LONG[:2])
    yield draw_each(signature, LONG[2:] * 2)


def with_equal_rows(signature: ModelSignature, request: RankingRequest) -> RankingRequest:
    """The request with its first candidate in all places."""
    arrays = {one.name: np.repeat(request.arrays[one.name][:1], request.sizes.candidates, 0)
              if one.role == CANDIDATE else request.arrays[one.name]
              for one in signature.inputs}  # fmt: skip
    return replace(request, arrays=arrays)


def draw_each(signature: ModelSignature, sizes: Sequence[tuple[int, int]]) -> list[RankingRequest]:
    """Random requests of these sizes, as far as the model has them."""
    found = [draw_if_possible(signature, count, length, seed)
             for seed, (count, length) in enumerate(sizes)]  # fmt: skip
    return [request for request in found if request is not None]


def draw_if_possible(
    signature: ModelSignature, candidates: int, length: int, seed: int
) -> RankingRequest | None:
    """A request, unless this model has no such length."""
    try:
        return draw(signature, candidates, length, seed)
    except Exception:
        return None


def outputs_of(
    program: RankingProgram, request: RankingRequest
) -> tuple[np.ndarray[Any, Any], ...] | None:
    """The answer to a request alone; None for a size that this program does not take."""
    try:
        return as_arrays(program.run(request.arrays))
    except Exception:
        return None


def differs(
    program: RankingProgram, signature: ModelSignature, requests: list[RankingRequest]
) -> bool:
    """Whether the merged answer differs from those of each alone."""
    together = [one for one in requests if mergeable(signature, requests[0], one)]
    answered = [(one, found) for one in together if (found := outputs_of(program, one)) is not None]
    if len(answered) < 2:
        return False
    try:
        merged = merge(signature, [one for one, _ in answered])
        outputs = as_arrays(program.run(merged.arrays))
    except Exception:
        return True
    return not all(
        close(part, whole[start:stop])
        for (start, stop), (_, single) in zip(merged.spans, answered, strict=True)
        for part, whole in zip(single, outputs, strict=True)
    )


def differs_in_pieces(program: RankingProgram) -> bool:
    """Whether a request in pieces is answered otherwise than whole."""
    signature = program.signature
    request = draw_if_possible(signature, 2 * CUT + 1, TRIED[0][1], 0)
    single = outputs_of(program, request) if request is not None else None
    if request is None or single is None or not slicing.divisible(signature):
        return False
    found = [outputs_of(program, slicing.cut(signature, request, at, at + CUT))
             for at in range(0, 2 * CUT, CUT)]  # fmt: skip
    found.append(outputs_of(program, slicing.cut(signature, request, 2 * CUT, 2 * CUT + 1)))
    if any(part is None for part in found):
        return False
    joined = slicing.whole([RankingResult(part or (), "", 1, 0.0) for part in found])
    return not all(map(close, single, joined.outputs))


def fit(engine: RankingEngine) -> None:
    """Teach the cost model requests of several sizes; the first round only warms up."""
    seen: list[tuple[RankingRequest, float]] = []
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

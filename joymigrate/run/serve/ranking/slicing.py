"""A request that would hold a lane for long, in pieces of its candidates: others run between them.

Each piece brings the user's side again, so a request is left whole where that side is what costs.
Pieces are computed one after the other, by one version of the weights or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.cost import BatchSizes
from joymigrate.run.serve.ranking.request import RankingRequest
from joymigrate.run.serve.ranking.results import RankingResult
from joymigrate.run.serve.ranking.signature import CANDIDATE, LENGTHS, ModelSignature

LEAST = 256  # candidates of a piece
SLACK = 4.0  # a deadline nearer than so many times the predicted seconds: not cut
USER_SHARE = 0.5  # of a batch's time that the user's side may take in every piece


def pieces(
    signature: ModelSignature,
    request: RankingRequest,
    predict: Callable[[BatchSizes], float],
    limits: BatchLimits,
    now: float,
) -> list[RankingRequest]:
    """The request in pieces that each take about `limits.seconds`; itself where it is not cut."""
    count = request.sizes.candidates
    size = min(piece_size(request.sizes, predict, limits), limits.candidates)
    if size >= count or not divisible(signature):
        return [request]
    if request.deadline - now < SLACK * predict(request.sizes):
        return [request]
    size = math.ceil(count / math.ceil(count / size))  # pieces of one size
    return [cut(signature, request, at, min(at + size, count)) for at in range(0, count, size)]


def piece_size(
    sizes: BatchSizes, predict: Callable[[BatchSizes], float], limits: BatchLimits
) -> int:
    """How many candidates take about as long as one batch may."""
    whole = predict(sizes)
    if whole <= limits.seconds:
        return sizes.candidates
    users = predict(replace(sizes, candidates=1))
    if users > USER_SHARE * limits.seconds:
        return sizes.candidates
    each = (whole - users) / (sizes.candidates - 1)
    return max(LEAST, int((limits.seconds - users) / each))


def divisible(signature: ModelSignature) -> bool:
    """Whether candidates can be told apart: no sequence of tokens belongs to them."""
    return not any(
        one.axis == CANDIDATE and one.role == LENGTHS and signature.by_name[one.of].axis == "token"
        for one in signature.inputs
    )


def cut(
    signature: ModelSignature, request: RankingRequest, start: int, stop: int
) -> RankingRequest:
    """The request with the candidates from start to stop."""
    arrays = {
        one.name: request.arrays[one.name][start:stop]
        if one.axis == CANDIDATE
        else request.arrays[one.name]
        for one in signature.inputs
    }
    sizes = replace(request.sizes, candidates=stop - start)
    return RankingRequest(arrays, sizes, request.deadline, request.key)


def whole(found: Sequence[RankingResult]) -> RankingResult:
    """The results of all pieces, of one version, as one."""
    outputs = tuple(np.concatenate(parts) for parts in zip(*(one.outputs for one in found),
                                                           strict=True))  # fmt: skip
    degraded = tuple(dict.fromkeys(name for one in found for name in one.degraded))
    merged = max(one.merged for one in found)
    return RankingResult(
        outputs, found[0].version, merged, sum(one.seconds for one in found), degraded
    )

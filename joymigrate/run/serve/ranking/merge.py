"""Many requests as one batch, concatenated along the candidates; users of one key only once.

Jagged sequences stay jagged; padded ones get the batch's longest length, filled with the declared
padding, which the lengths mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joymigrate.run.serve.ranking.cost import BatchSizes
from joymigrate.run.serve.ranking.request import Arrays, RankingRequest
from joymigrate.run.serve.ranking.signature import (
    FIXED,
    OFFSETS,
    OWNER,
    PADDED,
    USER,
    Input,
    ModelSignature,
)


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """Merged arrays, the candidates of each request, and what the merging did."""

    arrays: Arrays
    spans: tuple[tuple[int, int], ...]
    sizes: BatchSizes
    waste: int = 0  # padding elements
    elements: int = 0  # of padded sequences, padding included
    shared: int = 0  # users that another request brought already
    bringers: tuple[RankingRequest, ...] = ()  # the requests that brought their users, in order


def mergeable(signature: ModelSignature, first: RankingRequest, other: RankingRequest) -> bool:
    """Whether two requests may become one batch."""
    if signature.alone:
        return False
    for one in signature.inputs:
        left, right = first.arrays[one.name], other.arrays[one.name]
        if one.axis == FIXED and not np.array_equal(left, right):
            return False
        start = 2 if one.layout == PADDED and one.pad is not None else 1
        if left.shape[start:] != right.shape[start:]:
            return False
    return True


def merge(signature: ModelSignature, requests: Sequence[RankingRequest]) -> MergedBatch:
    """One batch; `requests` are mergeable."""
    if len(requests) == 1:
        only = requests[0]
        held = sum(only.arrays[one.name].size for one in signature.inputs if one.layout == PADDED)
        whole = ((0, only.sizes.candidates),)
        return MergedBatch(only.arrays, whole, only.sizes, elements=held, bringers=(only,))
    owners, bases, users = place_users(signature, requests)
    waste = elements = 0
    arrays: Arrays = {}
    for one in signature.inputs:
        parts = [request.arrays[one.name] for request in requests]
        if one.axis in (USER, "token"):
            parts = [parts[place] for place in owners]
        if one.role == OWNER:
            shifted = [part + base for part, base in zip(parts, bases, strict=True)]
            arrays[one.name] = np.concatenate(shifted)
        elif one.role == OFFSETS:
            arrays[one.name] = join_offsets(parts)
        elif one.axis == FIXED:
            arrays[one.name] = parts[0]
        elif one.layout == PADDED:
            arrays[one.name], lost = pad(one, parts)
            waste, elements = waste + lost, elements + arrays[one.name].size
        else:
            arrays[one.name] = np.concatenate(parts)
    ends = np.cumsum([request.sizes.candidates for request in requests]).tolist()
    spans = tuple(zip([0, *ends[:-1]], ends, strict=True))
    longest = max(request.sizes.length for request in requests)
    tokens = sum(requests[place].sizes.tokens for place in owners)
    sizes = BatchSizes(ends[-1], users, longest, tokens)
    bringers = tuple(requests[place] for place in owners)
    return MergedBatch(arrays, spans, sizes, waste, elements, len(requests) - len(owners), bringers)


def place_users(
    signature: ModelSignature, requests: Sequence[RankingRequest]
) -> tuple[list[int], list[int], int]:
    """Which requests bring their users, the first user's row of each, and the users in all.

    A request with the key of another one, and equal user inputs, takes that one's rows. Equal
    inputs are looked at, not believed: a stale key gives nobody another user's scores.
    """
    sharing = any(one.role == OWNER for one in signature.inputs)
    seen: dict[str, int] = {}
    owners: list[int] = []
    bases: list[int] = []
    users = 0
    for place, request in enumerate(requests):
        earlier = seen.get(request.key) if sharing and request.key else None
        if earlier is not None and same_users(signature, requests[earlier], request):
            bases.append(bases[earlier])
            continue
        if request.key:
            seen[request.key] = place
        owners.append(place)
        bases.append(users)
        users += request.sizes.users
    return owners, bases, users


def same_users(signature: ModelSignature, left: RankingRequest, right: RankingRequest) -> bool:
    """Whether all inputs of the user side are equal."""
    return all(
        np.array_equal(left.arrays[one.name], right.arrays[one.name])
        for one in signature.inputs
        if one.axis in (USER, "token")
    )


def pad(one: Input, parts: Sequence[np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], int]:
    """Parts [n, L_i, …] as one [sum n, max L, …], and how many elements are padding."""
    longest = max(part.shape[1] for part in parts)
    if all(part.shape[1] == longest for part in parts):
        return np.concatenate(parts), 0
    rows = sum(part.shape[0] for part in parts)
    whole = np.full((rows, longest, *parts[0].shape[2:]), one.pad, one.held)
    start = 0
    for part in parts:
        whole[start : start + part.shape[0], : part.shape[1]] = part
        start += part.shape[0]
    return whole, whole.size - sum(part.size for part in parts)


def join_offsets(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Offsets of parts as offsets of the whole."""
    base = parts[0].dtype.type(0)
    whole = [parts[0][:1]]
    for part in parts:
        whole.append(part[1:] + base)
        base = base + part[-1]
    return np.concatenate(whole)

"""A batch padded to fixed sizes, so that one captured graph computes many batches.

Padded candidates belong to user 0, and their scores are cut off. Padded users have no history. The
padding tokens of a jagged sequence belong to a row of their own behind the batch's (a user's, or a
candidate's, where the lengths are of candidates): nobody's history gets longer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from joymigrate.run.serve.ranking.merge import Batch
from joymigrate.run.serve.ranking.request import Arrays
from joymigrate.run.serve.ranking.signature import (
    CANDIDATE,
    JAGGED,
    LENGTHS,
    OFFSETS,
    PADDED,
    SEQUENCE,
    USER,
    Input,
    Signature,
    derive,
)


class Key(NamedTuple):
    """The sizes that a batch is padded to."""

    candidates: int
    users: int
    length: int
    tokens: int  # of each jagged sequence


def least_sizes(signature: Signature, batch: Batch) -> Key:
    """The least sizes that hold a batch, with the rows that padding tokens belong to."""
    sizes = batch.sizes
    jagged = [one for one in signature.inputs if one.layout == JAGGED]
    axes = {described_by(signature, one).axis for one in jagged}
    tokens = max((len(batch.arrays[one.name]) for one in jagged), default=0)
    return Key(
        sizes.candidates + (CANDIDATE in axes), sizes.users + (USER in axes), sizes.length, tokens
    )


def described_by(signature: Signature, sequence: Input) -> Input:
    """The lengths or offsets of a jagged sequence."""
    return signature.by_name[derive(signature)[sequence.name]]


def blank(signature: Signature) -> Arrays:
    """Arrays of no candidate, no user and no length."""
    found = {}
    for one in signature.inputs:
        rows = 1 if one.role == OFFSETS else 0
        shape = [rows, *(0 if size is None else size for size in one.shape[1:])]
        found[one.name] = np.zeros(shape, one.held)
    return found


def pad_batch(signature: Signature, arrays: Arrays, key: Key) -> Arrays:
    """Arrays with exactly these sizes."""
    found = {}
    for one in signature.inputs:
        array = arrays[one.name]
        if one.role in (LENGTHS, OFFSETS):
            found[one.name] = pad_lengths(signature, one, arrays, key)
            continue
        shape = list(array.shape)
        shape[0] = {CANDIDATE: key.candidates, USER: key.users}.get(one.axis, key.tokens)
        if one.role == SEQUENCE and one.layout == PADDED and one.shape[1] is None:
            shape[1] = key.length
        value = one.pad if one.role == SEQUENCE and one.pad is not None else 0
        whole = np.full(shape, value, one.held)
        whole[tuple(slice(0, size) for size in array.shape)] = array
        found[one.name] = whole
    return found


def pad_lengths(signature: Signature, one: Input, arrays: Arrays, key: Key) -> np.ndarray[Any, Any]:
    """Lengths or offsets of a padded batch; the first padded row has the padding tokens."""
    array, sequence = arrays[one.name], signature.by_name[one.of]
    rows = key.candidates if one.axis == CANDIDATE else key.users
    spare = key.tokens - len(arrays[one.of]) if sequence.layout == JAGGED else 0
    if one.role == LENGTHS:
        whole = np.zeros([rows, *array.shape[1:]], one.held)
        whole[: len(array)] = array
        if spare:
            whole[len(array)] = spare
        return whole
    last = array[-1] if len(array) else 0
    whole = np.full(rows + 1, last + spare, one.held)
    whole[: len(array)] = array
    return whole

"""Texts where a model takes ids: hashed as training hashes them, or looked up in a vocabulary.

The description says which inputs take texts. Ids go on being taken there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.serve.kserve.tensors import refuse
from joymigrate.run.serve.ranking.request import Arrays
from joymigrate.run.serve.ranking.signature import HASH, Input, ModelSignature


def as_ids(signature: ModelSignature, arrays: Mapping[str, Any]) -> Arrays:
    """The arrays of a request with every array of texts as ids; raises `HttpRefusal`."""
    return {
        name: ids_of(signature.by_name[name], array)
        if array.dtype == object and name in signature.by_name
        else array
        for name, array in arrays.items()
    }


def ids_of(one: Input, texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ids of the input's type, of the texts' shape."""
    if not one.texts and not one.vocabulary:
        raise refuse(one.name, f"texts came, it takes {one.dtype}: its description has no `texts`")
    if not all(isinstance(text, str) for text in texts.flat):
        raise refuse(one.name, "texts and numbers are mixed")
    ids = hash_texts(one, texts) if one.texts == HASH else looked_up(one, texts)
    return ids.astype(one.dtype)


def hash_texts(one: Input, texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the training's features make of these texts: SipHash, modulo the rows of the table."""
    from pandas.util import hash_array

    hashes = hash_array(texts.ravel(), categorize=False).reshape(texts.shape)
    rows = np.asarray(one.ids, np.uint64)  # one bound, or one for each column
    if rows.ndim and texts.shape[-1:] != rows.shape:
        raise refuse(one.name, f"{rows.size} columns go in, {list(texts.shape)} came")
    found: np.ndarray[Any, Any] = hashes % rows
    return found


def looked_up(one: Input, texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Places in the vocabulary; a text that is not in it has the id `unknown`, where one is."""
    places = one.vocabulary
    found = np.empty(texts.shape, np.int64)
    for at, text in np.ndenumerate(texts):
        place = places.get(text, one.unknown)
        if place is None:
            raise refuse(one.name, f"{text[:60]!r} is not in the vocabulary")
        found[at] = place
    return found


def check(signature: ModelSignature, where: str) -> None:
    """Descriptions of texts that can be served. Raises `JoyError`."""
    for one in signature.inputs:
        if not one.texts and not one.vocabulary:
            continue
        if not one.dtype.startswith(("int", "uint")):
            raise JoyError(f"input '{one.name}' is {one.dtype}: texts become whole numbers",
                           where=where)  # fmt: skip
        if one.texts and one.vocabulary:
            raise JoyError(f"input '{one.name}' has `texts: {HASH}` and a vocabulary",
                           where=where, help="one of both")  # fmt: skip
        if one.texts and one.ids is None:
            raise JoyError(f"input '{one.name}' has `texts: {HASH}`, and nobody knows its rows",
                           where=where, help='"ids": rows of the table')  # fmt: skip
        known = [*one.vocabulary.values(), *([] if one.unknown is None else [one.unknown])]
        if isinstance(one.ids, int) and known and not 0 <= min(known) <= max(known) < one.ids:
            raise JoyError(f"input '{one.name}': the vocabulary reaches {max(known)}, ids go from "
                           f"0 to {one.ids - 1}", where=where)  # fmt: skip

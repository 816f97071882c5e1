"""What a model's inputs are called in KServe's protocol, and how plain JSON names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from joymigrate.run.serve.kserve.tensors import (
    BYTES,
    NAMES,
    Array,
    from_values,
    refuse,
    text_array,
    unnest,
)
from joymigrate.run.serve.ranking.signature import Input, ModelSignature
from joymigrate.run.serve.web.errors import HttpRefusal


def datatype_of(one: Input) -> str:
    """What an input is called in the protocol: texts where it takes them, its ids' type else."""
    return BYTES if one.texts or one.vocabulary else NAMES.get(one.dtype, one.dtype.upper())


def sizes_of(one: Input) -> tuple[int, ...]:
    """Its shape, -1 where a size is free."""
    return tuple(-1 if size is None else size for size in one.shape)


def read_values(signature: ModelSignature, inputs: Any) -> dict[str, Array]:
    """The arrays of the small JSON endpoint: `{"input": nested lists}`."""
    if not isinstance(inputs, dict):
        raise HttpRefusal(400, 'inputs is an object: {"name": values}', param="inputs")
    found = {}
    for name, values in inputs.items():
        one = signature.by_name.get(name)
        if one is None:
            names = ", ".join(signature.by_name)
            raise refuse(name, f"the model has no such input; it has {names}")
        if not isinstance(values, list):
            raise refuse(name, "the values are a list")
        texts = nested_texts(name, values)
        if texts is not None:
            found[name] = texts
            continue
        array = from_values(name, np.dtype(one.held), None, values)
        empty = array.size == 0 and array.ndim < len(one.shape)
        if empty:  # [] and [[]] do not tell their other sizes
            known = [0 if size is None else size for size in one.shape]
            rows = array.shape[0] if array.ndim > 1 else 0
            array = array.reshape([rows, *known[1:]])
        found[name] = array
    return found


def nested_texts(name: str, values: Sequence[Any]) -> Array | None:
    """Nested lists of texts as an array; None for anything else."""
    row = values
    while row and isinstance(row[0], list):
        row = row[0]
    if not row or not isinstance(row[0], str):
        return None
    shape, texts = unnest(name, values)
    return text_array(name, texts, shape)

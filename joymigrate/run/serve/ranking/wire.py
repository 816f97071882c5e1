"""Tensors of the KServe v2 protocol as numpy arrays: views of the body where they came as bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from joymigrate.run.serve.engine.http.triton.tensors import BYTES, NUMBERS, unpack_elements
from joymigrate.run.serve.ranking.signature import BFLOAT16, Input, ModelSignature
from joymigrate.run.serve.ranking.tensors import writable_in_json
from joymigrate.run.serve.web.errors import HttpRefusal

BF16 = "BF16"
MOST_DIMENSIONS = 32  # numpy has no more than 64
Array = np.ndarray[Any, Any]
TYPES = {name: np.dtype(code) for name, code in NUMBERS.items()}
NAMES = {kind.name: name for name, kind in TYPES.items()} | {BFLOAT16: BF16}


def refuse(name: str, message: str) -> HttpRefusal:
    """400 that names the input."""
    return HttpRefusal(400, f"input '{name}': {message}", param=name)


def datatype_of(one: Input) -> str:
    """What an input is called in the protocol: texts where it takes them, its ids' type else."""
    return BYTES if one.texts or one.vocabulary else NAMES.get(one.dtype, one.dtype.upper())


def kind_of(name: str, datatype: Any) -> np.dtype[Any]:
    """The array type of a KServe datatype; texts are objects."""
    if datatype == BYTES:
        return np.dtype(object)
    kind = TYPES["FP32"] if datatype == BF16 else TYPES.get(str(datatype))
    if kind is None:
        raise refuse(name, f"datatype is {', '.join((*TYPES, BF16, BYTES))}, got {datatype!r}")
    return kind


def shape_of(name: str, raw: Any) -> tuple[int, ...]:
    """A checked shape."""
    if not isinstance(raw, list) or not all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**40 for size in raw
    ):
        raise refuse(name, f"shape is a list of sizes, got {raw!r}")
    if len(raw) > MOST_DIMENSIONS:
        raise refuse(name, f"the shape has {len(raw)} dimensions, at most {MOST_DIMENSIONS} go")
    return tuple(raw)


def from_bytes(
    name: str, kind: np.dtype[Any], shape: Sequence[int], data: Any, datatype: str = ""
) -> Array:
    """A view of raw little-endian bytes; bfloat16 becomes float32, which holds it exactly."""
    if datatype == BF16:
        halves = from_bytes(name, np.dtype("<u2"), shape, data)
        return (halves.astype(np.uint32) << 16).view(np.float32)
    if datatype == BYTES:
        return text_array(name, unpack_elements(memoryview(data), BYTES, name), shape)
    wanted = math.prod(shape) * kind.itemsize
    if len(data) != wanted:
        raise refuse(name, f"shape {list(shape)} is {wanted} bytes, {len(data)} came")
    return np.frombuffer(data, kind).reshape(shape)


def from_values(name: str, kind: np.dtype[Any], shape: Sequence[int] | None, values: Any) -> Array:
    """Numbers of a JSON list, nested or in row order, of the type that the input has."""
    if kind.hasobject:
        return text_array(name, unnest(name, values)[1], shape)
    try:
        found = np.array(values)
    except ValueError:
        raise refuse(name, "the rows have different lengths") from None
    if found.size == 0:
        found = found.astype(kind)
    allowed = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}[kind.kind]
    if found.dtype.kind not in allowed or (allowed != "b" and has_flags(values)):
        raise refuse(name, f"the values are no {kind.name}")
    if kind.kind in "iu" and found.size:
        limits = np.iinfo(kind)
        if found.min() < limits.min or found.max() > limits.max:
            raise refuse(name, f"a value does not fit into {kind.name}")
    if shape is not None:
        if found.size != math.prod(shape):
            raise refuse(name, f"shape {list(shape)} has {math.prod(shape)} elements, "
                         f"{found.size} came")  # fmt: skip
        found = found.reshape(shape)
    with np.errstate(over="ignore"):
        return found.astype(kind)


def text_array(name: str, values: Sequence[Any], shape: Sequence[int] | None) -> Array:
    """Texts as an array of objects."""
    if shape is None or len(values) != math.prod(shape):
        raise refuse(name, f"shape {list(shape or ())} has {math.prod(shape or ())} elements, "
                     f"{len(values)} came")  # fmt: skip
    found = np.empty(len(values), object)
    found[:] = values
    if not all(isinstance(one, str) for one in values):
        raise refuse(name, "an element is no text")
    return found.reshape(shape)


def text_of(name: str, raw: bytes) -> str:
    """A text of UTF-8 bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise refuse(name, "a text is not UTF-8") from None


def nested_texts(name: str, values: Sequence[Any]) -> Array | None:
    """Nested lists of texts as an array; None for anything else."""
    row = values
    while row and isinstance(row[0], list):
        row = row[0]
    if not row or not isinstance(row[0], str):
        return None
    shape, texts = unnest(name, values)
    return text_array(name, texts, shape)


def unnest(name: str, values: Sequence[Any]) -> tuple[list[int], Sequence[Any]]:
    """The shape of nested lists, and their elements in row order."""
    shape = [len(values)]
    while values and all(isinstance(row, list) for row in values):
        if len(set(map(len, values))) > 1:
            raise refuse(name, "the rows have different lengths")
        shape.append(len(values[0]))
        values = list(itertools.chain.from_iterable(values))
    return shape, values


def has_flags(values: Any) -> bool:
    """Whether true or false stands in nested lists: among numbers numpy takes them for 1 and 0."""
    kinds = set(map(type, values))
    while list in kinds and kinds == {list}:
        values = list(itertools.chain.from_iterable(values))
        kinds = set(map(type, values))
    return bool in kinds


def read_inputs(header: Mapping[str, Any], binary: memoryview) -> dict[str, Array]:
    """The input arrays of an infer request; raises `HttpRefusal`."""
    raw = header.get("inputs")
    if not isinstance(raw, list) or not raw:
        raise HttpRefusal(400, "inputs is a list of at least one tensor", param="inputs")
    found: dict[str, Array] = {}
    used = 0
    for place, one in enumerate(raw):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise HttpRefusal(400, f"inputs[{place}] is an object with a name", param="inputs")
        name = one["name"]
        if name in found:
            raise refuse(name, "it is there twice")
        kind, shape = kind_of(name, one.get("datatype")), shape_of(name, one.get("shape"))
        parameters = one.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            if not isinstance(one.get("data"), list):
                raise refuse(name, "it has no data")
            found[name] = from_values(name, kind, shape, one["data"])
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise refuse(name, f"binary_data_size is {size!r}")
        if used + size > len(binary):
            raise refuse(name, f"binary_data_size is {size}, {len(binary) - used} bytes are left")
        found[name] = from_bytes(name, kind, shape, binary[used : used + size],
                                 one["datatype"])  # fmt: skip
        used += size
    if used != len(binary):
        raise HttpRefusal(
            400, f"{len(binary) - used} bytes behind the inputs belong to none of them"
        )
    return found


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


def write(
    head: Mapping[str, Any], outputs: Mapping[str, Array], binary: Mapping[str, bool]
) -> tuple[bytes, int | None]:
    """A response body, and the length of its JSON part when bytes follow."""
    rows, tail = [], []
    for name, array in outputs.items():
        row: dict[str, Any] = {
            "name": name, "datatype": NAMES[array.dtype.name], "shape": list(array.shape)
        }  # fmt: skip
        if binary[name]:
            data = np.ascontiguousarray(array)
            row["parameters"] = {"binary_data_size": data.nbytes}
            tail.append(data.data)
        else:
            row["data"] = writable_in_json(array).ravel().tolist()
        rows.append(row)
    header = orjson.dumps({**head, "outputs": rows})
    if not tail:
        return header, None
    return b"".join([header, *tail]), len(header)

"""Tensors of the KServe v2 protocol as numpy arrays: views of the body where they came as bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from joymigrate.run.serve.web.errors import HttpRefusal

BYTES = "BYTES"
BF16 = "BF16"
NUMBERS = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
MOST_DIMENSIONS = 32  # numpy has no more than 64
Array = np.ndarray[Any, Any]
TYPES = {name: np.dtype(code) for name, code in NUMBERS.items()}
NAMES = {kind.name: name for name, kind in TYPES.items()} | {"bfloat16": BF16, "object": BYTES}


def refuse(name: str, message: str) -> HttpRefusal:
    """400 that names the input."""
    return HttpRefusal(400, f"input '{name}': {message}", param=name)


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
        return text_array(name, unpack_texts(name, memoryview(data)), shape)
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
    for one in values:
        if not isinstance(one, str):
            raise refuse(name, f"{one!r:.40} is no text: no element of type {BYTES}")
    return found.reshape(shape)


def text_of(name: str, raw: bytes) -> str:
    """A text of UTF-8 bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise refuse(name, "a text is not UTF-8") from None


def unpack_texts(name: str, data: memoryview) -> list[str]:
    """Texts of binary data: each has its length in four bytes before it."""
    texts: list[str] = []
    place = 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "little")
        place += 4
        if place + size > len(data):
            raise refuse(name, "a text or its length is cut off")
        texts.append(text_of(name, bytes(data[place : place + size])))
        place += size
    return texts


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


def header_of(body: bytes, length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON part of a body, and the binary part behind it."""
    size = len(body)
    if length is not None:
        if not length.strip().isdigit() or int(length) > len(body):
            raise HttpRefusal(
                400,
                f"Inference-Header-Content-Length is {length!r}, the body has {len(body)} bytes",
            )
        size = int(length)
    try:
        found = orjson.loads(body[:size])
    except orjson.JSONDecodeError as error:
        raise HttpRefusal(400, f"the request is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise HttpRefusal(400, "the request is a JSON object")
    return found, memoryview(body)[size:]


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
            data = bytes_of(array)
            row["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            row["data"] = writable_in_json(array).ravel().tolist()
        rows.append(row)
    header = orjson.dumps({**head, "outputs": rows})
    return b"".join([header, *tail]), len(header) if tail else None


def bytes_of(array: Array) -> bytes:
    """An array's binary form."""
    if not array.dtype.hasobject:
        return array.tobytes()
    raw = [text.encode() for text in array.ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in raw)


def writable_in_json(array: Array) -> Array:
    """Numbers as JSON can say them: minus infinity (an item out of stock) as the lowest number."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array
    return np.where(np.isneginf(array), np.finfo(array.dtype).min, array).astype(array.dtype)

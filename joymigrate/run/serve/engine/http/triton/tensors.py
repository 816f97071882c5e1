"""Tensors of the KServe v2 protocol: JSON and binary, all data types, both ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import orjson

from joymigrate.run.serve.web.errors import HttpRefusal

BYTES = "BYTES"
NUMBERS: dict[str, str] = {
    "BOOL": "?",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
MAX_ELEMENTS = 2**20


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A named tensor; `values` are its elements in row order (text as str, numbers, flags)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


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


def read_inputs(header: dict[str, Any], binary: memoryview) -> list[NamedTensor]:
    """The input tensors, in their order; raises `HttpRefusal`."""
    raw = header.get("inputs")
    if not isinstance(raw, list) or not raw:
        raise HttpRefusal(400, "inputs is a list of at least one tensor")
    found: list[NamedTensor] = []
    used = 0
    for place, one in enumerate(raw):
        if not isinstance(one, dict):
            raise HttpRefusal(400, f"inputs[{place}] is an object")
        tensor, took = read_input(one, place, binary[used:])
        if tensor.name in [other.name for other in found]:
            raise HttpRefusal(400, f"input '{tensor.name}' is there twice")
        found.append(tensor)
        used += took
    if used != len(binary):
        raise HttpRefusal(
            400, f"{len(binary) - used} bytes behind the inputs belong to none of them"
        )
    return found


def read_input(raw: dict[str, Any], place: int, binary: memoryview) -> tuple[NamedTensor, int]:
    """One tensor, and how many of the binary bytes were its."""
    name, datatype = raw.get("name"), raw.get("datatype")
    if not isinstance(name, str):
        raise HttpRefusal(400, f"inputs[{place}].name is a string")
    if datatype != BYTES and datatype not in NUMBERS:
        raise HttpRefusal(
            400, f"input '{name}': datatype is {BYTES}, {', '.join(NUMBERS)}, got {datatype!r}"
        )
    shape = shape_of(raw.get("shape"), name)
    count = math.prod(shape)
    parameters = raw.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        data = flat(raw.get("data"))
        if data is None:
            raise HttpRefusal(400, f"input '{name}' has no data")
        values, took = check_elements(data, str(datatype), name), 0
    else:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
            raise HttpRefusal(400, f"input '{name}': binary_data_size is {size!r}, "
                              f"{len(binary)} bytes are left")  # fmt: skip
        values, took = unpack_elements(binary[:size], str(datatype), name), size
    if len(values) != count:
        raise HttpRefusal(
            400, f"input '{name}': shape {list(shape)} has {count} elements, {len(values)} came"
        )
    return NamedTensor(name, str(datatype), shape, tuple(values)), took


def shape_of(raw: Any, name: str) -> tuple[int, ...]:
    """A checked shape."""
    good = isinstance(raw, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in raw
    )
    if not good or math.prod(raw) > MAX_ELEMENTS:
        raise HttpRefusal(400, f"input '{name}': shape is a list of sizes, got {raw!r}")
    return tuple(raw)


def flat(data: Any) -> list[Any] | None:
    """Nested lists in row order; None for what is no list."""
    if not isinstance(data, list):
        return None
    rows: list[Any] = data
    while rows and all(isinstance(row, list) for row in rows):
        rows = [item for row in rows for item in row]
    return rows


def check_elements(data: list[Any], datatype: str, name: str) -> list[Any]:
    """JSON elements of the type that the tensor names."""
    for item in data:
        flag = isinstance(item, bool)
        good = (
            isinstance(item, str)
            if datatype == BYTES
            else flag
            if datatype == "BOOL"
            else isinstance(item, int | float) and not flag
            if datatype.startswith("FP")
            else isinstance(item, int) and not flag
        )
        if not good:
            raise HttpRefusal(400, f"input '{name}': {item!r} is no element of type {datatype}")
    return data


def unpack_elements(data: memoryview, datatype: str, name: str) -> list[Any]:
    """Elements of binary data, little endian; texts have a length of four bytes before them."""
    if datatype != BYTES:
        width = numpy.dtype(NUMBERS[datatype]).itemsize
        if len(data) % width:
            raise HttpRefusal(
                400, f"input '{name}': {len(data)} bytes are no whole {datatype} tensor"
            )
        numbers: list[Any] = numpy.frombuffer(data, NUMBERS[datatype]).tolist()
        return numbers
    texts: list[Any] = []
    place = 0
    while place < len(data):
        if place + 4 > len(data):
            raise HttpRefusal(400, f"input '{name}': a text's length is cut off")
        size = int.from_bytes(data[place : place + 4], "little")
        place += 4
        if place + size > len(data):
            raise HttpRefusal(400, f"input '{name}': a text of {size} bytes is cut off")
        try:
            texts.append(bytes(data[place : place + size]).decode())
        except UnicodeDecodeError:
            raise HttpRefusal(400, f"input '{name}': a text is not UTF-8") from None
        place += size
    return texts


def pack_tensor(tensor: NamedTensor) -> bytes:
    """A tensor's binary form."""
    if tensor.datatype != BYTES:
        return numpy.array(tensor.values, NUMBERS[tensor.datatype]).tobytes()
    raw = [str(text).encode() for text in tensor.values]
    return b"".join(len(text).to_bytes(4, "little") + text for text in raw)


def write_body(
    head: dict[str, Any], outputs: Sequence[NamedTensor], binary: Sequence[bool]
) -> tuple[bytes, int | None]:
    """A response body, and the length of its JSON part when binary data follows."""
    rows, tail = [], []
    for tensor, as_bytes in zip(outputs, binary, strict=True):
        row: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if as_bytes:
            data = pack_tensor(tensor)
            row["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            row["data"] = list(tensor.values)
        rows.append(row)
    header = orjson.dumps({**head, "outputs": rows})
    return header + b"".join(tail), len(header) if tail else None

"""Reads operator calls: the recorder's JSONL, or a Chrome trace with shapes and concrete inputs."""

from __future__ import annotations

import ast
import gzip
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.verify.bundle import Rank, open_bundle
from joymigrate.verify.ops.call import Named, ReplayCall, TensorArg, key, parse

SCHEMA = "joymigrate.trace/1"
LINES, TENSORS = "ops.jsonl", "ops-arguments.safetensors"  # in a bundle
HELP = "record one: joymigrate profile record -o NAME -- python train.py"
NAME = re.compile(r"\w+::\w+(\.\w+)?")  # not torch::autograd::AccumulateGrad
# Chrome's names of C++ types.
TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}


def read_calls(path: Path) -> list[ReplayCall]:
    """Distinct calls in the order of their first occurrence; `JoyError` for other files."""
    data = content(path)
    head = data[:4096].lstrip()
    if head.startswith(b"{") and SCHEMA.encode() in head.split(b"\n", 1)[0]:
        found = from_jsonl(data, path)
    elif head.startswith((b"{", b"[")):
        found = from_chrome(data, path)
    else:
        raise JoyError("neither a trace nor a bundle", where=str(path), help=HELP)
    calls = distinct(found)
    if not calls:
        raise JoyError(
            "there is no operator call in this trace",
            where=str(path),
            help="a Chrome trace needs record_shapes=True; or " + HELP,
        )
    return calls


def content(path: Path) -> bytes:
    """The file's bytes, unpacked."""
    if is_bundle(path):
        path = in_bundle(path).file(LINES)
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        what = getattr(error, "strerror", None) or error
        raise JoyError(f"cannot read the trace: {what}", where=str(path), help=HELP) from None


def in_bundle(path: Path) -> Rank:
    """The part of a bundle that holds operators' calls, and their arguments."""
    rank = open_bundle(path).ranks[0]
    if not rank.has(LINES):
        raise JoyError(
            "this bundle holds no operator calls",
            where=str(path),
            help="record with --arguments 'aten::*' (operators or modules), or give a trace: "
            + HELP,
        )
    return rank


def is_bundle(path: Path) -> bool:
    """Whether a path is a bundle: a folder, or its tar."""
    return path.is_dir() or (path.is_file() and tarfile.is_tarfile(path))


def distinct(calls: Iterable[ReplayCall]) -> list[ReplayCall]:
    """Equal calls as one, with their number added up."""
    found: dict[Any, ReplayCall] = {}
    for call in calls:
        if call.op.startswith("profiler::"):
            continue  # a mark in the trace, no operator
        known = found.get(key(call))
        if known is None:
            found[key(call)] = call
            continue
        found[key(call)] = replace(known, calls=known.calls + call.calls)
    return list(found.values())


def from_jsonl(data: bytes, path: Path) -> Iterator[ReplayCall]:
    """The lines of kind `op`."""
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            if raw.get("kind") != "op":
                continue
            yield ReplayCall(
                str(raw["op"]),
                str(raw.get("overload") or ""),
                tuple(parse(item) for item in raw["args"]),
                {name: parse(item) for name, item in raw.get("kwargs", {}).items()},
                int(raw.get("calls", 1)),
                raw.get("phase"),
                raw.get("where"),
                raw.get("module"),
                tuple(str(name) for name in raw.get("results", [])),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JoyError(
                f"not a line of a trace: {type(error).__name__} {error}",
                where=f"{path}:{number}",
                help=HELP,
            ) from None


def from_chrome(data: bytes, path: Path) -> Iterator[ReplayCall]:
    """The operator events of a Chrome trace."""
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise JoyError(f"not JSON: {error}", where=str(path), help=HELP) from None
    events = raw.get("traceEvents", []) if isinstance(raw, dict) else raw
    for event in events:
        if not isinstance(event, dict) or event.get("cat") not in ("cpu_op", "Operator"):
            continue
        arguments = event.get("args") or {}
        if not NAME.fullmatch(str(event.get("name"))) or "Input Dims" not in arguments:
            continue
        yield chrome_call(str(event["name"]), arguments)


def chrome_call(name: str, arguments: Mapping[str, Any]) -> ReplayCall:
    """One event. Arguments are positional there, keywords too; the overload is not relied on."""
    name = name.partition(".")[0]
    dims = arguments.get("Input Dims") or []
    types = arguments.get("Input type") or []
    strides = arguments.get("Input Strides") or [None] * len(dims)
    concrete = arguments.get("Concrete Inputs") or [""] * len(dims)
    rows = zip(dims, types, strides, concrete, strict=False)
    return ReplayCall(name, None, tuple(chrome_argument(*row) for row in rows))


def chrome_argument(dims: Any, kind: str, stride: Any, text: str) -> Any:
    """One input: a tensor by its type, a list of tensors, or a value by its text."""
    if kind in TYPES:
        shape = tuple(dims)
        return TensorArg(TYPES[kind], shape, tuple(stride) if stride else None if shape else ())
    if kind == "TensorList":
        strides = stride or [None] * len(dims)
        return [
            TensorArg("float32", tuple(d), tuple(s) if s else None)
            for d, s in zip(dims, strides, strict=False)
        ]
    return value_of(str(text))


def value_of(text: str) -> Any:
    """`[2, 2]`, `1`, `0.5`, `True` as values; an empty text is None; others are names."""
    if text == "":
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    try:
        return float(text)  # inf, -inf, nan
    except ValueError:
        return Named(text)

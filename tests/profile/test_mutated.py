"""Damaged traces: one error or an answer, never a traceback, and bounded memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.profile import readers
from joymigrate.profile.coverage import cover
from joymigrate.profile.oplist import of

ODD: list[Any] = [
    None, -1, 0, 1e308, -1e308, 1 << 70, "", "x", "NaN", [], {}, [[]], {"a": []}, True, "9" * 40,
    [None], "\ud800", {"Input Dims": 3},
]  # fmt: skip


def chrome() -> bytes:
    """A small trace of torch's profiler with operators, launches, kernels and a graph."""
    events: list[dict[str, Any]] = []
    for index, name in enumerate(("aten::linear", "aten::addmm", "aten::lgamma", "vllm::rms_norm")):
        at = 100 * index
        events += [
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 50,
             "args": {"External id": index, "Input Dims": [[4, 4], [4]], "Input type": ["float"],
                      "Sequence number": index, "Fwd thread id": 0}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
             "ts": at + 5, "dur": 2, "args": {"correlation": index, "External id": index}},
            {"ph": "X", "cat": "kernel", "name": f"kernel_{index}", "pid": 0, "tid": 7,
             "ts": at + 20, "dur": 9, "args": {"correlation": index, "stream": 7}},
        ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "ts": 500,
         "dur": 2, "args": {"correlation": 90}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_PreMulSum_f32", "pid": 0,
         "tid": 8, "ts": 520, "dur": 9, "args": {"correlation": 90, "stream": 8}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 8, "ts": 540,
         "dur": 3, "args": {"correlation": 91, "bytes": 64}},
    ]  # fmt: skip
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def execution() -> bytes:
    """A small execution trace."""
    nodes = [
        {"id": n, "name": f"aten::{op}", "ctrl_deps": 1, "inputs": {"values": [[1, 1, 0]],
         "shapes": [[2, 2]], "types": ["Tensor(float)"]},
         "outputs": {"values": [], "shapes": [[2, 2]], "types": ["Tensor(float)"]},
         "attrs": [{"name": "op_schema", "type": "string", "value": f"aten::{op}(Tensor x)"}]}
        for n, op in enumerate(("relu", "mm", "lgamma"), 2)
    ]  # fmt: skip
    return json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes}).encode()


def recorded() -> bytes:
    """A small recording of ours."""
    tensor = {"dtype": "float32", "shape": [4, 4], "stride": [4, 1], "device": "cpu"}
    lines: list[dict[str, Any]] = [{"schema": "joymigrate.trace/1", "device": "cpu", "steps": 1}]
    for number, op in enumerate(("mm", "lgamma", "linalg_cholesky_ex")):
        lines.append({"kind": "op", "id": number, "op": f"aten::{op}", "overload": "", "calls": 2,
                      "args": [tensor, tensor], "self_us": 5, "phase": "forward", "where": "a.py:1",
                      "parents": ["aten::linear"]})  # fmt: skip
    sparse = {**tensor, "layout": "sparse_coo", "stride": []}
    lines.append({"kind": "seen", "op": "c10d::allreduce_band", "overload": "", "calls": 1,
                  "args": [[sparse, {**tensor, "dtype": "int64"}]], "kwargs": {"reduce_op": "band"},
                  "phase": "eval", "exact": False})  # fmt: skip
    lines.append({"kind": "watched", "until": "exit", "shapes": 2, "calls": 3, "module": "M"})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


SOURCES = {"chrome": chrome(), "execution": execution(), "recorded": recorded()}


def values(data: Any) -> list[tuple[Any, Any]]:
    """Every place of a document, as (container, key)."""
    found: list[tuple[Any, Any]] = []
    stack = [data]
    while stack:
        one = stack.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one)
        for key, value in list(items):
            found.append((one, key))
            if isinstance(value, (dict, list)):
                stack.append(value)
    return found


def mutated(kind: str, chance: random.Random) -> bytes:
    """A source with one to three places damaged, as text or as a document."""
    data = bytearray(SOURCES[kind])
    how = chance.randrange(5)
    if how == 0:
        return bytes(data[: chance.randrange(len(data))])
    if how == 1:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)
    if how == 2:
        at, length = chance.randrange(len(data)), chance.randrange(60)
        return bytes(data[:at] + data[at + length :] + data[at : at + length])
    lines = [bytes(data)] if kind != "recorded" else bytes(data).splitlines()
    documents = [json.loads(line) for line in lines]
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(values(documents)[1:] or values(documents))
        if isinstance(holder, dict) and how == 3:
            holder.pop(key, None)
        elif not isinstance(holder, dict) or key in holder:
            holder[key] = chance.choice(ODD)
    return b"\n".join(json.dumps(one).encode() for one in documents) + b"\n"


def survive(count: int, seed: int, folder: Path) -> tuple[int, int]:
    """Answers and errors of that many damaged traces."""
    chance, oplist = random.Random(seed), of("ascend")
    answered = refused = 0
    for number in range(count):
        path = folder / f"{number % 7}.json"
        path.write_bytes(mutated(chance.choice(sorted(SOURCES)), chance))
        try:
            found = cover([readers.read(path)], oplist)
        except JoyError:
            refused += 1
            continue
        share = found.share.time
        assert share is None or -1e-9 <= share <= 1 + 1e-9, path.read_bytes()
        answered += 1
    return answered, refused


@pytest.mark.dear
def test_damaged_traces_are_answered_or_refused(tmp_path: Path) -> None:
    answered, refused = survive(150, 0, tmp_path)
    assert answered
    assert refused


@pytest.mark.slow
def test_ten_thousand_damaged_traces(tmp_path: Path) -> None:
    of("ascend")
    tracemalloc.start()
    survive(10_000, 1, tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()

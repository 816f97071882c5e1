"""Inputs to try a model with: given in a file, or drawn within what its tables can look up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.tensorflow.graph import Graph, Ref, SignatureTensor
from joymigrate.run.tensorflow.operators.example import write_example
from joymigrate.run.tensorflow.records import read_records

ROWS = 64
OPEN = 8  # length of an open axis behind the first
PASSING = (
    "Cast",
    "ExpandDims",
    "Reshape",
    "Squeeze",
    "Split",
    "Unpack",
    "Tile",
    "Pack",
    "ConcatV2",
)
GATHERS = {"ResourceGather": (0, 1), "Gather": (0, 1), "GatherV2": (0, 1)}


def read_inputs(path: Path, graph: Graph) -> dict[str, Any]:
    """Inputs of a .npz file by name; a TFRecord file for a signature with one input of texts.

    numpy drops zero bytes at the end of texts, which serialised examples may have.
    """
    if path.suffix != ".npz":
        return read_examples(path, graph)
    try:
        with np.load(path, allow_pickle=False) as stored:
            given = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise JoyError(f"not a .npz file of plain arrays: {error}", where=str(path)) from None
    wanted = {each.name: each for each in graph.inputs}
    absent = sorted(set(wanted) - set(given))
    if absent:
        raise JoyError(
            f"inputs are missing: {', '.join(absent)}",
            where=str(path),
            help=f"the signature has {', '.join(sorted(wanted))}",
        )
    return {name: convert_value(given[name], tensor) for name, tensor in wanted.items()}


def read_examples(path: Path, graph: Graph) -> dict[str, Any]:
    """All records of a file as the one input of a signature."""
    texts = [each for each in graph.inputs if each.dtype == "string"]
    if len(graph.inputs) != 1 or not texts:
        raise JoyError(
            "a file of records fits signatures with one input of texts",
            where=str(path),
            help="give a .npz file with an array for each input",
        )
    records = list(read_records(path))
    found = np.empty(len(records), dtype=object)
    found[:] = records
    return {texts[0].name: found}


def convert_value(value: Any, tensor: SignatureTensor) -> Any:
    """A value in the type and shape of an input; texts as bytes.

    One number a row fits an input of shape (None, 1), as Keras takes it.
    """
    given = np.asarray(value)
    if tensor.shape is not None:
        if len(tensor.shape) == given.ndim + 1 and tensor.shape[-1] == 1:
            given = given[..., None]
        pairs = zip(tensor.shape, given.shape, strict=False)
        if len(tensor.shape) != given.ndim or any(a not in (None, b) for a, b in pairs):
            raise JoyError(
                f"input {tensor.name} has shape {list(given.shape)}",
                help=f"the signature takes {list(tensor.shape)}",
            )
    if tensor.dtype != "string":
        return given.astype(tensor.dtype)
    flat = given.reshape(-1).tolist()
    texts = np.empty(len(flat), dtype=object)
    texts[:] = [each.encode() if isinstance(each, str) else each for each in flat]
    return texts.reshape(given.shape)


def draw_inputs(
    graph: Graph, sizes: Mapping[str, Any], keys: Mapping[str, Any], seed: int = 0
) -> tuple[dict[str, Any], list[str]]:
    """Random inputs, and what had to be guessed.

    `sizes` are shapes of variables and `keys` of tables, by node. A whole number that reaches a
    lookup stays below the number of its rows; one that reaches none is 0 or 1.
    """
    draws = np.random.default_rng(seed)
    words = [key for known in keys.values() for key in known if isinstance(key, bytes)]
    words += [f"w{number}".encode() for number in range(20)]
    drawn, guessed = {}, []
    for tensor in graph.inputs:
        shape = lengths(tensor)
        examples = parser_of(graph, tensor.ref)
        if tensor.dtype == "string" and examples is not None:
            drawn[tensor.name] = draw_examples(graph, examples, words, draws, shape)
        elif tensor.dtype == "string":
            drawn[tensor.name] = choose(draws, words, shape)
        elif np.issubdtype(np.dtype(tensor.dtype), np.integer):
            limit = rows_of(graph, tensor.ref, sizes)
            if limit is None:
                guessed.append(f"{tensor.name}: 0 or 1, no lookup bounds it")
            drawn[tensor.name] = draws.integers(0, limit or 2, shape).astype(tensor.dtype)
        else:
            drawn[tensor.name] = draws.normal(size=shape).astype(tensor.dtype)
    return drawn, guessed


def lengths(tensor: SignatureTensor) -> tuple[int, ...]:
    """A shape with its open lengths chosen."""
    shape = tensor.shape if tensor.shape is not None else (None,)
    return tuple(
        (ROWS if not at else OPEN) if length is None else length for at, length in enumerate(shape)
    )


def choose(draws: Any, words: list[bytes], shape: tuple[int, ...]) -> Any:
    """An array of texts."""
    found = np.empty(int(np.prod(shape)), dtype=object)
    found[:] = [words[at] for at in draws.integers(0, len(words), found.size)]
    return found.reshape(shape)


def rows_of(graph: Graph, start: Ref, sizes: Mapping[str, Any]) -> int | None:
    """The fewest rows among the tables that a tensor's numbers are looked up in."""
    reached, limits = {start}, []
    constants = {node.name: node for node in graph.nodes if node.op == "Const"}
    for node in graph.nodes:
        at = [slot for slot, ref in enumerate(node.inputs) if ref in reached]
        if not at:
            continue
        if node.op in PASSING:
            reached |= {(node.name, number) for number in range(node.outputs)}
        elif node.op in GATHERS and GATHERS[node.op][1] in at:
            table = node.inputs[GATHERS[node.op][0]][0]
            if table in sizes:
                limits.append(int(sizes[table][0]))
            elif table in constants:
                limits.append(
                    constants[table].definition.attr["value"].tensor.tensor_shape.dim[0].size
                )
    return min(limits, default=None)


def parser_of(graph: Graph, ref: Ref) -> Any:
    """The node that parses a tensor's texts as examples."""
    users = [node for node in graph.nodes if node.op == "ParseExampleV2" and ref in node.inputs]
    return users[0] if users else None


def draw_examples(graph: Graph, node: Any, words: list[bytes], draws: Any, shape: Any) -> Any:
    """Serialised examples with the features that a node parses."""
    from joymigrate.run.tensorflow.emit import constant

    by_name = {each.name: each for each in graph.nodes}
    sparse, dense = (constant(by_name[node.inputs[slot][0]]).tolist() for slot in (2, 3))
    kinds = node.attributes
    found = np.empty(int(np.prod(shape)), dtype=object)
    for at in range(found.size):
        features: dict[str, Any] = {}
        for key, kind in zip(sparse, kinds["sparse_types"], strict=True):
            features[key.decode()] = values_of(kind, int(draws.integers(0, 4)), words, draws)
        for key, kind, lengths in zip(dense, kinds["Tdense"], kinds["dense_shapes"], strict=True):
            features[key.decode()] = values_of(kind, int(np.prod(lengths)), words, draws)
        found[at] = write_example(features)
    return found.reshape(shape)


def values_of(kind: str, count: int, words: list[bytes], draws: Any) -> list[Any]:
    """Random values of one feature."""
    if kind == "string":
        return [words[at] for at in draws.integers(0, len(words), count)]
    if kind.startswith("float"):
        return [float(each) for each in draws.normal(size=count)]
    return [int(each) for each in draws.integers(0, 2, count)]

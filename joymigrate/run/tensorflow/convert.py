"""A SavedModel as a folder with a PyTorch module, proven operator by operator.

The original's own signature and the module compute one batch, and their outputs must be equal. So
must every tensor between, of the graph as it was read: they name the operator that differs. The
module's folder needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.run.tensorflow import batch, emit
from joymigrate.run.tensorflow.graph import Graph, GraphNode, read_graph
from joymigrate.run.tensorflow.load import load_in_order
from joymigrate.run.tensorflow.operators import OPERATORS as KNOWN
from joymigrate.run.tensorflow.original import Original

LIMIT = 1e-5  # of a difference, absolute below 1 and relative above
OPERATORS = "tensorflow_operators"


@dataclass(frozen=True)
class TensorComparison:
    """A tensor of the original beside ours."""

    node: str
    op: str
    difference: float  # the largest, over max(1, |value|)
    reason: str = ""  # where the two can't be compared

    @property
    def passed(self) -> bool:
        """Whether they are equal within the limit."""
        return not self.reason and self.difference <= LIMIT


@dataclass(frozen=True)
class Conversion:
    """What came out of a conversion."""

    graph: Graph
    tensors: tuple[TensorComparison, ...]
    judged: tuple[TensorComparison, ...]  # the outputs beside those of the signature itself
    rows: int
    guessed: tuple[str, ...]
    parameters: int
    not_run: tuple[str, ...] = ()  # methods of branches and loops that the batch did not reach

    @property
    def limit(self) -> float:
        """The largest difference that passes."""
        return LIMIT

    @property
    def passed(self) -> bool:
        """Whether the signature's outputs and every tensor before them are equal."""
        return self.first is None

    @property
    def outputs(self) -> dict[str, float]:
        """The largest difference of each output."""
        return {each.node: each.difference for each in self.judged}

    @property
    def first(self) -> TensorComparison | None:
        """The first tensor that differs: everything before it is equal."""
        return next((each for each in (*self.tensors, *self.judged) if not each.passed), None)

    def document(self, source: str) -> dict[str, Any]:
        """As JSON."""
        first = self.first
        return {
            "schema": "joymigrate.conversion/1",
            "source": source,
            "signature": self.graph.signature,
            "inputs": [describe_tensor(each) for each in self.graph.inputs],
            "outputs": [
                {**describe_tensor(each), "difference": self.outputs[each.name]}
                for each in self.graph.outputs
            ],
            "operators": dict(sorted(Counter(node.op for node in self.graph.every()).items())),
            "parameters": self.parameters,
            "rows": self.rows,
            "guessed": list(self.guessed),
            "not_run": list(self.not_run),
            "compared": len(self.tensors),
            "limit": LIMIT,
            "passed": self.passed,
            "largest": max((each.difference for each in self.tensors), default=0.0),
            "first": first
            and {
                "node": first.node,
                "op": first.op,
                "difference": first.difference,
                "reason": first.reason,
            },
        }


def describe_tensor(tensor: Any) -> dict[str, Any]:
    """An input or output as JSON."""
    shape = None if tensor.shape is None else list(tensor.shape)
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": shape}


def convert(
    folder: Path,
    output: Path,
    *,
    signature: str = "serving_default",
    inputs: Path | None = None,
    seed: int = 0,
) -> Conversion:
    """Convert a SavedModel into `output`, and compare the two on one batch.

    `inputs` is a .npz file with an array for each input; without it they are drawn. A difference
    is no error here: the folder is written, and the result names the first operator.
    """
    load_in_order()
    graph = read_graph(folder, signature)
    emit.check(graph)
    original = Original(folder, graph)
    try:
        weights, tables = original.weights(), original.tables()
        written = emit.write(graph, weights)
        drawn, guessed = given_or_drawn(graph, weights, tables, inputs, seed)
        wanted = original.signature(drawn)
        theirs = original.run(drawn)
    finally:
        original.close()
    write_folder(output, written, tables, f"{folder.name}, signature {signature}")
    ours, given, not_run = run_watched(output, written, drawn)
    result = Conversion(
        graph,
        tuple(compare(graph, theirs, ours)),
        tuple(
            compare_values(name, "signature", value, given[name])
            if name in given
            else TensorComparison(name, "signature", math.inf, str(ours.get("error")))
            for name, value in wanted.items()
        ),
        rows=len(next(iter(drawn.values()))) if drawn else 0,
        guessed=tuple(guessed),
        parameters=sum(written.weights[name].size for name in written.parameters),
        not_run=not_run,
    )
    document = json.dumps(result.document(folder.name), indent=1) + "\n"
    replace_file(output / "conversion.json", document.encode())
    return result


def given_or_drawn(
    graph: Graph,
    weights: Mapping[str, Any],
    tables: Mapping[str, Any],
    inputs: Path | None,
    seed: int,
) -> tuple[dict[str, Any], list[str]]:
    """The batch to compare with, and what was guessed about it."""
    if inputs is not None:
        return batch.read_inputs(inputs, graph), []
    sizes = {name: np.shape(value) for name, value in weights.items()}
    keys = {name: known.tolist() for name, (known, _) in tables.items()}
    return batch.draw_inputs(graph, sizes, keys, seed)


def write_folder(
    output: Path, written: emit.EmittedModule, tables: Mapping[str, Any], about: str
) -> None:
    """model.py, its weights, its tables, and the operators it calls."""
    from safetensors.numpy import save

    output.mkdir(parents=True, exist_ok=True)
    weights = {name: np.asarray(value, order="C") for name, value in written.weights.items()}
    replace_file(output / "weights.safetensors", save(weights))
    stored = {
        name: {"keys": list(map(text, keys.tolist())), "values": list(map(text, values.tolist()))}
        for name, (keys, values) in tables.items()
    }
    replace_file(output / "tables.json", json.dumps(stored, ensure_ascii=False).encode())
    copy_operators(output / OPERATORS)
    replace_file(output / "__init__.py", b"")
    replace_file(output / "model.py", written.source(about).encode())


def text(value: Any) -> Any:
    """Bytes as JSON can hold them."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def copy_operators(folder: Path) -> None:
    """Our operators as a package that knows nothing of joymigrate."""
    from joymigrate.run.tensorflow import operators

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in sorted(Path(operators.__file__).parent.glob("*.py")):
        source = path.read_text(encoding="utf-8").replace(f"{operators.__name__}.", ".")
        source = source.replace(operators.__name__, ".")
        (folder / path.name).write_text(source, encoding="utf-8")


def run_watched(
    output: Path, written: emit.EmittedModule, drawn: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Every tensor of the module for a batch, by node and output; what it gives, by output; and the
    methods of branches and loops that did not run."""
    import torch

    seen: dict[str, Any] = {}
    reached: set[str] = set()

    def noted(name: str) -> Any:
        method = getattr(module, name)

        def call(*given: Any) -> Any:
            reached.add(name)
            return method(*given)

        return call

    def note(name: str, value: Any) -> None:
        seen[name] = on_host(value)

    def on_host(value: Any) -> Any:
        return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value

    module = load_watched(output, written)
    names = [method.name for method in written.methods]
    for name in names:
        setattr(module, name, noted(name))
    found: dict[str, Any] = {}
    given = {
        written.inputs[name]: value if value.dtype == object else torch.from_numpy(value)
        for name, value in drawn.items()
    }
    try:
        with torch.no_grad():
            for name, value in module(**given, seen=note).items():
                found[name] = np.asarray(on_host(value))
    except Exception as error:  # an operator's: the comparison says where it stopped
        seen["error"] = f"{type(error).__name__}: {error}"
    return seen, found, tuple(name for name in names if name not in reached)


def load_watched(output: Path, written: emit.EmittedModule) -> Any:
    """The module with a call for every tensor; its file exists for this moment alone."""
    path = output / "_watched.py"
    path.write_text(written.source("watched", watched=True), encoding="utf-8")
    sys.path.insert(0, str(output))
    try:
        spec = importlib.util.spec_from_file_location("_watched", path)
        if spec is None or spec.loader is None:
            raise JoyError("the written module can't be loaded", where=str(path))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.load(output)
    finally:
        sys.path.remove(str(output))
        path.unlink()
        for name in [key for key in sys.modules if key.split(".")[0] == OPERATORS]:
            del sys.modules[name]


def list_computing(graph: Graph) -> list[GraphNode]:
    """The nodes that compute something."""
    return [node for node in graph.nodes if node.op in KNOWN or node.bodies]


def compare(graph: Graph, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    """Each tensor of the original beside ours, in order."""
    for node in list_computing(graph):
        for number in node.computed:
            key = f"{node.name}:{number}"
            if key not in ours:
                reason = str(ours.get("error", "not computed"))
                yield TensorComparison(key, node.op, float("inf"), reason)
                return
            if key in theirs and isinstance(ours[key], (np.ndarray, np.generic)):
                yield compare_values(key, node.op, theirs[key], np.asarray(ours[key]))


TEXTS = "SO"  # numpy's kinds of bytes: of one length, and of any


def compare_values(key: str, op: str, theirs: Any, ours: Any) -> TensorComparison:
    """Two arrays: shape, type, texts exactly, numbers by their difference."""
    if theirs.shape != ours.shape:
        reason = f"shape {list(ours.shape)}, not {list(theirs.shape)}"
        return TensorComparison(key, op, float("inf"), reason)
    if theirs.dtype.kind in TEXTS and ours.dtype.kind in TEXTS:
        theirs, ours = theirs.astype(object), ours.astype(object)  # bytes of any length
    if theirs.dtype != ours.dtype:
        return TensorComparison(key, op, float("inf"), f"type {ours.dtype}, not {theirs.dtype}")
    if theirs.dtype.kind not in "fc":
        same = bool(np.all(theirs == ours))
        return TensorComparison(
            key, op, 0.0 if same else float("inf"), "" if same else "values differ"
        )
    if not theirs.size:
        return TensorComparison(key, op, 0.0)
    with np.errstate(invalid="ignore"):
        gap = np.abs(theirs.astype(np.float64) - ours) / np.maximum(1, np.abs(theirs))
    equal = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
    return TensorComparison(
        key, op, float(np.nan_to_num(np.where(equal, 0, gap), nan=np.inf).max())
    )

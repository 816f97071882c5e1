"""The SavedModel in TensorFlow itself: its weights and tables, and every tensor of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.tensorflow.graph import LOOPS, TABLES, VARIABLES, Graph, GraphNode, Ref, text_of

BY_HANDLE = ("ResourceGather", "LookupTableFindV2", "LookupTableSizeV2")
READ = "__value"


class Original:
    """A loaded SavedModel on the CPU."""

    def __init__(self, folder: Path, graph: Graph) -> None:
        import tensorflow as tf

        self.tf, self.graph = tf.compat.v1, graph
        self.session = self.tf.Session(
            graph=tf.Graph(), config=self.tf.ConfigProto(device_count={"GPU": 0})
        )
        with self.session.graph.as_default():
            self.tf.saved_model.load(self.session, list(graph.tags), str(folder))
        self.flat = False

    def close(self) -> None:
        """Let TensorFlow's memory go."""
        self.session.close()

    def weights(self) -> dict[str, Any]:
        """Values of variables by node."""
        names = [node.name for node in self.graph.nodes if node.op in VARIABLES]
        reads = {name: self.read(name) for name in names}
        found: dict[str, Any] = self.session.run(reads)
        return found

    def read(self, name: str) -> Any:
        """The tensor of a variable's value."""
        node = self.session.graph.get_operation_by_name(name)
        if node.type != "VarHandleOp":
            return node.outputs[0]
        with self.session.graph.as_default():
            return self.tf.raw_ops.ReadVariableOp(
                resource=node.outputs[0], dtype=node.get_attr("dtype")
            )

    def tables(self) -> dict[str, tuple[Any, Any]]:
        """Keys and values of lookup tables by node."""
        exports = {}
        with self.session.graph.as_default():
            for node in self.graph.nodes:
                if node.op in TABLES:
                    handle = self.session.graph.get_operation_by_name(node.name).outputs[0]
                    exports[node.name] = self.tf.raw_ops.LookupTableExportV2(
                        table_handle=handle,
                        Tkeys=node.definition.attr["key_dtype"].type,
                        Tvalues=node.definition.attr["value_dtype"].type,
                    )
        found: dict[str, tuple[Any, Any]] = self.session.run(exports)
        return found

    def extend(self) -> None:
        """The flat graph beside the original one, so that every tensor has a name to fetch."""
        if self.flat:
            return
        from tensorflow.core.framework import graph_pb2

        kept = [node for node in self.graph.nodes if not self.stands(node)]
        outside = {node.name for node in self.graph.nodes} - {node.name for node in kept}
        graph = graph_pb2.GraphDef(versions=self.session.graph.as_graph_def().versions)
        renamed = {node.name: f"n{number}" for number, node in enumerate(kept)}
        mapped = {}
        for node in kept:
            copy = graph.node.add()
            copy.CopyFrom(node.definition)
            copy.name = renamed[node.name]
            copy.device = ""
            copy.attr.pop("_class", None)
            del copy.input[:]
            for slot, (name, number) in enumerate(node.inputs):
                if name not in outside:
                    copy.input.append(f"{renamed[name]}:{number}")
                    continue
                whole = node.op in BY_HANDLE or is_handle(node, slot)
                copy.input.append(f"{name}{'' if whole else READ}:{number}")
                mapped[copy.input[-1]] = self.tensor((name, number), whole)
        with self.session.graph.as_default():
            self.tf.import_graph_def(graph, input_map=mapped, name="flat")
        self.renamed = renamed
        self.flat = True

    @staticmethod
    def stands(node: GraphNode) -> bool:
        """Whether the loaded model's own node is used: inputs, and what holds state."""
        return node.op in (*VARIABLES, *TABLES, "Placeholder")

    def tensor(self, ref: Ref, handle: bool) -> Any:
        """A tensor of the loaded model; for a variable its value, or its handle."""
        node = self.session.graph.get_operation_by_name(ref[0])
        if node.type in VARIABLES and not handle:
            return self.read(ref[0])
        return self.session.graph.get_tensor_by_name(text_of(ref))

    def signature(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What the signature itself gives for one batch, by output. It is asked twice.

        Raises `JoyError` where the answers differ: by a state that it changes, or by chance.
        """
        named = self.session.graph.get_tensor_by_name
        fetches = {each.name: named(text_of(each.ref)) for each in self.graph.given}
        first, again = (self.session.run(fetches, self.feed(inputs)) for _ in range(2))
        for name, value in first.items():
            numbers = np.asarray(value).dtype.kind in "fc"
            if not np.array_equal(value, again[name], equal_nan=numbers):
                raise JoyError(
                    f"the signature gives another '{name}' when it is asked again the same way",
                    where=f"signature {self.graph.signature}",
                    help="a state that it changes, or chance, can't be converted: export a "
                    "signature without it (--signature)",
                )
        return {name: np.asarray(value) for name, value in first.items()}

    def feed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by the names of their tensors."""
        return {text_of(each.ref): inputs[each.name] for each in self.graph.inputs}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Every tensor of the flat graph for one batch, by its name with the output's number."""
        self.extend()
        fetches = {}
        for node in self.graph.nodes:
            if not self.stands(node):
                operation = self.session.graph.get_operation_by_name(
                    f"flat/{self.renamed[node.name]}"
                )
                for number, tensor in enumerate(operation.outputs):
                    if tensor.dtype in (self.tf.resource, self.tf.variant):
                        continue
                    fetches[f"{node.name}:{number}"] = tensor
        found: dict[str, Any] = self.session.run(fetches, self.feed(inputs))
        return {key: np.asarray(value) for key, value in found.items()}


def is_handle(node: GraphNode, slot: int) -> bool:
    """Whether a branch or a loop takes a variable itself, not its value."""
    if not node.bodies:
        return False
    types = node.attributes["T" if node.op in LOOPS else "Tin"]
    place = slot if node.op in LOOPS else slot - 1
    return place >= 0 and types[place] == "resource"

"""`joymigrate convert savedmodel`: a TensorFlow model as a PyTorch module."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._output import talk
from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.run.tensorflow.convert import Conversion


def convert_savedmodel(
    source: Path = typer.Argument(..., metavar="DIR", help="The SavedModel's folder."),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Where model.py, its weights and tables go."
    ),
    signature: str = typer.Option("serving_default", "--signature", help="What to convert."),
    inputs: Path | None = typer.Option(
        None,
        "--inputs",
        metavar="FILE",
        help="A batch to compare with: .npz by name, or TFRecord. Drawn without it.",
    ),
    seed: int = typer.Option(0, "--seed", help="Of a drawn batch."),
) -> int:
    """Convert a TensorFlow SavedModel of a recommender into a PyTorch module, and prove it.

    Lookup tables, hashed and crossed features, feature columns and parsed examples come along; what
    is written needs torch, numpy and safetensors alone. One batch runs through both models and
    every tensor between is compared. Exit code 1 when one differs.
    """
    from joymigrate.extras import need

    need("tf", "tensorflow", what="reading a SavedModel")
    need("torch", "torch", "safetensors", what="writing a PyTorch module")
    if output.resolve() == source.resolve():
        raise JoyError("the output is the SavedModel itself", where=str(output))
    from joymigrate.run.tensorflow.convert import convert

    result = convert(source, output, signature=signature, inputs=inputs, seed=seed)
    talk(result_lines(result, source, output))
    return Exit.OK if result.passed else Exit.FOUND


def result_lines(result: Conversion, source: Path, output: Path) -> list[str]:
    """What was converted, what was compared, and the first difference."""
    nodes = result.graph.nodes
    kinds = Counter(node.op for node in nodes)
    lines = [
        f"{source} → {output / 'model.py'}: {len(nodes)} nodes of {len(kinds)} kinds, "
        f"{result.parameters:,} trained parameters"
    ]
    lines += [f"drawn {each}; give real ones with --inputs" for each in result.guessed]
    lines += [
        f"output {name}: largest difference {gap:.2e}" for name, gap in result.outputs.items()
    ]
    if result.not_run:
        lines.append(
            f"not reached by this batch, and not compared: {', '.join(result.not_run)} of model.py"
        )
    first = result.first
    if first is None:
        lines.append(
            f"all {len(result.tensors)} tensors are equal within {result.limit:g} "
            f"on one batch of {result.rows} rows, at inference"
        )
        return lines
    before = result.tensors.index(first)
    why = first.reason or f"largest difference {first.difference:.2e}"
    lines.append(
        f"differs first at {first.node} ({first.op}): {why}; the {before} tensors before are equal"
    )
    return lines

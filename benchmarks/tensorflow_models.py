"""Converts SavedModels of public recommenders: operators, tensors compared, largest difference.

    python -m benchmarks.tensorflow_models DIR [--peer]

DIR is what `benchmarks/tensorflow_models_make.py` made. `--peer` also tries tf2onnx and onnx2torch
on each, where they are installed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.tensorflow.convert import convert


def main() -> None:
    """One row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", action="store_true")
    given = parser.parse_args()
    for folder in sorted(each for each in given.folder.iterdir() if each.is_dir()):
        batch = next(folder / n for n in ("inputs.npz", "inputs.tfrecord") if (folder / n).exists())
        with tempfile.TemporaryDirectory() as output:
            start = time.perf_counter()
            result = convert(folder, Path(output), inputs=batch)
            seconds = time.perf_counter() - start
        largest = max(each.difference for each in result.tensors)
        print(
            f"{folder.name}: {'equal' if result.passed else f'differs at {result.first}'}, "
            f"{len({node.op for node in result.graph.nodes})} kinds of nodes, "
            f"{len(result.tensors)} tensors, largest difference {largest:.1e}, "
            f"output {max(result.outputs.values()):.1e}, {seconds:.1f} s"
        )
        if given.peer:
            print(f"    tf2onnx and onnx2torch: {peer(folder)}")


def peer(folder: Path) -> str:
    """What the general converters make of a model."""
    import subprocess
    import sys

    with tempfile.TemporaryDirectory() as output:
        path = str(Path(output) / "model.onnx")
        command = [sys.executable, "-m", "tf2onnx.convert", "--saved-model", str(folder)]
        done = subprocess.run(
            [*command, "--output", path], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"tf2onnx: {last(done.stderr)}"
        program = f"from onnx2torch import convert; convert({path!r})"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        return f"onnx2torch: {last(done.stderr)}" if done.returncode else "converted"


def last(text: str) -> str:
    """The last line of an error."""
    return text.strip().splitlines()[-1][:200] if text.strip() else "no word"


if __name__ == "__main__":
    try:
        main()
    except JoyError as error:
        raise SystemExit(str(error)) from None

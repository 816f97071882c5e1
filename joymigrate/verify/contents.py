"""What a bundle holds, in words and numbers, and which of it are data of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.verify.bundle import Bundle
from joymigrate.verify.display import Display

SCHEMA = "joymigrate.bundle-contents/1"


def contents(bundle: Bundle) -> dict[str, Any]:
    """The whole bundle in short."""
    return {
        "schema": SCHEMA,
        "path": str(bundle.path),
        "complete": bundle.complete,
        "exit_code": bundle.manifest.get("exit_code"),
        "stopped": bundle.manifest.get("stopped"),
        "command": bundle.manifest.get("command"),
        "level": bundle.manifest.get("level"),
        "bytes": bundle.size_bytes,
        "ranks": [of_rank(rank) for rank in bundle.ranks],
    }


def of_rank(rank: Any) -> dict[str, Any]:
    """One process's part."""
    program = rank.program
    tables = {step: rank.table(step) for step in rank.steps}
    lessons = rank.json("forced.json").get("lessons", [])
    return {
        "rank": rank.number,
        "mesh": rank.manifest.get("mesh"),
        "steps": [{"step": step, "records": len(table)} for step, table in tables.items()],
        "roots": program.get("roots", []),
        "taught": [{"root": e["root"], "step": e["step"], "cuts": len(e["rows"])} for e in lessons],
        "environment": program.get("environment", {}),
        "notes": program.get("notes", []),
        "files": {name: entry["bytes"] for name, entry in rank.manifest["files"].items()},
    }


KINDS = (
    ("batches-", "inputs", "inputs of the model, as they were: texts as token numbers, images, …"),
    ("weights-", "weights", "the model's weights and buffers"),
    ("forced-", "activations", "inputs and outputs of modules, from which inputs can be rebuilt"),
    ("tape-", "activations", "labels, outputs and gradients that losses and updates come from"),
    ("step-", "statistics", "four numbers and a 64-float sketch per tensor; tensors of up to 64 "
     "elements are given by their sketch"),
    ("program", "program", "module names, settings, the command line, environment variables that "
     "change numbers, hashes of weights and batches"),
    ("log", "program", "modes of model calls and settings of updates, step by step"),
    ("watch", "statistics", "step by step: hashes of random states and of batches, shapes, losses, "
     "sizes of updates, two numbers of each input"),
    ("printed", "printed lines", "lines that the program printed, as far as they hold numbers"),
    ("outputs", "written files", "files that --outputs names: lines of texts, sketches and hashes "
     "of the rest"),
    ("ops", "activations", "arguments and results of operators that --arguments names"),
    ("evidence", "activations", "inputs, weights and results of the first wrong call"),
    ("tape.json", "table", "names, shapes, sketches and errors"),
    ("forced.json", "table", "names, shapes and errors"),
    ("repeats", "table", "values that a second run made otherwise, and words of printed lines"),
    ("replay", "table", "names, shapes and errors"),
)  # fmt: skip


def data_in(bundle: Bundle) -> list[dict[str, Any]]:
    """Every file by what it tells about the user's data."""
    found = []
    for rank in bundle.ranks:
        for name, entry in rank.manifest["files"].items():
            exact = next((k for k in KINDS if name == k[0]), None)
            kind = exact or next((k for k in KINDS if name.startswith(k[0])), None)
            _, what, text = kind or ("", "other", "")
            where = f"rank-{rank.number}/{name}"
            found.append({"file": where, "bytes": entry["bytes"], "holds": what, "what": text})
    return found


def records_of(bundle: Bundle, module: str) -> list[Mapping[str, Any]]:
    """The statistics of one module in every step."""
    rank = bundle.ranks[0]
    view = Display(rank.program)
    names: set[str] = set()
    found: list[Mapping[str, Any]] = []
    for step in rank.steps:
        for record in rank.table(step):
            name = view(record.module)
            names.add(name)
            if name != module:
                continue
            high, low, mean, norm = record.stats
            found.append(
                {
                    "step": step,
                    "call": record.call,
                    "kind": record.kind,
                    "leaf": record.leaf,
                    "dtype": record.dtype,
                    "shape": list(record.shape),
                    "max": high,
                    "min": low,
                    "mean": mean,
                    "norm": norm,
                }
            )
    if not found:
        raise JoyError(
            f"no record of a module '{module}'.{did_you_mean(module, names)}",
            where=str(bundle.path),
            help="`joymigrate verify show BUNDLE --format json` lists what there is",
        )
    return found

"""Checks of files in a chip's folder that packages above `chips` read.

`joymigrate.chips` knows the vocabulary; operators, tolerances, topology and the rest belong to the
packages that use them, and are read here by the very functions that those use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from joymigrate.chips.problems import ChipProblem, problem_of
from joymigrate.errors import JoyError


def problems(folder: Path) -> list[ChipProblem]:
    """What is wrong in the files that other packages read."""
    found = []
    for name, read in READERS.items():
        path = folder / name
        if not path.is_file():
            continue
        try:
            read(path)
        except JoyError as error:
            found.append(problem_of(error, path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            found.append(
                ChipProblem(str(path), "", f"cannot be read: {type(error).__name__}: {error}")
            )
    return found


def operators(path: Path) -> None:
    from joymigrate.profile.oplist.entries import read

    read.cache_clear()
    read(path)


def tolerance(path: Path) -> None:
    from joymigrate.verify.tolerance import read

    read(path.parent.name, path)


def topology(path: Path) -> None:
    from joymigrate.run.cluster.kinds import read_kinds

    list(read_kinds(path, path.parent.name))


def monitor(path: Path) -> None:
    from joymigrate.run.serve.monitor.devices import read_probe

    read_probe(path, path.parent.name)


def kernels(path: Path) -> None:
    from joymigrate.chips import load_folder
    from joymigrate.run.kernels.vendors import read_document

    read_document(load_folder(path.parent))


def advice(path: Path) -> None:
    from joymigrate.profile.advice.rules import read_rules

    read_rules(path)


def engines(path: Path) -> None:
    from joymigrate.run.serve.engine.launch import read_launchers

    read_launchers(path, path.parent.name)


def image(path: Path) -> None:
    from joymigrate.chips import load_folder
    from joymigrate.run.render.base import data_of

    data_of(load_folder(path.parent))


READERS: Mapping[str, Callable[[Path], Any]] = {
    "ops/operators.yaml": operators,
    "ops/operators.csv": operators,
    "tolerance.yaml": tolerance,
    "topology.yaml": topology,
    "monitor.yaml": monitor,
    "kernels.yaml": kernels,
    "advice.yaml": advice,
    "serve.yaml": engines,
    "image.yaml": image,
}

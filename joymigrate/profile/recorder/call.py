"""Calls one function of a file as the step to record: `python -m … file.py:step`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joymigrate.errors import Exit, JoyError, did_you_mean


def load(target: str) -> Callable[[], Any]:
    """The function named by `file.py:step`."""
    file, _, name = target.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise JoyError(
            f"no file '{file or target}'", where=target, help="--module takes file.py:function"
        )
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise JoyError("not a Python file", where=file, help="--module takes file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        raise JoyError(
            f"'{name}' is no function of the file.{did_you_mean(name, known)}",
            where=file,
            help=f"it has {', '.join(known) or 'none'}",
        )
    needed = [
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        raise JoyError(
            f"'{name}' needs arguments ({', '.join(needed)})",
            where=file,
            help="write a function without arguments that makes one step",
        )
    step: Callable[[], Any] = found
    return step


def main(target: str) -> int:
    """Call the step until the recording is done."""
    import torch  # noqa: F401  the recorder waits for it

    from joymigrate.profile.recorder.start import begin

    controller = begin(explicit=True)
    try:
        step = load(target)
    except JoyError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.ERROR
    while controller is not None and controller.state != "done":
        controller.step(step)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

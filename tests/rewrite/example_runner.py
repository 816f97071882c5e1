"""Runs the examples of rules, one after the other, in one process on the simulated chip.

`python example_runner.py EXAMPLES.json RESULTS.json`: a list of `{"id", "files"}` with the program
first, and for each id why it failed, or nothing. Names that an example leaves open are given here.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Anything:
    """Stands for a value that an example only hands on."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_: object, **__: object) -> Any:
        return Anything()


def given(device: str) -> dict[str, Any]:
    """Values for the names that examples leave open, and for parameters of their functions."""
    module = torch.get_device_module()
    x = torch.ones(4, device=device)
    net = torch.nn.Linear(4, 4)
    return {
        "x": x, "y": x, "q": x.view(1, 1, 2, 2), "k": x.view(1, 1, 2, 2), "v": x.view(1, 1, 2, 2),
        "tensor": x, "batch": {"x": x}, "batches": [x], "mask": x > 0, "model": net, "net": net,
        "build": lambda: torch.nn.Linear(2, 2), "run": lambda *_: None, "rank": 0, "local_rank": 0,
        "device": Place(device), "path": "m.pt", "stream": module.Stream(),
        "half": True, "loss": x.sum(),
        "parameters": [torch.nn.Parameter(x)], "rng": torch.zeros(1), "mode": "host",
        "world": 1, "n": 2, "i": 0, "world_size": 1,
        "keys": x.long(), "values": x.long(), "lengths": x.long(),
    }  # fmt: skip


class Place(str):
    """A device that a program may ask as a text or as a `torch.device`."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]


class Globals(dict[str, Any]):
    """A program's names, with those that it leaves open."""

    def __init__(self, more: dict[str, Any]) -> None:
        super().__init__(__name__="__main__", __builtins__=__builtins__)
        self.more = more

    def __missing__(self, name: str) -> Any:
        if name in self.more:
            return self.more[name]
        return vars(builtins).get(name, Anything())


def call_functions(names: Globals) -> None:
    """Call what the example defines, where the names of its parameters are known."""
    for value in [v for v in names.values() if isinstance(v, types.FunctionType)]:
        if value.__module__ != "__main__" or inspect.iscoroutinefunction(value):
            continue
        required = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty]
        if all(p.name in names.more for p in required):
            value(*(names.more[p.name] for p in required))


def run(files: dict[str, str], device: str) -> str:
    """Why a program fails; empty when it does not."""
    program, text = next(iter(files.items()))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        torch.save({"w": torch.ones(2)}, Path(folder) / "m.pt")
        os.chdir(folder)
        sys.path.insert(0, folder)
        names = Globals(given(device))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, program, "exec"), names)
                call_functions(names)
        except BaseException as error:
            line = [
                f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == program
            ]
            return f"line {line[-1] if line else '?'}: {type(error).__name__}: {error}"
        finally:
            sys.path.remove(folder)
            for name in [n for n in sys.modules if f"{n.replace('.', '/')}.py" in files]:
                del sys.modules[name]
    return ""


def reset() -> Callable[[], None]:
    """What brings the process back to what it was before an example."""
    variables = dict(os.environ)
    folder = os.getcwd()

    def back() -> None:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        if dist.is_initialized():
            dist.destroy_process_group()

    return back


def main(examples: Path, results: Path) -> None:
    """Run all, and write why each failed."""
    sys.argv[1:] = []
    device = str(torch.accelerator.current_accelerator())
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"LOCAL_RANK": "0"}
    subprocess.run = lambda *_, **__: Anything()  # type: ignore[assignment]
    back = reset()
    found = {}
    for example in json.loads(examples.read_text()):
        found[example["id"]] = run(example["files"], device)
        back()
        results.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())

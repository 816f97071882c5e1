"""Runs compiled packages on the CPU without Python's lock, by a small library that is built once.

torch's own loader holds the lock for a whole batch: meanwhile the event loop reads no request and
sends no answer. Where there is no library (no C++ compiler, another torch), that loader is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("joymigrate.serve")
SOURCE = Path(__file__).with_name("runner.cpp")
LIBRARY = "runner.so"
BUILD_SECONDS = 900


def digest() -> str:
    """Which library this is."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]


def build(target: Path) -> str:
    """Compile the library to `target`; why there is none, or an empty text."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    building = target.with_name(f".{target.stem}.{os.getpid()}.so")
    places = library_paths()
    command = [
        os.environ.get("CXX", "g++"), "-O1", "-std=c++20", "-fPIC", "-shared", str(SOURCE),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-I{place}" for place in include_paths()), "-o", str(building),
        *(f"-L{place}" for place in places), *(f"-Wl,-rpath,{place}" for place in places),
        "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            return (lines or [f"the compiler ended with {done.returncode}"])[0][:300]
        os.replace(building, target)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        building.unlink(missing_ok=True)
    return ""


def load_class(library: Path) -> Any:
    """The library's class, which is loaded once in a process; None where it cannot be."""
    import torch

    with contextlib.suppress(RuntimeError):
        return torch.classes.joymigrate_ranking.Package
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        return torch.classes.joymigrate_ranking.Package
    except (OSError, RuntimeError) as error:
        log.warning("batches of compiled code hold up the server: %s", error)
        return None


class Unlocked:
    """A package like `torch._inductor.package.load_package` gives it, without the lock."""

    def __init__(self, kind: Any, path: Path, runners: int) -> None:
        import torch

        self.package = kind(str(path), runners)
        self.takes, self.gives = map(torch.utils._pytree.treespec_loads, self.package.spec())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.export._tree_utils import reorder_kwargs
        from torch.utils import _pytree as tree

        flat = tree.tree_leaves((args, reorder_kwargs(kwargs, self.takes)))
        given = [one for one in flat if isinstance(one, torch.Tensor)]
        return tree.tree_unflatten(self.package.run(given), self.gives)

    def get_constant_fqns(self) -> list[str]:
        """Names of the weights that it reads."""
        return list(self.package.names())

    def load_constants(self, weights: Mapping[str, Any], **how: bool) -> None:
        """Read these weights where they are; only that way (`user_managed`) is known."""
        self.package.share(dict(weights))


def load(path: Path, runners: int, device: str) -> Any:
    """A package, ready to be called; by torch's own loader where there is no library."""
    from torch._inductor.package.package import load_package

    library = path.with_name(LIBRARY)
    if device == "cpu" and not library.is_file():
        log.warning("batches of compiled code hold up the server: %s was not built", library)
    kind = load_class(library) if device == "cpu" and library.is_file() else None
    if kind is None:
        return load_package(str(path), num_runners=runners)
    return Unlocked(kind, path, runners)

"""Names of tensors that a program holds: of models, of copies that nothing calls, of globals."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch

from joymigrate.verify.module_names import plain, variable


def names_of_state(recorder: Any) -> dict[tuple[int, tuple[int, ...]], str]:
    """Names of tensors that a program holds, by memory and shape: modules that are called, modules
    that are not, and tensors in variables, containers and objects of the program."""
    found: dict[tuple[int, tuple[int, ...]], str] = {}

    def add(name: str, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            found.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)

    seen = set()
    for root, module in recorder.module_names.modules.items():
        for kind in (module.named_parameters, module.named_buffers):
            for name, tensor in kind(remove_duplicate=False):
                add(f"{root}:{plain(name)}", tensor)
        seen |= {id(m) for m in module.modules()}
    for owner, module in find_uncalled(seen):
        for kind in (module.named_parameters, module.named_buffers):
            for name, tensor in kind(remove_duplicate=False):
                add(f"{owner}:{plain(name)}", tensor)
    for scope in scopes():
        for name, value in list(scope.items()):
            if name.startswith("__") or isinstance(value, torch.nn.Module):
                continue
            for path, tensor in held_in(value):
                add(f"{name}{path}", tensor)
    return found


def find_uncalled(seen: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules that no call has shown: averaged copies, target networks."""
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(c) for m in modules for c in m.children()}
    for module in modules:
        if id(module) not in seen and id(module) not in inner:
            name = variable(module)
            if name is not None:
                yield name, module


def held_in(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in a variable, two levels deep."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < 3 and isinstance(value, dict):
        for key, member in list(value.items())[:10_000]:
            if isinstance(key, str | int):
                yield from held_in(member, f"{path}.{key}", depth + 1)
    elif depth < 3 and isinstance(value, list | tuple):
        for index, member in enumerate(value[:10_000]):
            yield from held_in(member, f"{path}.{index}", depth + 1)
    elif depth < 2 and hasattr(value, "__dict__") and not isinstance(value, type):
        kind = type(value)
        if kind.__module__.split(".")[0] in ("builtins", "_frozen_importlib") or callable(value):
            return
        if isinstance(value, torch.optim.Optimizer | torch.amp.GradScaler):
            return  # a library's own; each device's package has another scaler
        for key, member in list(vars(value).items()):
            yield from held_in(member, f"{path}.{key}", depth + 1)


def scopes() -> Iterator[dict[str, Any]]:
    """Variables of the program's frames, the innermost first."""
    frame: Any = sys._getframe(1)
    last = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("torch.", "joymigrate.", "runpy", "multiprocessing")):
            yield frame.f_locals
            if frame.f_globals is not last:
                last = frame.f_globals
                yield last
        frame = frame.f_back

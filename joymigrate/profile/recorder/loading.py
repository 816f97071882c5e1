"""Marks the time that the program waits for data in known libraries, and counts the samples.

`rules/common/data_loading.yaml` says which calls those are. Only a library that the program has
imported when the timed steps begin is looked at; nothing is imported here.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from joymigrate.chips import read_yaml, rules_root

MARK = "joymigrate.data#"
FILE = "data_loading.yaml"
DEEP = 4  # how far into nested lists the first tensor is looked for


@functools.cache
def libraries() -> Mapping[str, Mapping[str, Any]]:
    """What is known about libraries that load data, by module."""
    known: dict[str, Mapping[str, Any]] = read_yaml(rules_root() / "common" / FILE)["libraries"]
    return known


def find_imported() -> list[str]:
    """The known libraries that the program of this process has imported for itself."""
    return sorted(
        name
        for name, entry in libraries().items()
        if name in sys.modules and not entry.get("automatic")
    )


def watch_loading(controller: Any) -> Callable[[], None]:
    """Mark the calls of imported libraries in the profiler's trace. Returns what undoes it."""
    undo: list[Callable[[], None]] = []
    state = threading.local()
    for library, entry in libraries().items():
        for call in entry.get("calls", ()):
            module, _, path = call.partition(":")
            *owners, name = path.split(".")
            owner = functools.reduce(
                lambda one, part: getattr(one, part, None), owners, sys.modules.get(module)
            )
            real = getattr(owner, name, None) if owner is not None else None
            if real is None:
                continue
            mark = "" if entry.get("marked") else f"{MARK}{library}.{path}"
            new = mark_time(controller, state, real, mark, entry.get("samples"))
            try:
                setattr(owner, name, new)
            except (AttributeError, TypeError):  # a class of a compiled module may not be changed
                continue
            undo.append(functools.partial(setattr, owner, name, real))

    def unmark() -> None:
        while undo:
            undo.pop()()

    return unmark


def mark_time(
    controller: Any, state: threading.local, real: Any, mark: str, samples: int | None
) -> Any:
    """`real` with its time marked and its samples counted, the outermost of nested calls only."""
    import torch

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        inside = getattr(state, "inside", False)
        if inside or threading.get_ident() != controller.thread or os.getpid() != controller.pid:
            return real(*args, **kwargs)
        state.inside = True
        try:
            if mark:
                with torch.autograd.profiler.record_function(mark):
                    made = real(*args, **kwargs)
            else:
                made = real(*args, **kwargs)
        finally:
            state.inside = False
        count = samples or leading(made)
        if count and controller.timer is not None:
            controller.facts["samples"] = controller.facts.get("samples", 0) + count
        return made

    return call


def leading(value: Any, depth: int = 0) -> int:
    """The leading size of the first array of a batch; 0 where there is none."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        try:
            return int(shape[0]) if len(shape) else 0
        except (TypeError, ValueError):
            return 0
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)) and depth < DEEP:
        return next((n for one in value if (n := leading(one, depth + 1))), 0)
    return 0

"""Whether a copied call stands for the program's: the copy on the call's own inputs has to give the
call's own outputs.

All that teacher forcing says is said of copies. Before a taught call a copy runs once on what the
call itself is given, with its weights, modes and random numbers; then the call's own records are
held against the copy's, module by module. The first module whose copy makes something else is
where the replay does not stand for the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from joymigrate.verify import pytree
from joymigrate.verify.cast_weights import Lender
from joymigrate.verify.isolated_pass import IsolatedPass, arguments_in, keep_generators
from joymigrate.verify.log import StepLog
from joymigrate.verify.module_names import plain
from joymigrate.verify.module_replay import kept_activations
from joymigrate.verify.noise import keep_noise
from joymigrate.verify.signs import WIDTH

Key = tuple[str, int, str]  # path, call, leaf
UNITS = 16  # in the last place: kernels that repeat may add up in another order


class Copy:
    """One run of a copy; the recorder hands its module calls to `call`."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        self.calls: dict[str, int] = {}
        self.log = StepLog()

    def call(self, module: Any, args: Any, kwargs: Any, real: Callable[..., Any]) -> Any:
        """One module call."""
        path = self.names.get(id(module))
        if path is None or torch._C._current_graph_task_id() >= 0:
            return real(module, *args, **kwargs)
        number = self.calls[path] = self.calls.get(path, -1) + 1
        made = real(module, *args, **kwargs)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            for leaf, tensor in pytree.tensors(made):
                self.log.add(path, number, "out", leaf, tensor)
        return made


class Witness:
    """The copy of a call that is about to run, and what the call is held against."""

    def __init__(self) -> None:
        self.copy: Copy | None = None
        self.start = 0  # of the call's own records
        self.found: list[dict[str, Any]] = []

    def ask(self, isolated: IsolatedPass, log: StepLog) -> None:
        """Run the copy. Raises what the program's own code raises."""
        self.copy, self.start = None, len(log.meta)
        lender = Lender(None)
        made = lender.clone(isolated.module)
        paths = {id(member): plain(name) for name, member in made.named_modules()}
        copy = Copy({k: ".".join(p for p in (isolated.path, v) if p) for k, v in paths.items()})
        args, kwargs = arguments_in(isolated.args, isolated.kwargs, None, None)
        with ExitStack() as stack:
            stance = getattr(torch.compiler, "set_stance", None)
            if stance is not None:
                stack.enter_context(stance("force_eager"))
            stack.enter_context(kept_activations())
            stack.enter_context(pytree.put_back((isolated.args, isolated.kwargs)))
            stack.enter_context(keep_generators())
            stack.enter_context(keep_noise())
            isolated.hold(copy)
            try:
                made(*args, **kwargs)
            finally:
                isolated.hold(None)
        self.copy = copy

    def hear(self, root: str, step: int, log: StepLog) -> None:
        """The call is over: note how far its records are from the copy's."""
        copy, self.copy = self.copy, None
        if copy is None:
            return
        meta, stats, sketches = copy.log.take()
        there = {m[:2] + m[3:4]: number for number, m in enumerate(meta)}
        turns: dict[tuple[str, str], int] = {}
        compared, first = 0, None
        # Between 16-bit products a float32 sum is no better than what it is fed.
        types = [m[4] for m in log.meta[self.start :]]
        narrow = next((kind for kind in ("bfloat16", "float16") if kind in types), None)
        for number in range(self.start, len(log.meta)):
            module, _, kind, leaf, dtype, _, spread = log.meta[number]
            if kind != "out" or spread or module.partition(":")[0] != root:
                continue
            path = module.partition(":")[2]
            turn = turns[path, leaf] = turns.get((path, leaf), -1) + 1
            row = there.get((path, turn, leaf))
            if row is None:
                continue
            compared += 1
            own = host(log.stats[number], 4), host(log.sketches[number], WIDTH)
            error = apart((stats[row], sketches[row]), own) if first is None else 0.0
            kind = getattr(torch, narrow or dtype)
            if error > (UNITS * torch.finfo(kind).eps if kind.is_floating_point else 0.0):
                first = {"path": path, "leaf": leaf, "error": error}
        self.found.append({"root": root, "step": step, "compared": compared, "first": first})


def host(row: Any, width: int) -> Any:
    """A row of a log on the host."""
    return row.float().cpu().numpy() if isinstance(row, torch.Tensor) else row


def apart(copy: tuple[Any, Any], own: tuple[Any, Any]) -> float:
    """How far two records are apart by sketch and norm, relative to the call's own."""
    (stats, sketch), (mine, other) = copy, own
    if np.array_equal(stats, mine, equal_nan=True) and np.array_equal(
        sketch, other, equal_nan=True
    ):
        return 0.0
    norm = max(float(np.linalg.norm(other.astype(float))), float(mine[3]) / 8, 1e-30)
    found = float(np.linalg.norm(sketch.astype(float) - other.astype(float))) / norm
    return min(found, 1e300) if np.isfinite(found) else 1e300

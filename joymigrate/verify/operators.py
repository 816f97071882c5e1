"""Operator level: the results of every operator that computes, named by module, operator, count."""

from __future__ import annotations

from typing import Any

import torch

from joymigrate.modes import WatchingMode

VIEWS = {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "alias"}
VIEWS |= {"unsqueeze", "squeeze", "detach", "as_strided", "reshape", "unbind", "chunk", "split"}


class OperatorWitness(WatchingMode):
    """Records what operators make inside of modules."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.step = -1
        self.counts: dict[tuple[str, str], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        if recorder.busy or recorder.over or not recorder.recording:
            return func(*args, **(kwargs or {}))
        name = func._opname
        if name in VIEWS or "empty" in name:
            return func(*args, **(kwargs or {}))
        if self.step != recorder.step:
            self.step, self.counts = recorder.step, {}
        inside = torch._C._current_graph_task_id() < 0
        place = recorder.stack[-1] if inside and recorder.stack else "backward:" * (not inside)
        kept = self.kept(func, place, args, kwargs or {})
        made = func(*args, **(kwargs or {}))
        if kept is not None:
            with recorder.own_work():
                recorder.arguments.after(kept, made)
        if not place:
            return made
        number = self.counts[place, name] = self.counts.get((place, name), -1) + 1
        for index, tensor in enumerate(made if isinstance(made, tuple | list) else (made,)):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                recorder.values.log.add(place, number, "op", f"aten::{name}.{index}", tensor)
        return made

    def kept(self, func: Any, place: str, args: Any, kwargs: Any) -> Any:
        """Copies of a call's arguments, where they are asked for."""
        arguments = self.recorder.arguments
        if arguments is None or not self.recorder.called_any:
            return None
        with self.recorder.own_work():
            return arguments.before(func, place, args, kwargs)

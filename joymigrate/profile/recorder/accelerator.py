"""An optimiser's step as torch takes it on an accelerator, seen from a CPU.

torch chooses multi-tensor kernels for parameters on accelerators and single-tensor ones on the
CPU, so a recording on a CPU would not see them. Here the step is taken on tensors without memory,
with the choice made as on an accelerator; nothing of the program is touched.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from joymigrate.profile.recorder.operators import OperatorRecorder, ProgramContext, RecordedCall


def optimiser_step(optimiser: Any) -> list[RecordedCall]:
    """Signatures of the operators of one step; empty where the step is the same, or unknown."""
    groups = optimiser.param_groups
    if not groups or "foreach" not in groups[0]:
        return []
    if any(group.get("foreach") is not None or group.get("fused") for group in groups):
        return []  # the program chose; the choice holds on every device
    if not any(p.device.type == "cpu" for group in groups for p in group["params"]):
        return []
    try:
        return list(record_step(optimiser).values())
    except Exception:
        return []  # an optimiser with a state of its own kind: the recording itself stands


def record_step(optimiser: Any) -> dict[Any, RecordedCall]:
    """Take the step with a copy of the optimiser, on tensors without memory."""
    twin = object.__new__(type(optimiser))
    twin.__dict__.update(optimiser.__dict__)
    twin.defaults = {**optimiser.defaults, "foreach": True}
    twin.param_groups, twin.state = [], copy.copy(optimiser.state)
    twin.state.clear()
    for group in optimiser.param_groups:
        params = []
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            stand_in = without_memory(parameter)
            stand_in.grad = without_memory(parameter.grad)
            params.append(stand_in)
            state = optimiser.state.get(parameter)
            if state:
                twin.state[stand_in] = {name: without_memory(v) for name, v in state.items()}
        twin.param_groups.append({**group, "params": params, "foreach": True})
    recorder = OperatorRecorder(ProgramContext(phase="optimiser"))
    step = type(optimiser).step
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    with torch.no_grad(), recorder:
        step(twin)
    return recorder.signatures


def without_memory(value: Any) -> Any:
    """A tensor of the same shape without memory; single numbers are copied, they are read."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone() if value.dim() == 0 else torch.empty_like(value, device="meta")

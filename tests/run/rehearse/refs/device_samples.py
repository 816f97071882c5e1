"""Run inside a rehearsal: every sample through the registered operator on npu:0.

Prints a JSON object: `same` (how many calls gave what the reference gives on CPU tensors),
`differ` (call → why), `unregistered` (names), `schemas` (name → registered schema).
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch_npu  # noqa: F401  registers the operators
from torch.utils._pytree import tree_flatten, tree_map

sys.path.insert(0, str(Path(__file__).parents[4]))

from joymigrate.run.rehearse.refs import registry
from tests.run.rehearse.refs import all_samples

ON_HOST = ("actual_seq_qlen", "actual_seq_kvlen")  # of the forms with lengths as tensors
TAKES_DEVICE = {"npu::npu_dropout_gen_mask"}


def find(name: str) -> Any:
    """The `OpOverload` of a dispatcher name; None where nothing is registered."""
    namespace, rest = name.split("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None)


def on_npu(value: Any) -> Any:
    return value.npu() if isinstance(value, torch.Tensor) else value


def tensors(*values: Any) -> list[torch.Tensor]:
    return [v.detach().cpu() for v in tree_flatten(values)[0] if isinstance(v, torch.Tensor)]


def difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> str:
    """What sets two lists of tensors apart; empty where nothing does."""
    forms = [[(str(v.dtype), tuple(v.shape)) for v in side] for side in (left, right)]
    if forms[0] != forms[1]:
        return f"reference {forms[0]}, device {forms[1]}"
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        if not torch.allclose(a.cfloat(), b.cfloat(), rtol=1e-5, atol=1e-5, equal_nan=True):
            return f"values of tensor {number}"
    return ""


def checked(operator: Any, name: str, call: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    args, kwargs = copy.deepcopy(call)
    expected = registry()[name].function(*args, **kwargs)
    given, named = tree_map(on_npu, copy.deepcopy(call))
    if "_v3" in name:
        named.update({key: call[1][key] for key in ON_HOST if key in call[1]})
    if name in TAKES_DEVICE:
        named["device"] = "npu:0"
    try:
        with torch.no_grad():
            found = operator(*given, **named)
    except (RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return difference(tensors(expected, args, kwargs), tensors(found, given, named))


def main() -> None:
    found: dict[str, Any] = {"same": 0, "differ": {}, "unregistered": [], "schemas": {}}
    for name, calls in sorted(all_samples().items()):
        operator = find(name)
        if operator is None:
            found["unregistered"].append(name)
            continue
        found["schemas"][name] = str(operator._schema)
        for number, call in enumerate(calls):
            why = checked(operator, name, call)
            if why:
                found["differ"][f"{name}#{number}"] = why
            else:
                found["same"] += 1
    print(json.dumps(found))


main()

"""What is kept of the first value that is computed otherwise, or of a call that is wrong by itself:
the calls of torch as source, the tensors that they take, and what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import resolve_name

from joymigrate.verify.signs import WIDTH, signs
from joymigrate.verify.summaries import summary
from joymigrate.verify.tape_entries import External, TapeEntry, TapeSlot
from joymigrate.verify.traced_number import Number
from joymigrate.verify.transforms import exchange, tensors_in

LIMIT = 1e-5  # what S4R judges by
MOST_BYTES = 256 << 20
MOST_CALLS = 200
Case = tuple[dict[str, Any], dict[str, torch.Tensor]]  # facts and calls; tensors by name
LISTS = ("_foreach_", "split", "chunk", "unbind", "tensor_split", "vsplit", "hsplit", "broadcast_t")


def keep_case(
    entry: Mapping[str, Any],
    tape: Any,
    slots: Mapping[str, TapeSlot],
    values: Mapping[int, torch.Tensor],
    theirs: Mapping[str, Any],
) -> Case | None:
    """(case, tensors) of an event's first wrong value; None where none is wrong, or where its calls
    can't be written down. `theirs` are the baseline's sums of each value."""
    wrong = [
        name
        for name, row in entry.get("rows", {}).items()
        if name in slots and name in theirs and max(row.get("error", 0), own(row)) > LIMIT
    ]
    if not wrong:
        return None
    name = wrong[0]
    row = entry["rows"][name]
    facts = {
        "kind": entry["kind"],
        "step": entry["step"],
        "value": name,
        "error": min(float(max(row.get("error", 0.0), own(row))), 1e300),
        "baseline_error": float(theirs[name].get("native", 0.0)),
    }
    return case_of(facts, tape, slots[name], values, theirs[name])


def case_of(
    facts: Mapping[str, Any],
    tape: Any,
    slot: TapeSlot,
    values: Mapping[int, torch.Tensor],
    golden: Mapping[str, Any],
) -> Case | None:
    """(case, tensors) of one value on a tape; None where its calls can't be written down."""
    calls, outside, _ = tape.needed([slot])
    outside = [e for e in outside if e.slot.number not in tape.replaced(calls)]
    tensors = {f"x{e.slot.number}": value_of(e, values) for e in outside}
    if len(calls) > MOST_CALLS or None in tensors.values():
        return None
    held = {
        key: t.detach().to("cpu").contiguous().clone()
        for key, t in tensors.items()
        if t is not None
    }
    if sum(t.numel() * t.element_size() for t in held.values()) > MOST_BYTES:
        return None
    lines = [source_of(call) for call in calls]
    if any(line is None for line in lines):
        return None
    inputs = {f"x{e.slot.number}": [e.role, str(e.tensor.dtype)] for e in outside}
    device = next((e.tensor.device.type for e in outside), "cpu")
    made = {"calls": lines, "result": f"x{slot.number}", "device": device, "inputs": inputs}
    return with_golden({**facts, **made}, held, golden)


def with_golden(
    case: dict[str, Any], held: dict[str, torch.Tensor], golden: Mapping[str, Any]
) -> Case:
    """A case with what is right, as signed sums, and the signs to make the same of a result."""
    elements = int(np.prod(golden["shape"], dtype=np.int64))
    held["golden"] = torch.tensor(golden["sketch"], dtype=torch.float64)
    held["signs"] = torch.from_numpy(signs(elements // WIDTH + 1).astype(np.int8))
    return {**case, "shape": golden["shape"], "norm": golden["norm"]}, held


@dataclass(frozen=True, slots=True)
class LoneCall:
    """One call by itself: its line of Python, and its operands."""

    line: str
    operands: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, name: str, args: Any, kwargs: Mapping[str, Any]) -> LoneCall | None:
        """A call of torch; None where it can't be written down, or is too large."""
        operands = {id(t): t for t in tensors_in((args, kwargs))}
        slots = {key: TapeSlot(number) for number, key in enumerate(operands)}
        texts = [text_of(value) for value in exchange(tuple(args), slots)]
        texts += [f"{k}={text_of(v)}" for k, v in exchange(dict(kwargs), slots).items()]
        size = sum(t.numel() * t.element_size() for t in operands.values())
        if size > MOST_BYTES or any("None?" in text for text in texts):
            return None
        line = f"x{len(operands)} = {name}({', '.join(texts)})"
        return cls(line, tuple(operands.values()))

    def case(self, operator: Mapping[str, Any], golden: torch.Tensor, device: str) -> Case:
        """The case of the call, whose right result is `golden`."""
        held = {f"x{n}": t.detach().cpu().contiguous().clone() for n, t in enumerate(self.operands)}
        made = {
            "calls": [self.line],
            "result": f"x{len(held)}[0] if isinstance(x{len(held)}, tuple) else x{len(held)}",
            "device": device,
            "inputs": {name: ["argument", str(tensor.dtype)] for name, tensor in held.items()},
            "operator": dict(operator),
        }
        return with_golden(made, held, summary(golden))


def own(row: Mapping[str, Any]) -> float:
    """How far the device's own value is from float64."""
    return float(row.get("native", 0.0)) if "error" in row else 0.0


def value_of(external: External, values: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """The baseline's tensor in the place of the target's."""
    return values.get(external.slot.number, external.value())


def source_of(entry: TapeEntry) -> str | None:
    """One call as a line of Python; None for what has no name in torch."""
    args = [text_of(value) for value in entry.args]
    args += [f"{key}={text_of(value)}" for key, value in entry.kwargs.items()]
    if any("None?" in text for text in args):
        return None
    name = resolve_name(entry.call)
    if not name and getattr(torch, entry.name, None) is entry.call:
        name = f"torch.{entry.name}"  # `_foreach_` and other calls that are no public ones
    if name and name.startswith("torch.") and "__get__" not in name:
        call = f"{name}({', '.join(args)})"
    elif entry.name in ("T", "mT", "H", "mH", "real", "imag"):
        call = f"{args[0]}.{entry.name}"
    else:
        return None
    made = ", ".join(f"x{slot.number}" for slot in entry.results)
    single = len(entry.results) == 1 and entry.name.startswith(LISTS)
    return f"{made}{',' if single else ''} = {call}" if made else call


def text_of(value: Any) -> str:
    """An argument as source, "None?" for what can't be written."""
    if isinstance(value, TapeSlot):
        return f"x{value.number}"
    if isinstance(value, Number):
        return repr(float(value))
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, torch.device):
        return "where"
    if value is None or value is ... or isinstance(value, bool | int | str):
        return "..." if value is ... else repr(value)
    if isinstance(value, float):
        return f'float("{value}")' if not np.isfinite(value) else repr(value)
    if isinstance(value, slice):
        return f"slice({', '.join(text_of(v) for v in (value.start, value.stop, value.step))})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and type(value) in (list, tuple, torch.Size):
        inner = ", ".join(text_of(member) for member in value)
        return f"[{inner}]" if type(value) is list else f"({inner}{',' if len(value) == 1 else ''})"
    return "None?"

"""A recording as advice and prediction read it: operators, their order, and who fed whom.

Reads the recorder's JSONL. A Chrome trace has no data flow; there each operator counts as fed by
the one before it in the same thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.profile.readers import recordings
from joymigrate.profile.table import DeviceKernel


@dataclass(frozen=True, slots=True)
class CapturedOperator:
    """One distinct call. `calls` and times (µs) are of one step; `args` as in the trace file."""

    op: str
    overload: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]
    calls: int
    self_us: float
    phase: str
    where: str | None
    module: str | None
    parents: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`aten::add.Tensor`."""
        return f"{self.op}.{self.overload}" if self.overload else self.op

    def tensors(self) -> Iterator[Mapping[str, Any]]:
        """The tensor arguments, lists opened."""
        yield from tensors((*self.args, *self.kwargs.values()))


def tensors(values: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Tensors among arguments, lists opened."""
    for value in values:
        if isinstance(value, dict) and "shape" in value:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


@dataclass(frozen=True, slots=True)
class Capture:
    """One recording. `stream` lists calls in order: (operator's index, calls that fed it)."""

    path: Path
    header: Mapping[str, Any]
    operators: tuple[CapturedOperator, ...]
    stream: tuple[tuple[int, tuple[int, ...]], ...] = ()
    accelerator: tuple[CapturedOperator, ...] = ()
    flow: bool = True  # whether `stream` knows the data flow, or only the order
    copies: tuple[DeviceKernel, ...] = ()  # the device's own work of moving, of one step
    device_us: float = 0.0  # of one step
    shapes: tuple[int, int, str] = (0, 0, "")  # that a model was called with, calls, its class

    @property
    def timed(self) -> bool:
        """Whether times mean anything."""
        return any(operator.self_us for operator in self.operators)

    @property
    def step_us(self) -> float:
        """Time of one step; the operators' sum where no step was timed."""
        steps = self.header.get("step_us") or []
        return sum(steps) / len(steps) if steps else sum(o.self_us for o in self.operators)

    @property
    def trains(self) -> bool:
        """Whether a backward pass was seen."""
        return any(operator.phase == "backward" for operator in self.operators)


def load(path: Path) -> Capture:
    """Read a recording; `JoyError` when the file is none."""
    operators: dict[int, CapturedOperator] = {}
    accelerator: list[CapturedOperator] = []
    shapes = (0, 0, "")
    stream: list[tuple[int, tuple[int, ...]]] = []
    header: Mapping[str, Any] | None = None
    for _, raw in recordings.lines(path, []):
        if header is None:
            header = recordings.check(raw, path)
        elif raw.get("kind") == "op":
            operators[raw.get("id", len(operators))] = operator(raw)
        elif raw.get("kind") == "watched":
            shapes = max(shapes, read_shapes(raw))
        elif raw.get("kind") == "accelerator_op":
            accelerator.append(operator(raw))
        elif raw.get("kind") == "stream":
            stream += [(n, tuple(made)) for n, made in raw["calls"]]
    if header is None:
        raise JoyError("an empty recording", where=str(path), help="record it again")
    order = {n: index for index, n in enumerate(operators)}
    calls = tuple((order[n], made) for n, made in stream if n in order)
    made = tuple(operators.values())
    return Capture(path, header, made, calls, tuple(accelerator), shapes=shapes)


def read_shapes(raw: Mapping[str, Any]) -> tuple[int, int, str]:
    """Shapes that a process's model was called with, its calls, its class."""
    shapes, calls = (int(raw.get(key) or 0) for key in ("shapes", "calls"))
    return shapes, calls, str(raw.get("module") or "")


def operator(raw: Mapping[str, Any]) -> CapturedOperator:
    """One `op` line."""
    return CapturedOperator(
        op=raw["op"],
        overload=raw.get("overload") or "",
        args=tuple(raw.get("args") or ()),
        kwargs=raw.get("kwargs") or {},
        outputs=tuple(raw.get("outputs") or ()),
        calls=int(raw.get("calls", 1)),
        self_us=float(raw.get("self_us") or 0.0),
        phase=raw.get("phase") or "other",
        where=raw.get("where"),
        module=raw.get("module"),
        parents=tuple(raw.get("parents") or ()),
    )


def list_seen(capture: Capture) -> set[str]:
    """Names with overloads of what was called."""
    return {operator.name for operator in capture.operators}


def predict(capture: Capture, chip: Chip) -> set[str]:
    """What the chip will be asked for, from a recording made elsewhere.

    Next to the recorded operators: the composites they came from (a chip may take one as a whole),
    the optimiser's step as accelerators take it, and what the chip's own package puts in place of
    an operator (`sees.yaml` of the chip).
    """
    names = list_seen(capture) | {operator.name for operator in capture.accelerator}
    names |= {parent for operator in capture.operators for parent in operator.parents}
    data = chip.data("sees.yaml") or {}
    names.update(data.get("always", ()))
    replaced = data.get("sees", {})
    for name in tuple(names):
        names.update(replaced.get(name.split(".")[0], ()))
    return names

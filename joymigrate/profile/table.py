"""One columnar table of operators: what every reader of traces makes, and what is asked later.

A row is one call, or several calls of one signature where the source counts them. Names,
signatures and call sites are numbers into lists, so a trace of a million events stays small.
Times are in microseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PHASES = ("", "forward", "backward", "optimiser", "other", "eval", "export", "worker")
NONE = -1


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The inputs of a call, one item per parameter.

    `dtypes` holds torch's names, "" for what is no tensor; `dims` and `strides` are None where
    they were not recorded or the parameter is no tensor. `kinds` is tensor, tensors, value, or
    none (left out). Empty tuples: nothing was recorded.
    """

    dtypes: tuple[str, ...] = ()
    dims: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def tensor_dtypes(self) -> tuple[str, ...]:
        """Distinct dtypes of the tensors, in order."""
        return tuple(dict.fromkeys(d for d in self.dtypes if d))


EMPTY = CallSignature()


class OpTable:
    """Columns of equal length, as `OperatorRow` says. Rows are added, never changed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.signatures: list[CallSignature] = [EMPTY]
        self.places: list[str] = [""]
        self.name = array("l")
        self.signature = array("l")
        self.parent = array("l")
        self.tid = array("l")
        self.ts = array("d")
        self.dur = array("d")
        self.self_us = array("d")
        self.device_us = array("d")
        self.place = array("l")
        self.phase = array("b")
        self.calls = array("l")
        self.operator = array("b")
        self._names: dict[str, int] = {}
        self._signatures: dict[CallSignature, int] = {EMPTY: 0}
        self._places: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self.name)

    def name_id(self, name: str) -> int:
        """The number of a name."""
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = len(self.names)
            self.names.append(name)
        return found

    def signature_id(self, signature: CallSignature) -> int:
        """The number of a signature."""
        found = self._signatures.get(signature)
        if found is None:
            found = self._signatures[signature] = len(self.signatures)
            self.signatures.append(signature)
        return found

    def place_id(self, place: str) -> int:
        """The number of a call site (`train.py:31`), 0 for an unknown one."""
        found = self._places.get(place)
        if found is None:
            found = self._places[place] = len(self.places)
            self.places.append(place)
        return found

    def add(
        self,
        name: int,
        *,
        signature: int = 0,
        parent: int = NONE,
        tid: int = 0,
        ts: float = 0.0,
        dur: float = 0.0,
        self_us: float = 0.0,
        device_us: float = 0.0,
        place: int = 0,
        phase: int = 0,
        calls: int = 1,
        operator: bool = True,
    ) -> int:
        """Append a row; its number. `name`, `signature` and `place` are numbers from above."""
        self.name.append(name)
        self.signature.append(signature)
        self.parent.append(parent)
        self.tid.append(tid)
        self.ts.append(ts)
        self.dur.append(dur)
        self.self_us.append(self_us)
        self.device_us.append(device_us)
        self.place.append(place)
        self.phase.append(phase)
        self.calls.append(calls)
        self.operator.append(operator)
        return len(self.name) - 1

    def row(self, index: int) -> OperatorRow:
        """One row with its names spelled out."""
        return OperatorRow(
            index,
            self.names[self.name[index]],
            self.signatures[self.signature[index]],
            self.parent[index],
            self.tid[index],
            self.ts[index],
            self.dur[index],
            self.self_us[index],
            self.device_us[index],
            self.places[self.place[index]],
            PHASES[self.phase[index]],
            self.calls[index],
            bool(self.operator[index]),
        )

    def rows(self) -> Iterator[OperatorRow]:
        """All rows, in the order of the tree: a parent before its children."""
        return (self.row(index) for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator call (or `calls` of them).

    `name` is `aten::add`, or `aten::add.Tensor` where overloads were recorded. `parent` is the
    number of the enclosing operator's row, -1 for none. `self_us` is time without children,
    `device_us` time of the kernels it launched itself, `place` the call site, `phase` forward,
    backward, optimiser, other or "" (not known). `operator` is false for bookkeeping beside the
    operators: nodes of autograd, marks of the user, calls of the runtime that wait.
    """

    index: int
    name: str
    signature: CallSignature
    parent: int
    tid: int
    ts: float
    dur: float
    self_us: float
    device_us: float
    place: str
    phase: str
    calls: int
    operator: bool = True


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """One kind of device kernel: `operator` is the row's name that launched it, "" if unknown."""

    name: str
    operator: str = ""
    calls: int = 0
    device_us: float = 0.0
    core: str = ""  # which kind of core ran it, where the source says it


@dataclass(frozen=True, slots=True)
class Loose:
    """Device work that no operator is known for: one kernel by name and by the reason.

    `reason` is one of `attribute.REASONS`.
    """

    name: str
    kind: str  # copy, or the core that ran it
    reason: str
    calls: int
    device_us: float


@dataclass(frozen=True, slots=True)
class Captured:
    """Launches in the order of one stream capture: kernel name ("" unknown) and operator row."""

    names: tuple[str, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphReplay:
    """One graph launch: the kernels it ran, by start, as (number of the name, µs)."""

    kernels: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What was read from one file: operators, kernels, and what is wrong with the file.

    `kind` is the format's name. `inside` names the operators around a row, outermost first, where
    there is no tree. `seen` rows come from outside the exact step: `exact` (a window) or `name` (a
    first call). `overloads` says whether names carry overloads, `tree` whether
    `parent` does. `steps` are recorded training steps, 0 if unknown. `notes` are for the user.
    """

    path: Path
    kind: str
    ops: OpTable
    kernels: tuple[DeviceKernel, ...] = ()
    device_us: float = 0.0  # of all device work, whoever owns it
    overloads: bool = False
    tree: bool = True
    steps: int = 0
    device: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    marks: dict[str, float] = field(default_factory=dict)  # runtime calls by name: how many
    inside: dict[int, tuple[str, ...]] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    watched: tuple[str, ...] = ()  # per process: how long it was watched beyond the exact step
    loose: tuple[Loose, ...] = ()  # launch and operator; graphs lie in `replays`
    captures: tuple[Captured, ...] = ()
    replays: tuple[GraphReplay, ...] = ()
    kernel_names: tuple[tuple[str, str], ...] = ()  # (name, kind) of the numbers in `replays`
    slow: frozenset[int] = frozenset()  # rows whose work the chip's own processor did (AI CPU)
    ran: bool = False  # rows are kernels that ran on the chip, not torch's operators


def tensor_dtypes(signature: CallSignature) -> Iterator[tuple[int, str]]:
    """Known dtypes of the tensors with their position among the tensors.

    A tensor without dimensions may be a number in a tensor's clothes, which kernels take as a
    scalar of any dtype.
    """
    position = 0
    for index, dtype in enumerate(signature.dtypes):
        if not dtype:
            continue
        dims = signature.dims[index] if index < len(signature.dims) else None
        if position == 0 or dims:
            yield position, dtype
        position += 1

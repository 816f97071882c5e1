"""Chrome traces of torch's profiler, of every generation, and of vendor profilers in that format.

Differences that are levelled here: an object or a list at the top; `cpu_op` or `Operator`;
`External id`, `external id`; `Input Dims`, `Input dims`; time stamps as numbers or text; threads as
numbers or text; device events by category, or by their `Task Type`; kernels tied to operators by a
runtime call, by an external id, or by an arrow.
"""

from __future__ import annotations

import gc
import marshal
import re
from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.readers.binder import LAUNCHES, Binder
from joymigrate.profile.readers.names import (
    dtype_of,
    dtype_of_tensor,
    frame_place,
    freeze,
    stack_place,
)
from joymigrate.profile.readers.stream import TextWindow
from joymigrate.profile.readers.sweep import EVENT, FRAME, MARK, POINT, EventColumns
from joymigrate.profile.table import NONE, CallSignature, OpTable, Trace

OPERATORS = frozenset(("cpu_op", "Operator", "operator"))
ANNOTATIONS = frozenset(("user_annotation",))
DEVICE = frozenset(
    ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "gpu_op", "device")
)
COPIES = frozenset(("gpu_memcpy", "Memcpy", "gpu_memset", "Memset"))
RUNTIME = frozenset(("cuda_runtime", "Runtime", "cuda_driver", "runtime", "mtia_runtime"))
ARROWS = re.compile(r"async_(?!cpu_to_gpu|gpu$|task_queue)\w+")
STEP = re.compile(r"ProfilerStep#\d+")
NUMBER = re.compile(r"\d+")


class Chrome:
    """Collects one trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = OpTable()
        self.timeline = EventColumns(self.table)
        self.signatures: dict[bytes, int] = {}
        self.stacks: dict[str, int] = {}
        self.frames: dict[str, int] = {}
        self.binder = Binder(self.table)
        self.places: dict[int, tuple[str, str, float]] = {}  # of work without a number
        self.arrows: dict[Any, int] = {}  # arrow's id → point's number, below zero
        self.ends: dict[tuple[str, str, float], Any] = {}
        self.open: dict[tuple[int, str], list[dict[str, Any]]] = {}  # B without E
        self.marks: dict[str, float] = {}
        self.steps: set[str] = set()
        self.bad = 0
        self.device = ""
        self.environment: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> None:
        """One event of the file."""
        phase = event.get("ph")
        if phase == "X":
            try:
                ts, dur = float(event["ts"]), float(event.get("dur") or 0)
                if not isfinite(ts):
                    raise ValueError
                if not 0 <= dur < inf:
                    self.binder.times.impossible += 1
                    dur = 0.0
                self.complete(event, ts, dur)
            except (KeyError, TypeError, ValueError, AttributeError):
                self.bad += 1
        elif phase in ("s", "f") and ARROWS.match(str(event.get("cat") or "")):
            self.arrow(event, phase)
        elif phase in ("B", "E"):
            self.half(event, phase)

    def half(self, event: dict[str, Any], phase: str) -> None:
        """The begin or end of an event that is written in two halves."""
        thread = self.timeline.thread_id(event.get("pid"), event.get("tid"))
        waiting = self.open.setdefault((thread, ""), [])
        if phase == "B":
            waiting.append(event)
        elif waiting:
            begun = waiting.pop()
            try:
                begun["dur"] = float(event["ts"]) - float(begun["ts"])
            except (KeyError, TypeError, ValueError):
                self.bad += 1
                return
            self.take({**begun, "ph": "X", "args": begun.get("args") or event.get("args")})

    def complete(self, event: dict[str, Any], ts: float, dur: float) -> None:
        """An event with a duration."""
        category = event.get("cat")
        args = event.get("args") or {}
        if category in OPERATORS:
            self.operator(event, args, ts, dur)
        elif category in DEVICE or (category is None and "Task Type" in args):
            self.kernel(event, args, ts, dur)
        elif category in RUNTIME:
            self.call(event, args, ts, dur)
        elif category == "python_function":
            self.frame(event, ts, dur)
        elif category in ANNOTATIONS:
            self.annotation(event, ts, dur)

    def operator(self, event: dict[str, Any], args: dict[str, Any], ts: float, dur: float) -> None:
        """An operator, or autograd's or the data loader's bookkeeping beside them."""
        name = str(event["name"])
        if STEP.match(name):
            self.steps.add(name)
        timeline = self.timeline
        external = args.get("External id", args.get("external id", 0))
        number = external if type(external) is int else 0
        stack = args.get("Call stack")
        timeline.add(
            EVENT,
            timeline.thread_id(event.get("pid"), event.get("tid")),
            ts,
            dur,
            name=self.table.name_id(name),
            signature=self.signature(args),
            place=self.stack(stack) if stack else 0,
            order=number,
        )

    def signature(self, args: dict[str, Any]) -> int:
        """The number of the event's inputs."""
        types = args.get("Input type")
        dims = args.get("Input Dims", args.get("Input dims"))
        if types is None and dims is None:
            return 0
        strides = args.get("Input Strides")
        key = marshal.dumps((types, dims, strides), 0)  # the quickest key of nested lists
        found = self.signatures.get(key)
        if found is None:
            made = signature_of(types, dims, strides)
            found = self.signatures[key] = self.table.signature_id(made)
        return found

    def stack(self, text: str) -> int:
        """The number of a call stack's place."""
        found = self.stacks.get(text)
        if found is None:
            found = self.stacks[text] = self.table.place_id(stack_place(text))
        return found

    def kernel(self, event: dict[str, Any], args: dict[str, Any], ts: float, dur: float) -> None:
        """Work of the device; bound to operators when everything is read."""
        correlation = args.get("correlation")
        external = args.get("External id", args.get("external id"))
        kind = "copy" if event.get("cat") in COPIES else str(args.get("Task Type") or "")
        if correlation is None:
            place = (str(event.get("pid")), str(event.get("tid")), ts)
            self.places[len(self.binder.work)] = place
        self.binder.times.take(ts, dur)
        self.binder.work.add(
            str(event["name"]),
            kind,
            ts,
            dur,
            correlation=correlation if type(correlation) is int else NONE,
            external=external if type(external) is int else NONE,
        )

    def call(self, event: dict[str, Any], args: dict[str, Any], ts: float, dur: float) -> None:
        """A call of the runtime: remembered by its correlation, and as an event if it waits."""
        name = str(event["name"])
        timeline = self.timeline
        thread = timeline.thread_id(event.get("pid"), event.get("tid"))
        self.marks[name] = self.marks.get(name, 0.0) + 1
        if "ynchronize" in name:
            timeline.add(MARK, thread, ts, dur, name=self.table.name_id(name))
        correlation = args.get("correlation")
        if type(correlation) is int and correlation > 0:
            timeline.add(POINT, thread, ts, 0.0, order=correlation)
            if LAUNCHES.search(name):
                self.binder.launches.add(name, args.get("kernel"), correlation, thread, ts)
        if "StreamBeginCapture" in name or "StreamEndCapture" in name:
            self.binder.launches.captures.append((thread, ts, "Begin" in name))

    def frame(self, event: dict[str, Any], ts: float, dur: float) -> None:
        """A Python frame; only the user's own are kept."""
        name = str(event["name"])
        place = self.frames.get(name)
        if place is None:
            place = self.frames[name] = self.table.place_id(frame_place(name))
        if place:
            thread = self.timeline.thread_id(event.get("pid"), event.get("tid"))
            self.timeline.add(FRAME, thread, ts, dur, place=place)

    def annotation(self, event: dict[str, Any], ts: float, dur: float) -> None:
        """A mark of the user or of torch (`ProfilerStep#3`, `Optimizer.step#AdamW.step`)."""
        name = str(event["name"])
        if STEP.match(name):
            self.steps.add(name)
        thread = self.timeline.thread_id(event.get("pid"), event.get("tid"))
        self.timeline.add(MARK, thread, ts, dur, name=self.table.name_id(name), order=NONE)

    def arrow(self, event: dict[str, Any], phase: str) -> None:
        """An arrow from an operator to the device's work."""
        try:
            ts = float(event["ts"])
        except (KeyError, TypeError, ValueError):
            return
        if phase == "s":
            thread = self.timeline.thread_id(event.get("pid"), event.get("tid"))
            number = -2 - len(self.arrows)
            self.arrows[event.get("id")] = number
            self.timeline.add(POINT, thread, ts, 0.0, order=number)
        else:
            self.ends[(str(event.get("pid")), str(event.get("tid")), ts)] = event.get("id")

    def follow_arrows(self) -> None:
        """Work without a number gets that of the point where its arrow starts."""
        for index, place in self.places.items():
            number = self.arrows.get(self.ends.get(place), NONE)
            self.binder.work.correlation[index] = number

    def finish(self, window: TextWindow) -> Trace:
        """Everything put together."""
        self.timeline.build()
        self.follow_arrows()
        binder = self.binder
        notes: list[Any] = binder.times.notes(binder.work, self.timeline.span_us())
        if any(self.frames.values()) and not any(self.stacks.values()):
            notes.append("call sites are the functions' lines as the profiler saw them, not exact")
        if window.cut:
            notes.append("the file is cut short; what is in it was read")
        if window.skipped or self.bad:
            notes.append(f"{window.skipped + self.bad} events could not be read and were left out")
        names = self.table.names
        return Trace(
            path=self.path,
            kind="chrome",
            ops=self.table,
            overloads=any(n.startswith("aten::") and "." in n for n in names),
            steps=len(self.steps),
            device=self.device,
            environment=self.environment,
            notes=tuple(notes),
            marks=self.marks,
            **binder.bind(self.timeline),
        )


def signature_of(types: Any, dims: Any, strides: Any) -> CallSignature:
    """Inputs as a profiler writes them."""
    types = [str(one) for one in types] if isinstance(types, list) else []
    dims = dims if isinstance(dims, list) else []
    strides = strides if isinstance(strides, list) else []
    dtypes = tuple(
        dtype_of_tensor(one) if i < len(dims) and is_shape(dims[i]) else dtype_of(one)
        for i, one in enumerate(types)
    )
    shapes = tuple(freeze(one) for one in dims)
    kinds = tuple(
        input_kind(
            types[i] if i < len(types) else "", dtypes[i] if i < len(dtypes) else "", dims, i
        )
        for i in range(max(len(types), len(dims)))
    )
    return CallSignature(dtypes, shapes, tuple(freeze(one) for one in strides), kinds)


def input_kind(written: str, dtype: str, dims: list[Any], index: int) -> str:
    """tensor, tensors, value, or none, of one input."""
    if dtype:
        return "tensor"
    shape = dims[index] if index < len(dims) else []
    if written == "TensorList" or (shape and isinstance(shape, list) and all_lists(shape)):
        return "tensors"
    if shape and not written:
        return "tensor"
    return "value" if written else "none"


def is_shape(dims: Any) -> bool:
    """Whether an input has the dimensions of a tensor."""
    return isinstance(dims, list) and bool(dims) and all(type(one) is int for one in dims)


def all_lists(shape: list[Any]) -> bool:
    """Whether a shape is a list of shapes."""
    return all(isinstance(one, list) for one in shape)


def read(path: Path) -> Trace:
    """One Chrome trace."""
    trace = Chrome(path)
    take = trace.take
    seen = 0
    collecting = gc.isenabled()
    gc.disable()  # events make no cycles; looking for some costs a third of the time
    with TextWindow(path) as window:
        try:
            for event in events(window, trace):
                seen += 1
                take(event)
        except ValueError as error:
            raise JoyError(f"not a trace: {error}", where=str(path)) from None
        except EOFError:
            window.cut = True
        finally:
            if collecting:
                gc.enable()
    if not seen:
        raise JoyError(
            "no events in this trace",
            where=str(path),
            help="record one: joymigrate profile record -- python train.py",
        )
    return trace.finish(window)


def events(window: TextWindow, trace: Chrome) -> Iterator[dict[str, Any]]:
    """The events of a list at the top, or of `traceEvents`."""
    if window.peek() == "[":
        yield from window.objects()
        return
    for key in window.members():
        if key == "traceEvents" and window.peek() == "[":
            yield from window.objects()
            continue
        value = window.value()
        if key == "distributedInfo":
            trace.environment["distributed"] = value
        elif key == "deviceProperties" and value and isinstance(value, list):
            trace.device = str(value[0].get("name", "")) if isinstance(value[0], dict) else ""


def kind_of(start: bytes, text: str) -> str:
    """chrome for any other object, and for a list."""
    return "chrome" if text.startswith(("{", "[")) else ""


RANK = 9
READERS = {"chrome": read}

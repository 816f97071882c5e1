"""Migration traps: what works elsewhere and not on this chip, recognised while the program runs.

A trap is found by a message of the package (an error that ends the program, a Python warning), by
a question the program asks (`torch.cuda.is_available()`), or by an argument (`memory_format`).
Nothing the program sees changes.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, TextIO

import torch

from joymigrate.chips import rules_root
from joymigrate.language import Text
from joymigrate.run.rehearse.callsite import call_site, is_users
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.schema import read_yaml


@dataclass(frozen=True, slots=True)
class Trap:
    """A message to recognise, and what to do about it."""

    name: str
    pattern: str
    remedy: str


FILE = Path("ascend") / "traps.yaml"
CASTING = "torch/nn/modules/module.py"  # model.double()
OURS = str(Path(__file__).parents[2]) + os.sep
FLOAT64 = "float64 becomes float32 on the device"
FLOAT64_REMEDY = "use float32 and compare with tolerances, or keep the tensor on the CPU"
IS_AVAILABLE = "torch.cuda.is_available() is False on this chip: the program takes its CPU path"
IS_AVAILABLE_REMEDY = "joymigrate rewrite, or ask torch.npu.is_available()"


@cache
def read_traps() -> tuple[Trap, ...]:
    """The chip's messages, in the order in which they are asked."""
    rows = read_yaml(rules_root() / FILE)["messages"]
    return tuple(Trap(row["name"], row["pattern"], row["remedy"]) for row in rows)


def recognise(message: str) -> Trap | None:
    """The trap that a message belongs to."""
    return next((trap for trap in read_traps() if re.search(trap.pattern, message, re.S)), None)


def install(record: RehearsalRecord) -> None:
    """Watch this process."""
    watch_errors(record)
    watch_warnings(record)
    watch_cuda(record)
    watch_attributes(record)


def user_frame(trace: TracebackType | None) -> str:
    """`file:line` of the last frame of the program's own in a traceback."""
    frames = [f for f in traceback.extract_tb(trace) if is_users(f.filename)]
    own = [f for f in frames if "site-packages" not in f.filename] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "unknown"


def watch_errors(record: RehearsalRecord) -> None:
    """Errors that end the program or one of its threads."""
    before, before_thread = sys.excepthook, threading.excepthook

    def note(kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
        trap = recognise(str(error))
        if trap is not None:
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            record.trap(trap.name, user_frame(trace), trap.remedy, first[:300])

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        note(kind, error, trace)
        return before(kind, error, trace)

    def thread_hook(arguments: threading.ExceptHookArgs) -> Any:
        note(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        return before_thread(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook


def watch_warnings(record: RehearsalRecord) -> None:
    """Warnings that the program would see."""
    before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        trap = recognise(str(message))
        if trap is not None:
            # torch's warnings name the topmost frame, which may be of a mode of ours
            place = f"{filename}:{lineno}" if is_users(filename) else call_site()
            record.trap(trap.name, place, trap.remedy, str(message)[:300])
        before(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def watch_cuda(record: RehearsalRecord) -> None:
    """A program that still asks for CUDA gets no error, only the CPU."""
    real = torch.cuda.is_available

    def is_available() -> bool:
        found = real()
        frame: Any = sys._getframe(1)
        if frame.f_code.co_filename.startswith(OURS):  # the door's
            frame = frame.f_back
        name = frame.f_code.co_filename
        if not found and is_users(name) and "site-packages" not in name:
            place = f"{name}:{frame.f_lineno}"
            record.trap("cuda_is_available", place, IS_AVAILABLE_REMEDY, IS_AVAILABLE)
        return found

    is_available.__wrapped__ = real  # type: ignore[attr-defined]
    torch.cuda.is_available = is_available


def watch_attributes(record: RehearsalRecord) -> None:
    """`torch.npu.OutOfMemoryError` and others that torch.cuda has and torch.npu has not."""
    module: ModuleType = torch.npu  # type: ignore[attr-defined]
    real = getattr(module, "__getattr__", partial(ModuleType.__getattribute__, module))

    def missing(*args: str) -> Any:
        try:
            return real(*args)
        except AttributeError:
            frame, name = sys._getframe(1), args[0]
            asked = is_users(frame.f_code.co_filename) and not name.startswith("_")
            if asked and hasattr(torch.cuda, name):
                text = Text("torch.npu has no {name}, which torch.cuda has", name=name)
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                known = read_yaml(rules_root() / FILE)["missing"]
                remedy = known.get(name, known["else"])
                record.trap("missing_attribute", place, remedy, text)
            raise

    module.__getattr__ = missing  # type: ignore[method-assign]


def asks_for_cast() -> bool:
    """Whether the program asks for a cast, and not torch for itself (its printer, a scaler): a
    thread of autograd, which has no line below ours, casts gradients back."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    if frame is None:
        return False
    name = frame.f_code.co_filename
    return is_users(name) or name.startswith("<") or name.endswith(CASTING)


def watching_casts(real: Any, keys: Any, record: RehearsalRecord) -> Callable[..., Any]:
    """The package's `_to_copy`, which tells of float64 and of memory formats."""

    def to_copy(*args: Any, **kwargs: Any) -> Any:
        casts = kwargs.get("dtype") is torch.float64 is not args[0].dtype
        if casts and asks_for_cast():
            record.trap("float64", call_site(), FLOAT64_REMEDY, FLOAT64)
        form = kwargs.get("memory_format")
        if form in (torch.channels_last, torch.channels_last_3d):
            trap = next(one for one in read_traps() if one.name == "channels_last")
            text = "memory_format=torch.channels_last is refused on this device"
            record.trap(trap.name, call_site(), trap.remedy, text)
        return real.call_boxed(keys, *args, **kwargs)

    return to_copy

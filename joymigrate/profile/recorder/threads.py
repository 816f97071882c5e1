"""First calls in threads that the program starts, and functions with a backward of their own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from joymigrate.profile.recorder.kinds import kind_of
from joymigrate.profile.recorder.operators import ProgramContext, RecordedCall, Recording, modes

LOCK = threading.Lock()


class RecordedRun(Protocol):
    """What is needed of the run that is watched."""

    active: bool
    backward_is_new: bool

    def here(self) -> bool:
        """Whether this thread is the watched one."""

    def note(self, call: RecordedCall, *, exact: bool) -> None:
        """Write one call, the first time."""


class ThreadWatch(TorchFunctionMode):
    """Records what was not called in this thread before, by name."""

    def __init__(self, run: RecordedRun) -> None:
        super().__init__()
        self.run = run
        self.known: set[Any] = set()
        self.behind = 0  # how much was known at the last backward pass

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        key = (func, *map(kind_of, args), *map(kind_of, kwargs.values()))
        if func is torch.Tensor.backward:
            key = (func, len(self.known))
            self.known.discard((func, self.behind))
            self.behind = len(self.known)
        if key in self.known or not self.run.active or modes() or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        self.known.add(key)
        recording = Recording(ProgramContext("forward" if torch.is_grad_enabled() else "other"))
        recording.begin()
        try:
            return func(*args, **kwargs)
        finally:
            recording.end()
            self.note(recording.mode.signatures.values())

    def note(self, calls: Iterable[RecordedCall]) -> None:
        """Hand calls to the run, one thread at a time."""
        with LOCK:
            for call in calls:
                self.run.note(call, exact=False)


def watch_threads(run: RecordedRun) -> Callable[[], None]:
    """Look into threads that are started from here on; returns how to stop."""
    owner: Any = threading.Thread
    real = owner._bootstrap_inner

    @functools.wraps(real)
    def bootstrap(self: threading.Thread) -> None:
        if not run.active:
            return real(self)  # type: ignore[no-any-return]
        with ThreadWatch(run):
            return real(self)  # type: ignore[no-any-return]

    owner._bootstrap_inner = bootstrap

    def put_back() -> None:
        if owner._bootstrap_inner is bootstrap:
            owner._bootstrap_inner = real

    return put_back


def watch_functions(run: RecordedRun) -> Callable[[], None]:
    """The first call of an `autograd.Function` makes the next backward pass new."""
    owner: Any = torch.autograd.Function
    real = owner.__dict__["apply"]
    seen: set[Any] = set()

    @functools.wraps(real.__func__)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls not in seen and run.here():
            seen.add(cls)
            run.backward_is_new = True
        return real.__func__(cls, *args, **kwargs)

    placed = classmethod(apply)
    owner.apply = placed

    def put_back() -> None:
        if owner.__dict__.get("apply") is placed:
            owner.apply = real

    return put_back

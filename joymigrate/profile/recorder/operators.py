"""One step's operators, exactly: dtypes, strides, values, phase, call site, module, data flow.

A mode below autograd sees what reaches the device: composite operators have come apart by then.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from joymigrate.modes import WatchingMode
from joymigrate.profile.recorder import arguments
from joymigrate.profile.recorder.callsite import CallSites
from joymigrate.profile.recorder.collectives import special

MANY = 256  # signatures of one operator at one place; after that scalars are no longer told apart
TRACERS = ("torch._subclasses", "torch.fx", "torch._functorch", "torch._export", "torch._inductor")
LONGEST_STREAM = 200_000  # calls whose order and data flow are kept
LONGEST_RECORDING = 500_000  # calls of a program without steps; at 20 us each, ten seconds


@dataclass(slots=True)
class RecordedCall:
    """One distinct call: what it was called with, where, how often."""

    number: int
    op: str
    overload: str
    args: Any
    kwargs: Any
    outputs: Any
    phase: str
    where: str | None
    module: str | None
    calls: int = 0
    self_us: float = 0.0
    cpu_us: float = 0.0
    spent_us: float = 0.0  # on the host, as the recorder saw it
    parents: tuple[str, ...] = ()


@dataclass(slots=True)
class ProgramContext:
    """Where the program is; kept by whoever watches it, read at each operator."""

    phase: str = "other"
    modules: list[str] = field(default_factory=list)


class OperatorRecorder(WatchingMode):
    """Notes each operator and calls it unchanged."""

    def __init__(self, context: ProgramContext) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.context = context
        self.sites = CallSites()
        self.signatures: dict[Any, RecordedCall] = {}
        self.crowded: dict[Any, int] = {}
        self.stream: list[tuple[int, tuple[int, ...]]] = []
        self.made_by: dict[int, tuple[Any, int]] = {}  # id of a tensor → (weak reference, call)
        self.origins: dict[int, tuple[str | None, str | None]] = {}  # autograd node → forward
        self.names: dict[Any, tuple[str, str]] = {}
        self.active = True
        self.noted = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap the method below to keep its compiler out: that imports the compiler
        # (2 s) into programs that don't use it, and costs 7 µs at each operator.
        return cls.__name__ == "BesideCompiler"

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        began = time.perf_counter()
        result = func(*args, **kwargs)
        if self.active and func.namespace != "profiler":
            spent_us = (time.perf_counter() - began) * 1e6
            self.note(func, args, kwargs, result, spent_us)
        return result

    def note(self, func: Any, args: Any, kwargs: Any, result: Any, spent_us: float) -> None:
        """Count one call."""
        phase, where, module = self.place(args)
        op, overload = self.names.get(func) or self.name(func)
        described = tuple(map(arguments.key, args))
        named = tuple((k, arguments.key(v)) for k, v in kwargs.items()) if kwargs else ()
        if "c10d" in func.namespace:
            kind = special(func.namespace, args, sys._getframe(1))
            if kind:  # another operator, as far as a chip is concerned
                op, named = f"{op.rstrip('_')}_{kind}", (*named, ("reduce_op", kind))
        key = (func, described, named, phase, where, module)
        found = self.signatures.get(key)
        if found is None:
            found = self.add(key, op, overload, result)
        found.calls += 1
        found.spent_us += spent_us
        self.noted += 1
        if self.noted >= LONGEST_RECORDING:
            self.active = False
        if len(self.stream) < LONGEST_STREAM:
            self.follow(found.number, args, kwargs, result)

    def add(self, key: Any, op: str, overload: str, result: Any) -> RecordedCall:
        """A new signature, unless this place makes a new one at every call."""
        func, described, named, *place = key
        spot = (func, *place)
        self.crowded[spot] = self.crowded.get(spot, 0) + 1
        if self.crowded[spot] > MANY:
            described, named = arguments.without_values(described), arguments.without_values(named)
            key = (func, described, named, *place)
            if key in self.signatures:
                return self.signatures[key]
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        made = RecordedCall(
            len(self.signatures),
            op,
            overload,
            described,
            named,
            tuple(map(arguments.key, outputs)),
            *place,
        )
        self.signatures[key] = made
        return made

    def name(self, func: Any) -> tuple[str, str]:
        """`aten::add` and `Tensor` of an overload; the default overload is the empty name."""
        schema = getattr(func, "_schema", None)
        if schema is None:  # a higher-order operator
            found = (f"higher_order::{getattr(func, '__name__', func)}", "")
        else:
            found = (schema.name, schema.overload_name)
        self.names[func] = found
        return found

    def place(self, args: tuple[Any, ...]) -> tuple[str, str | None, str | None]:
        """Phase, call site and module. In a backward pass: those of the forward call."""
        context = self.context
        if torch._C._current_graph_task_id() >= 0:
            node = torch._C._current_autograd_node()
            origin = self.origins.get(node._sequence_nr()) if node is not None else None
            return ("backward", *(origin or (None, None)))
        where = self.sites.here(sys._getframe(3))
        module = context.modules[-1] if context.modules else None
        phase = context.phase
        if phase == "other" and any(a.requires_grad for a in args if isinstance(a, torch.Tensor)):
            phase = "forward" if torch.is_grad_enabled() else phase
        if phase != "optimiser":
            # The autograd node of this operator was made just before, with the number before.
            self.origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, (where, module))
        return phase, where, module

    def follow(self, number: int, args: Any, kwargs: Any, result: Any) -> None:
        """Keep the order of calls, and which earlier calls made the inputs of this one."""
        call = len(self.stream)
        producers = []
        for value in (*args, *kwargs.values()) if kwargs else args:
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(each, torch.Tensor):
                    made = self.made_by.get(id(each))
                    known = made is not None and made[0]() is each
                    producers.append(made[1] if known and made is not None else -1)
        self.stream.append((number, tuple(producers)))
        for each in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(each, torch.Tensor):
                self.made_by[id(each)] = (weakref.ref(each), call)


class BesideCompiler(OperatorRecorder):
    """The same in a program that compiles: torch keeps its compiler out of the method."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


class Recording:
    """Puts a recorder onto torch's stack of modes, and takes it off wherever the program is."""

    def __init__(self, context: ProgramContext) -> None:
        kind = BesideCompiler if "torch._dynamo" in sys.modules else OperatorRecorder
        self.mode = kind(context)
        self.entered = False

    def begin(self, *, above: bool = False) -> bool:
        """Start to record. Not while another mode watches: the two would leave in wrong order.

        `above`: around one call, which leaves before the program's own modes do.
        """
        if tracing() if above else modes():
            return False
        self.mode.__enter__()
        self.entered = True
        return True

    def refresh(self) -> None:
        """A step begins in a recording that the program's set-up may have filled.

        The program may have loaded torch's compiler since.
        """
        self.mode.noted, self.mode.active = 0, True
        if "torch._dynamo" in sys.modules:
            self.mode.__class__ = BesideCompiler

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing of what is ours."""
        self.mode.active = False
        try:
            yield
        finally:
            self.mode.active = True

    def end(self) -> None:
        """Stop recording; the mode leaves the stack when it is on top."""
        self.mode.active = False
        self.mode.made_by.clear()
        self.leave()

    def leave(self) -> None:
        """Leave the stack, if nothing that the program started since lies above."""
        if self.entered and modes()[-1:] == [self.mode]:
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.entered = False


def as_line(call: RecordedCall, kind: str) -> dict[str, Any]:
    """One recorded call as a line of a recording; `kind` is op, accelerator_op or seen."""
    return {
        "kind": kind,
        "id": call.number,
        "op": call.op,
        "overload": call.overload,
        "args": [arguments.as_json(arg) for arg in call.args],
        "kwargs": {name: arguments.as_json(value) for name, value in call.kwargs},
        "outputs": [arguments.as_json(value) for value in call.outputs],
        "calls": call.calls,
        "self_us": round(call.self_us, 3),
        "cpu_us": round(call.cpu_us, 3),
        "phase": call.phase,
        "where": call.where,
        "module": call.module,
        "parents": list(call.parents),
    }


def modes() -> list[Any]:
    """The dispatch modes of this thread, the top one last."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    stack: Callable[[], list[Any]] = _get_current_dispatch_mode_stack
    return stack()


def tracing() -> bool:
    """Whether operators are recorded already, or traced and not computed (fake tensors, graphs)."""
    return any(
        isinstance(one, OperatorRecorder) or type(one).__module__.startswith(TRACERS)
        for one in modes()
    )

"""The rest of the run, beyond the exact step: the first occurrence of each operator.

A function mode sees every call of torch from Python. One that is new (function, dtypes, phase) is
called once under the exact recorder, and so is the next backward pass; what is known passes with a
look into a set. A top-level module call with a new mode or a new class of shapes is recorded whole.
Each finding is written at once, so that a process that is killed leaves what it saw.

Not seen: new operators that compiled code or an optimiser reaches by itself after its first step,
and new dtypes inside a function of Python that was called before with the same ones.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from joymigrate import attach
from joymigrate.profile.recorder import arguments
from joymigrate.profile.recorder.collectives import watch_collectives
from joymigrate.profile.recorder.export_graphs import ExportedCall, exported_calls
from joymigrate.profile.recorder.kinds import kind_of
from joymigrate.profile.recorder.operators import (
    ProgramContext,
    RecordedCall,
    Recording,
    as_line,
    tracing,
)
from joymigrate.profile.recorder.threads import watch_functions, watch_threads

WINDOWS = 64  # top-level calls that are recorded whole, at most
KEYS = 20_000  # distinct (function, dtypes, phase) that are told apart
FOLDER = "seen"
# Attributes that are read and never computed; of the others (`T`, `real`) some are operators.
PLAIN = frozenset(
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "grad", "requires_grad", "is_leaf", "grad_fn", "ndim",
                 "layout", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_meta", "itemsize",
                 "names", "_version", "output_nr", "name")
    if type(getattr(Tensor, name, None)).__name__ == "getset_descriptor"
)  # fmt: skip
grad_enabled, inference_enabled = torch.is_grad_enabled, torch.is_inference_mode_enabled


class CallWatch(TorchFunctionMode):
    """Hands calls that were not seen before to the run."""

    def __init__(self, run: WholeRun) -> None:
        super().__init__()
        self.run = run
        self.known: set[Any] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # This stands before every call of torch: no function of ours where a comparison will do.
        if func in PLAIN:
            return func(*args)
        run = self.run
        parts = [func, run.evaluating, run.context.phase, grad_enabled(), inference_enabled()]
        for one in args:
            kind = type(one)
            if kind is Tensor or kind is Parameter:
                parts.append(one.dtype)
            else:
                parts.append(kind if kind is int or kind is float else kind_of(one))
        if kwargs:
            parts += map(kind_of, kwargs.values())
        key = tuple(parts)
        if key in self.known or run.busy:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if len(self.known) < KEYS:
            self.known.add(key)
        with self.run.exactly("call", around=getattr(func, "__name__", "")):
            return func(*args, **kwargs)


class WholeRun:
    """Watches one process until its end. `worker`: it is a child of the program."""

    def __init__(
        self,
        context: ProgramContext,
        session: Path,
        *,
        worker: bool = False,
        stepping: Callable[[], bool] = bool,
    ) -> None:
        self.context = context
        self.session = session
        self.worker = worker
        self.stepping = stepping  # whether steps are recorded now: no windows of ours then
        self.thread = threading.get_ident()
        self.path = session / FOLDER / f"{os.getpid()}.jsonl"
        self.watch = CallWatch(self)
        self.told: set[Any] = set()
        self.shapes: set[Any] = set()  # that were recorded whole
        self.calls: Counter[tuple[str, bool]] = Counter()  # by model and mode
        self.sizes: defaultdict[tuple[str, bool], set[Any]] = defaultdict(set)
        self.windows = 0
        self.busy = False  # an exact recording of ours is on
        self.active = False
        self.backward_is_new = False
        self.exporting = False
        self.exported: set[ExportedCall] = set()
        self.evaluating = False
        self.depth = 0
        self.undo: list[Callable[[], None]] = []

    def start(self, known: list[RecordedCall]) -> None:
        """Watch from here on. `known` calls were recorded before."""
        if self.active:
            return
        self.tell({"kind": "watch", "worker": self.worker, "parent": os.getppid()})
        for call in known:
            self.note(call, exact=True)
        self.active = True
        self.install()
        self.watch.__enter__()  # type: ignore[no-untyped-call]

    def stop(self, reason: str) -> None:
        """Watch no more, and say why. Safe to call again."""
        if not self.active:
            return
        self.active = False
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()
        if threading.get_ident() == self.thread and self.watch in function_modes():
            self.leave()
        model = max(self.sizes, key=lambda key: len(self.sizes[key]), default=("", False))
        self.tell({"kind": "watched", "until": reason, "shapes": len(self.sizes[model]),
                   "calls": self.calls[model], "module": model[0],
                   "training": model[1]})  # fmt: skip

    def abandon(self) -> None:
        """Forget the parent's watch in a child that was forked from it."""
        self.told.clear()
        if self.active:
            self.active = False
            for undo in reversed(self.undo):
                undo()
            if self.watch in function_modes():
                self.leave()

    def leave(self) -> None:
        """Take the function mode off, whatever the program put above it."""
        above = []
        while True:
            mode = torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
            if mode is self.watch:
                break
            above.append(mode)
        for mode in reversed(above):
            torch.overrides._push_mode(mode)  # type: ignore[no-untyped-call]

    def here(self) -> bool:
        """Whether this thread is watched now, and no compiler or exporter traces it."""
        return (
            self.active
            and not self.busy
            and not self.exporting
            and threading.get_ident() == self.thread
            and not torch.compiler.is_compiling()
        )

    def phase(self) -> str:
        """Where the program is: worker, optimiser, eval, or as the recorder knows."""
        if self.worker:
            return "worker"
        if self.context.phase == "optimiser":
            return "optimiser"
        if self.evaluating or torch.is_inference_mode_enabled():
            return "eval"
        return "forward" if torch.is_grad_enabled() else "other"

    @contextmanager
    def exactly(self, why: str, around: str = "") -> Iterator[None]:
        """Record what happens inside, unless a mode of the program's own watches.

        `around` is the function that was called: a chip may take it as a whole.
        """
        recording = Recording(self.context)
        if self.busy or tracing() or self.exporting or torch.compiler.is_compiling():
            yield
            return
        before, self.context.phase = self.context.phase, self.phase()
        self.busy = True
        began = recording.begin(above=True)
        try:
            yield
        finally:
            if began:
                recording.end()
            self.context.phase = before
            self.busy = False
            try:
                for call in recording.mode.signatures.values():
                    if around and call.phase != "backward":
                        call.parents = (f"aten::{around}",)
                    self.note(call, exact=why == "window")
            except Exception as error:  # ours must not end the program
                self.stop(f"{type(error).__name__} in the recorder")

    def note(self, call: RecordedCall, *, exact: bool) -> None:
        """Write one call, the first time that its operator, dtypes and phase meet."""
        self.backward_is_new |= call.phase in ("forward", "worker") and not exact
        phase = "worker" if self.worker else call.phase
        dtypes = tuple(
            arguments.short(a[0]) for a in call.args if isinstance(a, arguments.TensorKey)
        )
        key = (call.op, call.overload, dtypes, phase)
        if key in self.told:
            return
        self.told.add(key)
        line = as_line(call, "seen")
        self.tell({**line, "phase": phase, "exact": exact, "calls": 1})

    def tell(self, line: dict[str, Any]) -> None:
        """Append one line, at once."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError:  # a full disk must not change the program's outcome
            self.active = False

    def install(self) -> None:
        """Look at top-level module calls, modes, optimisers, backward passes, exporters."""
        self.patch(torch.nn.Module, "__call__", self.module_call)
        self.patch(torch.nn.Module, "train", self.mode_switch)
        self.patch(torch.optim.Optimizer, "zero_grad", self.unwatched)
        for name in ("backward", "grad"):
            self.patch(torch.autograd, name, self.backward)
        for owner, name in ((torch.jit, "trace"), (torch.jit, "script")):
            self.patch(owner, name, self.export)
        self.patch(torch, "compile", self.compiled)
        watch_collectives(self)
        self.undo += [*watch_optimiser_steps(self), watch_threads(self), watch_functions(self)]
        for module, name in (("torch.export", "export"), ("torch.onnx", "export")):
            self.when_there(module, name)

    def when_there(self, module: str, name: str) -> None:
        """Look at an exporter when its module is loaded: loading it here costs seconds."""
        import sys

        def patch() -> None:
            if self.active:
                self.patch(sys.modules[module], name, self.export)

        if callable(getattr(sys.modules.get(module), name, None)):
            patch()
        else:
            attach.after_import(module, patch, who=f"{module}.{name}")

    def patch(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Put `around(real, *args)` in the place of an attribute until the watch ends."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            if not self.here():
                return real(*args, **kwargs)
            return around(real, *args, **kwargs)

        own = name in vars(owner)
        setattr(owner, name, replaced)

        def put_back() -> None:
            if vars(owner).get(name) is replaced:
                setattr(owner, name, real) if own else delattr(owner, name)

        self.undo.append(put_back)

    def module_call(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        """A top-level call in a new mode or with new shapes is recorded whole."""
        if self.depth or torch._C._current_graph_task_id() >= 0:
            return real(*args, **kwargs)
        module, *inputs = args
        inputs += kwargs.values()
        model = (type(module).__name__, module.training)
        self.calls[model] += 1
        if len(self.sizes[model]) < KEYS:
            self.sizes[model].add(shapes_of(inputs, int))
        if self.stepping():
            return real(*args, **kwargs)
        mode = (type(module), module.training, torch.is_grad_enabled(), torch.is_autocast_enabled())
        key = (*mode, shapes_of(inputs, int.bit_length))
        before, self.evaluating = self.evaluating, not module.training
        self.depth += 1
        try:
            if key in self.shapes or self.windows >= WINDOWS:
                return real(*args, **kwargs)
            self.shapes.add(key)
            self.windows += 1
            with self.exactly("window"):
                return real(*args, **kwargs)
        finally:
            self.depth -= 1
            self.evaluating = before

    def mode_switch(self, real: Any, module: Any, mode: bool = True) -> Any:
        """`eval()` and `train()` say in which phase the code around the calls is."""
        result = real(module, mode)
        if not self.depth:
            self.evaluating = not mode
        return result

    def backward(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        """A backward pass behind something new is recorded whole."""
        if not self.backward_is_new or self.stepping():
            return real(*args, **kwargs)
        self.backward_is_new = False
        with self.exactly("window"):
            return real(*args, **kwargs)

    def unwatched(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        """What calls torch often and always alike."""
        with torch._C.DisableTorchFunction():
            return real(*args, **kwargs)

    def export(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        """An exporter traces without us; its graph says which operators it holds."""
        self.exporting = True
        try:
            with torch._C.DisableTorchFunction():
                result = real(*args, **kwargs)
            try:
                calls = list(exported_calls(result))
            except Exception:  # a graph that we can't read must not end the program
                calls = []
                self.tell({"kind": "unread", "what": f"{real.__module__}.{real.__name__}"})
        finally:
            self.exporting = False
        for call in calls:
            if call in self.exported:
                continue
            self.exported.add(call)
            if call.closed:
                self.tell({"kind": "unread", "what": call.name})
            shown = [{"dtype": one, "shape": [], "stride": []} for one in call.dtypes]
            parents = {"parents": [call.inside]} if call.inside else {}
            self.tell(
                {"kind": "seen", "op": call.name, "overload": call.overload, "args": shown,
                 "calls": 1, "phase": "export", "exact": False, **parents}
            )  # fmt: skip
        return result

    def compiled(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        """A compiler can't bear to be watched, and hides what it calls."""
        self.stop("torch.compile")
        return real(*args, **kwargs)


def watch_optimiser_steps(run: WholeRun) -> list[Callable[[], None]]:
    """An optimiser's first step is recorded whole; of torch's own the others pass unwatched."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    first: set[Any] = set()
    open_steps: list[Any] = []

    def before(optimiser: Any, *_: Any) -> None:
        if not run.here() or run.stepping():
            return
        kind = type(optimiser)
        context: Any = contextlib.nullcontext()  # of others anything may come at any step
        if kind not in first:
            context = run.exactly("window")
        elif kind.__module__.startswith("torch.optim"):
            context = torch._C.DisableTorchFunction()
        first.add(kind)
        saved, run.context.phase = run.context.phase, "optimiser"
        context.__enter__()
        open_steps.append((optimiser, context, saved))

    def after(optimiser: Any, *_: Any) -> None:
        if open_steps and open_steps[-1][0] is optimiser:
            _, context, saved = open_steps.pop()
            context.__exit__(None, None, None)
            run.context.phase = saved

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    return [hook.remove for hook in hooks]


def shapes_of(value: Any, size: Callable[[int], int]) -> Any:
    """What inputs are alike by: dtype, rank and sizes, as `size` tells them apart."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(size(int(n)) for n in value.shape))
    if isinstance(value, (list, tuple)):
        return tuple(shapes_of(one, size) for one in value[:16])
    if isinstance(value, dict):
        return tuple((str(k), shapes_of(v, size)) for k, v in list(value.items())[:16])
    return type(value) if not isinstance(value, (str, bool)) else value


def function_modes() -> list[Any]:
    """The function modes of this thread."""
    from torch._C import _get_function_stack_at, _len_torch_function_stack

    return [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]

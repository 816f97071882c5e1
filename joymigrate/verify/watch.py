"""The points of torch that a recording looks at: module calls, optimisers, backward passes and data
loaders. Each is put back when the recording is over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from joymigrate import attach
from joymigrate.verify import graphs
from joymigrate.verify.recorder import Recorder
from joymigrate.verify.settings import OPS, RecordingSettings
from joymigrate.verify.transforms import watch_transforms, within

DISTRIBUTED = "torch.distributed.tensor"
DYNAMO = "torch._dynamo"
EAGER = "functions given to torch.compile run without it while their calls are recorded"


def install(settings: RecordingSettings) -> Callable[[], None]:
    """Look at torch in this process; returns what ends the recording."""
    undo: list[Callable[[], None]] = []

    def stop() -> None:
        while undo:
            undo.pop()()

    recorder = Recorder(settings, stop)
    watch_modules(recorder, undo)
    watch_loads(recorder, undo)
    watch_saves(recorder, undo)
    watch_optimisers(recorder, undo)
    watch_plateaus(recorder, undo)
    watch_backward(recorder, undo)
    watch_loaders(recorder, undo)
    watch_functions(recorder, undo)
    recorder.printing.watch(undo)
    watch_scripts(recorder, undo)
    graphs.keep_out(attach.after_import)
    attach.after_import(DYNAMO, lambda: watch_compiled(recorder, undo), who=f"{DYNAMO} (calls)")
    attach.after_import(DISTRIBUTED, lambda: watch_placements(recorder, undo), who=DISTRIBUTED)
    if settings.level == OPS:
        from joymigrate.verify.operators import OperatorWitness

        enter(OperatorWitness(recorder), undo)
    if settings.noise:
        from joymigrate.verify.noise import Noise

        enter(Noise(settings.noise, settings.noise_seed), undo)
    return recorder.finish


def enter(mode: Any, undo: list[Callable[[], None]]) -> None:
    """Put a dispatch mode around the whole program. torch compiles nothing under one."""
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is not None:
        plain = stance("force_eager")
        undo.append(lambda: plain.__exit__(None, None, None))
    mode.__enter__()
    undo.append(lambda: mode.__exit__(None, None, None))


def replace(undo: list[Callable[[], None]], owner: Any, name: str, new: Any) -> None:
    """Set an attribute, and remember what it was."""
    old = owner.__dict__[name] if name in vars(owner) else getattr(owner, name)
    setattr(owner, name, new)
    undo.append(lambda: setattr(owner, name, old))


def watch_modules(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """Every call of a module, with its keyword arguments."""
    real = torch.nn.Module.__call__

    @functools.wraps(real)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return real(module, *args, **kwargs)
        if recorder.module_replay is not None:
            return recorder.module_replay.call(module, args, kwargs, real)
        if not recorder.watches() or within():
            recorder.missed += recorder.is_missed()
            return real(module, *args, **kwargs)
        return recorder.call(module, args, kwargs, real)

    replace(undo, torch.nn.Module, "__call__", call)


def watch_loads(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """States that are loaded into models and optimisers."""
    tell_after(undo, torch.nn.Module, "load_state_dict", recorder.loaded)
    tell_after(undo, torch.optim.Optimizer, "load_state_dict", recorder.loaded_optimiser)


def watch_saves(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """What the program writes to files by torch."""
    real = torch.save

    @functools.wraps(real)
    def save(obj: Any, *args: Any, **kwargs: Any) -> None:
        recorder.tape.saved(obj)
        real(obj, *args, **kwargs)

    replace(undo, torch, "save", save)


def tell_after(
    undo: list[Callable[[], None]], owner: Any, name: str, told: Callable[[Any], None]
) -> None:
    """Tell of every object whose method of that name has returned."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(one: Any, *args: Any, **kwargs: Any) -> Any:
        made = real(one, *args, **kwargs)
        told(one)
        return made

    replace(undo, owner, name, call)


def watch_optimisers(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """Optimisers as they are made and as they step."""
    real = torch.optim.Optimizer.__init__

    @functools.wraps(real)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if not recorder.busy:
            recorder.optimisers += 1
        real(self, *args, **kwargs)

    replace(undo, torch.optim.Optimizer, "__init__", made)

    def begins(optimiser: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if recorder.watches():
            recorder.end_early()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            recorder.before_update(optimiser)
            return None
        if not recorder.watches() or recorder.updating:  # one step that calls another one
            return None
        closure = recorder.in_closure(optimiser, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    hooked = torch.optim.Optimizer.profile_hook_step

    def stepping(step: Callable[..., Any]) -> Callable[..., Any]:
        """A class's step, that tells the recorder when it raises: no hook is called then."""

        @functools.wraps(step)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return step(*args, **kwargs)
            except BaseException:
                recorder.update_broke()
                raise

        return hooked(guarded)

    replace(undo, torch.optim.Optimizer, "profile_hook_step", staticmethod(stepping))
    before = register_optimizer_step_pre_hook(begins)
    after = register_optimizer_step_post_hook(lambda o, a, k: recorder.after_update(o))
    undo.extend((before.remove, after.remove))


def watch_plateaus(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """Schedulers that are stepped with a measured result."""
    owner = torch.optim.lr_scheduler.ReduceLROnPlateau
    real = owner.step

    @functools.wraps(real)
    def step(scheduler: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.watches():
            recorder.plateaus.before(scheduler)
        made = real(scheduler, metrics, *args, **kwargs)
        if recorder.watches():
            with recorder.own_work():
                recorder.plateaus.after(scheduler, metrics, real)
        return made

    replace(undo, owner, "step", step)


def watch_backward(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """The losses that backward passes begin with."""
    real = torch.autograd.backward

    @functools.wraps(real)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.loss(tensors)
        made = real(tensors, *args, **kwargs)
        recorder.tape.after_backward()
        return made

    replace(undo, torch.autograd, "backward", backward)
    plain = torch.autograd.grad

    @functools.wraps(plain)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        tape = recorder.tape
        if tape.differentiating or recorder.busy or within():
            return plain(outputs, inputs, *args, **kwargs)
        again = bool(kwargs.get("create_graph") or (len(args) > 2 and args[2]))
        if not again:
            recorder.loss(outputs)
        tape.differentiating = True
        try:
            made = plain(outputs, inputs, *args, **kwargs)
        finally:
            tape.differentiating = False
        tape.after_grad(inputs, made, again)
        return made

    replace(undo, torch.autograd, "grad", grad)
    for own, name in ((backward, "aten::backward"), (grad, "aten::grad")):
        torch.jit._builtins._register_builtin(own, name)


def watch_functions(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """Calls of the program's own autograd functions, and torch calls outside of its models."""
    owner = torch.autograd.Function
    real = owner.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        call = real.__get__(None, cls)  # a method of Python's or of C++, by torch's release
        tape = recorder.tape
        if tape.tape.inside or not tape.entered or not tape.active():
            return call(*args, **kwargs)
        return tape.tape.around(call, f"apply {cls.__name__}", args, kwargs)

    replace(undo, owner, "apply", classmethod(apply))
    watch_transforms(recorder, undo, replace)
    recorder.tape.enter()
    undo.append(recorder.tape.leave)


def watch_scripts(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """Calls of scripted functions and methods outside of models: torch tells no function mode of
    them."""

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            tape = recorder.tape
            if tape.tape.inside or not tape.entered or not tape.active():
                return real(self, *args, **kwargs)
            name = f"script {self.name}"
            return tape.tape.around(functools.partial(real, self), name, args, kwargs)

        return call

    for owner in (torch.jit.ScriptFunction, torch.ScriptMethod):
        replace(undo, owner, "__call__", watched(owner.__call__))


def watch_compiled(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """Functions given to `torch.compile` run as plain code where the tape looks at the program's
    calls (the compiler would take the tape into its graph, and with `fullgraph=True` refuse), and
    to the end where they call models."""
    from torch._dynamo import eval_frame

    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    owner: Any = getattr(eval_frame, "_TorchDynamoContext", None)
    if stance is None or owner is None or recorder.over:
        return
    real = owner.__call__

    @functools.wraps(real)
    def compiled(self: Any, fn: Any) -> Any:
        made = real(self, fn)
        if isinstance(made, torch.nn.Module) or not callable(made):
            return made
        calls_models = False  # nobody would see them in the compiled code, and no step would end

        @functools.wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls_models
            over = recorder.over or not (calls_models or recorder.tape.is_innermost())
            if torch.compiler.is_compiling() or over:
                return made(*args, **kwargs)
            if EAGER not in recorder.notes:
                recorder.say(EAGER)
            before = recorder.root_calls
            with stance("force_eager"):
                value = made(*args, **kwargs)
            calls_models |= recorder.root_calls > before
            return value

        return call

    replace(undo, owner, "__call__", compiled)


def watch_loaders(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """The batches that data loaders hand out. `__next__` is not the place: a vendor's package may
    put one of its own before it whenever a loop begins, to mark it for a profiler.

    What a dataset computes for a batch is seen by the batch alone, in whichever process it runs:
    programs use workers where there is a device, and none elsewhere.
    """
    from torch.utils.data import dataloader

    def watched(real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(real)
        def following(self: Any) -> Any:
            before, recorder.fetching = recorder.fetching, True
            try:
                made = real(self)
            finally:
                recorder.fetching = before
            return recorder.batch(self, made)

        return following

    for owner in dataloader._BaseDataLoaderIter.__subclasses__():
        if "_next_data" in vars(owner):
            replace(undo, owner, "_next_data", watched(vars(owner)["_next_data"]))


def watch_placements(recorder: Recorder, undo: list[Callable[[], None]]) -> None:
    """The local parts that are taken out of distributed tensors."""
    from torch.distributed.tensor import DTensor

    real = DTensor.to_local

    @functools.wraps(real)
    def to_local(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = real(self, *args, **kwargs)
        if recorder.watches() and recorder.recording:
            recorder.values.shard_map.note(self, made)
        return made

    if not recorder.over:
        replace(undo, DTensor, "to_local", to_local)

"""The points of torch that a recording looks at: module calls, optimisers, backward passes.

Every one is put back when the recording is over, so a long run pays for its recorded steps only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from joymigrate.profile.recorder import accelerator
from joymigrate.profile.recorder.controller import StepController
from joymigrate.profile.recorder.names import RecordedModuleNames


def install(controller: StepController) -> None:
    """Look at torch in this process."""
    watch_modules(controller)
    watch_optimisers(controller)
    watch_backward(controller)
    watch_calls(controller)
    watch_compilers(controller)


def replace(controller: StepController, owner: Any, name: str, new: Any) -> None:
    """Set an attribute, and remember what it was."""
    old = owner.__dict__[name] if name in getattr(owner, "__dict__", {}) else getattr(owner, name)
    setattr(owner, name, new)
    placed = vars(owner).get(name)

    def put_back() -> None:
        # Who came after us calls ours, which then only passes calls on.
        if vars(owner).get(name) is placed:
            setattr(owner, name, old)

    controller.undo.append(put_back)


def watch_modules(controller: StepController) -> None:
    """Top-level calls begin steps; nested ones give operators their module's name."""
    real = torch.nn.Module.__call__
    names = RecordedModuleNames()
    roots: list[Any] = []
    context = controller.context

    # torch's Python tracer reads a local called `self` of whatever __call__ is: keep the name.
    @functools.wraps(real)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not controller.watching or torch.compiler.is_compiling():
            return real(self, *args, **kwargs)
        if context.phase == "optimiser" or torch._C._current_graph_task_id() >= 0:
            return real(self, *args, **kwargs)
        if not roots:
            if controller.steps.on_forward():
                controller.boundary()
            controller.touch()
            note_autocast(controller)
            context.phase = "forward"
        roots.append(self)
        context.modules.append(names.of(self, roots[0]))
        try:
            return real(self, *args, **kwargs)
        finally:
            roots.pop()
            context.modules.pop()

    replace(controller, torch.nn.Module, "__call__", call)


def note_autocast(controller: StepController) -> None:
    """Whether the program computes in mixed precision, and in which type."""
    asked = getattr(torch, "is_autocast_enabled", None)
    for kind in ("cpu", controller.settings.device or "cuda"):
        try:
            if asked is not None and asked(kind):
                controller.facts["autocast"] = str(torch.get_autocast_dtype(kind)).split(".")[-1]
        except (RuntimeError, TypeError):
            continue


def watch_optimisers(controller: StepController) -> None:
    """Steps of optimisers end the program's steps."""
    optimizer = torch.optim.Optimizer
    hook = optimizer.profile_hook_step
    patch = optimizer._patch_step_function

    def made(self: Any) -> None:
        patch(self)
        if controller.watching:
            controller.steps.on_optimiser_made()

    def watched(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def step(*args: Any, **kwargs: Any) -> Any:
            if not controller.watching or controller.context.phase == "optimiser":
                return inner(*args, **kwargs)
            return watch_step(controller, inner, args, kwargs)

        return step

    def hooked(function: Callable[..., Any]) -> Callable[..., Any]:
        return watched(hook(function))

    replace(controller, optimizer, "_patch_step_function", made)
    replace(controller, optimizer, "profile_hook_step", staticmethod(hooked))
    for known in subclasses(optimizer):  # of optimisers that were made before the recording
        if getattr(known.__dict__.get("step"), "hooked", False):
            replace(controller, known, "step", watched(known.__dict__["step"]))


def subclasses(kind: type) -> Iterator[type]:
    """All classes below one."""
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield each
        yield from subclasses(each)


def watch_step(controller: StepController, inner: Any, args: Any, kwargs: Any) -> Any:
    """One optimiser's step, with its phase around it and the boundary after it."""
    context, optimiser = controller.context, args[0]
    controller.touch()
    note_optimiser(controller, optimiser)
    shadowed = controller.recording is not None and controller.steps.leader in (None, id(optimiser))
    if shadowed and controller.recording is not None:
        with controller.recording.paused():
            controller.shadow = accelerator.optimiser_step(optimiser)
    context.phase = "optimiser"
    try:
        result = inner(*args, **kwargs)
    finally:
        context.phase = "other"
    if controller.steps.on_optimiser_step(id(optimiser)):
        controller.boundary()
    return result


def note_optimiser(controller: StepController, optimiser: Any) -> None:
    """What the optimiser is, once: its class, its implementation, how many tensors it updates."""
    known = controller.facts["optimisers"]
    if any(entry["identity"] == id(optimiser) for entry in known):
        return
    groups = optimiser.param_groups
    known.append(
        {
            "identity": id(optimiser),
            "class": type(optimiser).__name__,
            "foreach": groups[0].get("foreach") if groups else None,
            "fused": groups[0].get("fused") if groups else None,
            "tensors": sum(len(group["params"]) for group in groups),
        }
    )


def watch_backward(controller: StepController) -> None:
    """A backward pass ends the forward phase."""
    for name in ("backward", "grad"):
        real = getattr(torch.autograd, name)

        def run(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            if not controller.watching or controller.context.phase == "optimiser":
                return _real(*args, **kwargs)
            controller.touch()
            controller.steps.on_backward()
            try:
                result = _real(*args, **kwargs)
            finally:
                controller.context.phase = "other"
            if controller.steps.on_backward_done():
                controller.boundary()
            return result

        replace(controller, torch.autograd, name, functools.wraps(real)(run))


def watch_calls(controller: StepController) -> None:
    """Calls that are no operators and cost time: synchronise, empty the cache."""
    device = controller.settings.device
    modules = [getattr(torch, name, None) for name in ("cuda", "accelerator", device or "cuda")]
    for module in {id(m): m for m in modules if m is not None}.values():
        for name in ("synchronize", "empty_cache"):
            real = getattr(module, name, None)
            if real is None:
                continue

            def counted(*args: Any, _real: Any = real, _name: str = name, **kwargs: Any) -> Any:
                recording = controller.recording
                if recording is not None and controller.watching:
                    spot = (_name, recording.mode.sites.here(frame()))
                    calls = controller.facts["calls"]
                    entry = f"{spot[0]}@{spot[1]}"
                    calls[entry] = calls.get(entry, 0) + 1
                return _real(*args, **kwargs)

            replace(controller, module, name, functools.wraps(real)(counted))


def watch_compilers(controller: StepController) -> None:
    """Tracing and compiling fail or warn under a mode that only waits for the first step."""
    for module, name in ((torch, "compile"), (torch.jit, "trace"), (torch.jit, "trace_module")):
        real = getattr(module, name)

        def compiled(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            if _real.__name__ != "compile" or not run_plainly(controller):
                controller.close()
            return _real(*args, **kwargs)

        replace(controller, module, name, functools.wraps(real)(compiled))


def run_plainly(controller: StepController) -> bool:
    """Let code that is given to `torch.compile` run as it is while it is recorded: compiled code
    calls no operator that can be seen. Whether this torch can."""
    stance: Any = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    if stance is None:
        return False
    plain = stance("force_eager")
    controller.undo.append(lambda: plain.__exit__(None, None, None))
    return True


def frame() -> Any:
    """The caller's caller."""
    import sys

    return sys._getframe(2)

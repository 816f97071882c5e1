"""One pass over a module tree that is cut at every module, so that no error travels.

Each module gets the reference's inputs, runs its own code with its children's outputs replaced by
the reference's, and is held against the reference's outputs. What it hands to a child counts as its
own work as well. The same cut gives the local vector-Jacobian product: cotangents of ±1 at the
module's outputs and at what it handed down, gradients at its inputs, at its children's outputs and
at its own parameters.

Three uses: making the float64 reference (none is given), measuring the baseline's own error
against it, and measuring the target's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import _disable_current_modes

from joymigrate.verify import layout, pytree
from joymigrate.verify.call_trace import CallTrace
from joymigrate.verify.cast_weights import Borrowed, Lender, weights_in
from joymigrate.verify.draws import DrawMode, Draws, DropoutMode
from joymigrate.verify.measure import as_mask_of
from joymigrate.verify.modes import is_training
from joymigrate.verify.source_lines import where

ARGUMENTS, OUTPUT, GRADIENT, BUFFER = "in", "out", "grad", "buffer"
Key = tuple[str, int, str, str]  # path, call, kind, leaf


class ReferenceValues(Protocol):
    """Where the values at the cuts come from."""

    def value(self, key: Key) -> torch.Tensor | None:
        """The reference's tensor at this place, float32 on the CPU; None where it has none."""

    def knows(self, path: str, call: int) -> bool:
        """Whether this call of this module took place in the reference's run."""

    def returned(self, path: str, call: int) -> set[str]:
        """The leaves of numbers with a fraction that this call returned there."""


@dataclass(slots=True)
class ModuleFrame:
    """One module call in progress."""

    path: str
    call: int
    module: nn.Module
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    children: dict[str, torch.Tensor] = field(default_factory=dict)
    handed: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: Borrowed = field(default_factory=dict)
    before: dict[str, torch.Tensor] = field(default_factory=dict)  # buffers as the call begins
    fed: dict[Any, str] = field(default_factory=dict)  # graph node of what was fed → its start

    def hand(self, start: str, value: torch.Tensor) -> torch.Tensor:
        """What the module's own code gets of a leaf."""
        made = another_of(value)
        self.fed[made.grad_fn] = start
        return made


@dataclass(slots=True)
class CutValue:
    """One value at a cut: the tensor, and where it stands."""

    key: Key
    owner: str  # the module whose code made it
    owner_call: int
    tensor: torch.Tensor | None  # None: no gradient
    order: int


class ModuleReplay:
    """Runs one root call. `report` gets every value; `reference` None makes the float64 one.

    `noise` multiplies what is fed by 1 ± noise: how much rounding of the inputs alone does.
    `wide` turns a float32 value that the program made by itself into float64 at the next cut.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        report: Callable[[CutValue], None],
        lender: Lender,
        *,
        reference: ReferenceValues | None = None,
        gradients: bool = True,
        needs: Callable[[Key], bool] = lambda key: True,
        noise: float = 0.0,
        skip: Callable[[str], bool] = lambda path: False,
        wide: bool = False,
        trace: bool = False,
    ) -> None:
        self.names = names
        self.wide = wide
        self.report = report
        self.lender = lender
        self.reference = reference
        self.gradients = gradients
        self.needs = needs  # of which weights
        self.noise = noise
        self.skip = skip
        self.stack: list[ModuleFrame] = []
        self.calls: dict[str, int] = {}
        self.order = 0
        self.draws = Draws(self.place)
        self.trace = CallTrace(self.own_code) if trace else None
        self.tracing = False  # a module's own code runs
        self.lines: dict[str, str] = {}  # path → the line of its first call
        self.scalars: dict[tuple[str, int], dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.scale = np.random.Generator(np.random.PCG64(7))

    def place(self) -> str:
        """The module that runs now."""
        return f"{self.stack[-1].path}#{self.stack[-1].call}" if self.stack else ""

    def own_code(self) -> str | None:
        """The module whose own code runs now."""
        return self.place() if self.tracing else None

    def open_modules(self) -> list[str]:
        """The modules whose calls have not returned, the innermost last."""
        return [frame.path for frame in self.stack]

    def run(self, root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Run the root once; hooks of the recorder hand each module call to `call`."""
        with ExitStack() as stack:
            stance = getattr(torch.compiler, "set_stance", None)
            if stance is not None:
                stack.enter_context(stance("force_eager"))
            # An optimised script draws its random numbers inside of itself, from its second run on.
            stack.enter_context(optimized_execution(False))
            stack.enter_context(kept_activations())
            stack.enter_context(DropoutMode(self.draws))
            stack.enter_context(DrawMode(self.draws))
            if self.trace is not None:
                stack.enter_context(self.trace)
            root(*args, **kwargs)

    def call(self, module: nn.Module, args: Any, kwargs: Any, real: Callable[..., Any]) -> Any:
        """One module call of the pass."""
        path = self.names.get(id(module))
        recomputed = torch._C._current_graph_task_id() >= 0
        if path is None or recomputed or self.skip(path):
            return real(module, *args, **kwargs)
        number = self.calls[path] = self.calls.get(path, -1) + 1
        if self.reference is not None and self.stack and not self.reference.knows(path, number):
            return real(module, *args, **kwargs)
        if self.trace is not None and path not in self.lines:
            self.lines[path] = where()
        was, self.tracing = self.tracing, False
        try:
            return self.cut(path, number, module, args, kwargs, real)
        finally:
            self.tracing = was

    def cut(
        self,
        path: str,
        number: int,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        real: Callable[..., Any],
    ) -> Any:
        """One call on the reference's inputs; the reference's outputs go to its caller."""
        with self.lender.call() as weights:
            frame = ModuleFrame(path, number, module, weights=weights)
            frame.before = buffers_of(module)
            given = pytree.arguments(args, kwargs)
            self.scalars[path, number] = pytree.scalars(given)
            fed, versions = self.feed(frame, given)
            self.stack.append(frame)
            self.tracing = True
            try:
                made = real(
                    module, *(fed[str(i)] for i in range(len(args))), **{k: fed[k] for k in kwargs}
                )
            finally:
                self.tracing = False
                self.stack.pop()
            written_back(versions)
            return self.take(frame, made)

    def feed(self, frame: ModuleFrame, given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """The reference's inputs in place of those that the parent made."""
        parent = self.stack[-1] if self.stack else None
        versions: list[Any] = []

        def change(leaf: str, live: torch.Tensor) -> torch.Tensor:
            key = (frame.path, frame.call, ARGUMENTS, leaf)
            if parent is not None:
                self.report_value(key, parent, live)
                if live.requires_grad:
                    parent.handed[f"{frame.path}#{frame.call}.{leaf}"] = live
            elif self.reference is None:
                self.report(CutValue(key, frame.path, frame.call, live, self.order))
            fed_value = self.reference_value(key, live, reshaped=parent is None)
            differentiable = live.requires_grad or parent is None
            if not (self.wants_gradient() and fed_value.is_floating_point() and differentiable):
                versions.append((live, fed_value, state_of(fed_value)))
                return fed_value
            fed_value.requires_grad_(True)
            frame.inputs[leaf] = fed_value
            fed = frame.hand(f"in.{leaf}", fed_value)
            versions.append((live, fed, state_of(fed)))
            return fed

        return pytree.replace_tensors(given, change), versions

    def take(self, frame: ModuleFrame, made: Any) -> Any:
        """Report what the module made, and hand the reference's outputs to its parent."""
        parent = self.stack[-1] if self.stack else None
        outputs = pytree.tensors(made)
        for leaf, tensor in outputs:
            self.report_value((frame.path, frame.call, OUTPUT, leaf), frame, tensor)
        for name, buffer in frame.module.named_buffers(recurse=False):
            key = (frame.path, frame.call, BUFFER, name)
            if is_training(frame.module) or self.needs_buffer(key, frame.before.get(name), buffer):
                self.report_value(key, frame, buffer)
        if self.wants_gradient():
            self.backward(frame, outputs)
        if parent is None:
            return made

        def change(leaf: str, live: torch.Tensor) -> torch.Tensor:
            fed_value = self.reference_value((frame.path, frame.call, OUTPUT, leaf), live)
            if self.wants_gradient() and live.requires_grad and fed_value.is_floating_point():
                fed_value.requires_grad_(True)
                place = f"{frame.path}#{frame.call}.{leaf}"
                parent.children[place] = fed_value
                return parent.hand(f"child.{place}", fed_value)
            return fed_value

        return pytree.replace_tensors(made, change)

    def needs_buffer(self, key: Key, before: torch.Tensor | None, now: torch.Tensor) -> bool:
        """Whether a call has written a buffer, here or in the reference's run."""
        if self.reference is not None and self.reference.value(key) is not None:
            return True
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            same = before is not None and before.shape == now.shape and before.dtype == now.dtype
            return not (same and before is not None and torch.equal(before, now.detach()))

    def reference_value(
        self, key: Key, live: torch.Tensor, *, reshaped: bool = False
    ) -> torch.Tensor:
        """The reference's value here in the live tensor's dtype; without one, the live one.

        Both are rounded to float32 first: every pass sees the same numbers. `reshaped` takes the
        reference's value in another shape as well: what the outermost module is given, of which a
        process may have a part.
        """
        with torch._C.DisableTorchFunction():  # reading it is no call of the module's
            value = self.reference.value(key) if self.reference is not None else None
            value = as_mask_of(live, value) if value is not None else None
        if value is None or not (reshaped or value.shape == live.shape):
            value = live.detach()
            if value.dtype == torch.float64:
                value = value.float()
        widened = self.wide and live.dtype is torch.float32
        dtype = torch.float64 if widened else live.dtype
        own = torch._C.DisableTorchFunction() if type(value) is torch.Tensor else nullcontext()
        with own:
            made = layout.lay(value, live, dtype, live.device)
        if self.noise and made.is_floating_point():
            shake = self.scale.uniform(-self.noise, self.noise, tuple(made.shape))
            made = made * (1 + torch.from_numpy(np.asarray(shake)).to(made))
            made = layout.lay(made, live, dtype, live.device)
        return made

    def wants_gradient(self) -> bool:
        """Whether products with the Jacobian are computed here."""
        return self.gradients and torch.is_grad_enabled()

    def report_value(self, key: Key, owner: ModuleFrame, tensor: torch.Tensor | None) -> None:
        """Report one value, outside of the modes that the module runs in: what is done with it is
        our own work."""
        with _disable_current_modes():
            self.report(CutValue(key, owner.path, owner.call, tensor, self.order))
        self.order += 1

    def backward(self, frame: ModuleFrame, outputs: list[tuple[str, torch.Tensor]]) -> None:
        """Report the gradients that this module's own code makes from cotangents of ±1.

        What was fed and is handed on as it is needs no backward pass: its cotangent is added to the
        gradient when that is reported. A model that returns all of its layers' attention has
        gigabytes of it. They start from what both sides return: attention by hand returns weights
        too, which fused attention has not.
        """
        if self.reference is not None:
            theirs = self.reference.returned(frame.path, frame.call)
            if not theirs <= {leaf for leaf, _ in outputs}:
                self.failures[frame.path] = "the baseline returns more, from which gradients start"
                return
            outputs = [(leaf, tensor) for leaf, tensor in outputs if leaf in theirs]
        ends = {f"out.{leaf}": t for leaf, t in outputs} | {
            f"in.{leaf}": t for leaf, t in frame.handed.items()
        }
        ends = {k: t for k, t in ends.items() if t.requires_grad and t.is_floating_point()}
        starts: dict[str, torch.Tensor] = {f"in.{leaf}": t for leaf, t in frame.inputs.items()}
        starts |= {f"child.{leaf}": t for leaf, t in frame.children.items()}
        # Below children that were called nothing is reachable: what is left is this module's own,
        # and that of children whose parameters it uses without calling them.
        own = set(frame.module._parameters.keys())
        weights = {
            name: weight
            for name, weight in weights_in(frame.module, frame.weights)
            if self.needs((frame.path, frame.call, GRADIENT, f"param.{name}"))
        }
        unused = [f"param.{n}" for n, weight in weights.items() if weight is None and n in own]
        starts |= {f"param.{n}": weight for n, weight in weights.items() if weight is not None}
        if not ends or not (starts or unused):
            return
        passed: dict[str, list[str]] = {}
        for end, tensor in ends.items():
            if tensor.grad_fn in frame.fed and not tensor._backward_hooks:
                passed.setdefault(frame.fed[tensor.grad_fn], []).append(end)
        through = {end for known in passed.values() for end in known}

        def sign(end: str) -> torch.Tensor:
            return cotangent(f"{frame.path}#{frame.call}.{end}", ends[end])

        computed = [end for end in ends if end not in through]
        try:
            made = (
                torch.autograd.grad(
                    [ends[end] for end in computed],
                    list(starts.values()),
                    [sign(end) for end in computed],
                    allow_unused=True,
                    retain_graph=True,  # a tensor kept in an attribute may be used by two modules
                )
                if starts and computed
                else (None,) * len(starts)
            )
        except RuntimeError as error:
            self.failures[frame.path] = str(error).splitlines()[0]
            return
        gradients: dict[str, torch.Tensor | None] = dict(zip(starts, made, strict=True))
        for leaf, gradient in (gradients | dict.fromkeys(unused)).items():
            if gradient is None and leaf.startswith("param.") and leaf[6:] not in own:
                continue
            if gradient is not None and gradient.layout is not torch.strided:
                gradient = gradient.to_dense()  # an embedding's, of the rows that were looked up
            for end in passed.get(leaf, ()):
                gradient = sign(end) if gradient is None else gradient + sign(end)
            self.report_value((frame.path, frame.call, GRADIENT, leaf), frame, gradient)


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a module's own buffers: not every write of one has a version."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        own = module.named_buffers(recurse=False)
        return {name: tensor.detach().clone() for name, tensor in own}


@contextmanager
def kept_activations() -> Iterator[None]:
    """Activation checkpointing off: what it recomputes starts from values of the parent."""
    from torch.utils import checkpoint as module

    def plainly(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    class Plain:
        """Calls the function, and keeps what it needs for its gradients."""

        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return function(*args)

    names = {"_checkpoint_without_reentrant_generator": plainly, "CheckpointFunction": Plain}
    before = {name: getattr(module, name) for name in names if hasattr(module, name)}
    for name in before:
        setattr(module, name, names[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


class SameMemory(torch.autograd.Function):
    """The input's values in the input's memory, as a tensor that may be written in place."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.data

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def another_of(value: torch.Tensor) -> torch.Tensor:
    """What a module gets of a leaf: gradients reach the leaf, whose values nobody reads again."""
    made: torch.Tensor = SameMemory.apply(value)  # type: ignore[no-untyped-call]
    return made


def state_of(value: torch.Tensor) -> int | torch.Tensor:
    """What tells later whether a tensor was changed: inference tensors count no versions."""
    return value.clone() if value.is_inference() else value._version


def written_back(versions: list[Any]) -> None:
    """What a module wrote into its argument in place reaches the caller's tensor as well."""
    for live, fed, version in versions:
        if live.shape != fed.shape:
            continue
        if fed._version != version if type(version) is int else not torch.equal(fed, version):
            with torch.no_grad():
                live.data.copy_(fed.detach())


def cotangent(name: str, like: torch.Tensor) -> torch.Tensor:
    """+1 or -1 for every element, by the place's name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    bits = np.random.Generator(np.random.PCG64(seed)).integers(0, 2, tuple(like.shape), np.int8)
    signs = torch.from_numpy(np.asarray(bits * 2 - 1, dtype=np.float32))
    return layout.lay(signs, like, like.dtype, like.device)

"""Calls of torch.func (grad, vmap, jvp, …) outside of models: one call of the tape each.

Inside of a transform torch hands out wrapped tensors that live no longer than the call. So the
whole call goes on the tape with the tensors that its function takes from around it, and is run
again as a whole on another side's values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

T = TypeVar("T")
FACTORIES = ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "vmap")
DIRECT = ("jvp",)
DIFFERENTIATE = ("grad", "grad_and_value", "jacrev", "vjp")


def within() -> bool:
    """Whether a transform is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class Taken(TorchFunctionMode):
    """Plain tensors that a function takes from around it, in their order, and whether it draws."""

    def __init__(self, draws: Callable[[str], Any]) -> None:
        super().__init__()
        self.draws = draws
        self.random = False
        self.tensors: dict[int, torch.Tensor] = {}
        self.made: dict[int, torch.Tensor] = {}  # kept, so that no other gets their id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in plain_tensors((args, kwargs)):
            if id(tensor) not in self.made:
                self.tensors.setdefault(id(tensor), tensor)
        self.random |= bool(self.draws(str(getattr(func, "__name__", ""))))
        made = func(*args, **kwargs)
        for tensor in plain_tensors(made):
            if id(tensor) not in self.tensors:
                self.made[id(tensor)] = tensor
        return made


class Given(TorchFunctionMode):
    """Other tensors in place of those that a function takes from around it."""

    def __init__(self, values: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*exchange(args, self.values), **exchange(kwargs or {}, self.values))


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with `change` of all that is no list, tuple, named tuple or dictionary."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(member, change) for member in value))
    if type(value) in (list, tuple):
        return type(value)(map_leaves(member, change) for member in value)
    if type(value) is dict:
        return {key: map_leaves(member, change) for key, member in value.items()}
    return change(value)


def exchange(value: Any, others: Mapping[int, Any]) -> Any:
    """Arguments with others in the place of some tensors, by their id."""
    return map_leaves(value, lambda v: others.get(id(v), v) if torch.is_tensor(v) else v)


class Again:
    """A transformed function that is run again: its own arguments, then what it takes."""

    def __init__(self, call: Callable[..., Any], taken: list[torch.Tensor], random: bool) -> None:
        self.call, self.taken, self.random = call, taken, random

    def __call__(self, taken: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """On these values; RuntimeError where it draws random numbers by itself."""
        if self.random:
            raise RuntimeError("random numbers are drawn inside of a torch.func transform")
        values = {id(own): value for own, value in zip(self.taken, taken, strict=True)}
        with Given(values):
            return self.call(*args, **kwargs)


def found_in(kind: type[T], value: Any) -> Iterator[T]:
    """Values of one kind in arguments: lists, tuples and dictionaries."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, list | tuple):
        for member in value:
            yield from found_in(kind, member)
    elif isinstance(value, dict):
        for member in value.values():
            yield from found_in(kind, member)


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """Tensors in arguments: lists, tuples and dictionaries."""
    return found_in(torch.Tensor, value)


def plain_tensors(value: Any) -> list[torch.Tensor]:
    """Tensors in arguments that no transform has wrapped."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [tensor for tensor in tensors_in(value) if not wrapped(tensor)]


def watch_transforms(recorder: Any, undo: list[Callable[[], None]], replace: Any) -> None:
    """Look at the outermost transforms that the program calls."""
    import torch.func

    def seen(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tape = recorder.tape
        if within() or not recorder.watches() or recorder.stack:
            return call(*args, **kwargs)
        differentiates = name in DIFFERENTIATE or getattr(call, "differentiates", False)
        if differentiates:
            recorder.transform(call, f"torch.func.{name}", (args, kwargs))
        if tape.tape.inside or not tape.entered or not tape.active():
            return call(*args, **kwargs)
        made = tape.tape.whole(call, f"torch.func.{name}", args, kwargs)
        if differentiates:
            tape.differentiated((args, kwargs), made)
        return made

    def factory(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def transform(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
            inner = real(func, *args, **kwargs)

            @functools.wraps(inner)
            def called(*args: Any, **kwargs: Any) -> Any:
                return seen(name, inner, args, kwargs)

            inner.origin = called.origin = getattr(func, "origin", getattr(func, "__code__", func))  # type: ignore[attr-defined]
            below = getattr(func, "differentiates", False)
            inner.differentiates = called.differentiates = name in DIFFERENTIATE or below  # type: ignore[attr-defined]
            return called

        return transform

    def direct(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            return seen(name, real, args, kwargs)

        return call

    real_vjp = torch.func.vjp

    @functools.wraps(real_vjp)
    def vjp(func: Callable[..., Any], *primals: Any, **kwargs: Any) -> Any:
        if within() or not recorder.watches() or recorder.stack:
            return real_vjp(func, *primals, **kwargs)
        made = real_vjp(func, *primals, **kwargs)

        def pull(*cotangents: Any, **more: Any) -> Any:
            def whole(primals: Any, cotangents: Any) -> Any:
                return real_vjp(func, *primals, **kwargs)[1](*cotangents)

            whole.differentiates = True  # type: ignore[attr-defined]
            return seen("vjp", whole, (primals, cotangents), {})

        return (made[0], pull, *made[2:])

    for name in FACTORIES:
        replace(undo, torch.func, name, factory(name, getattr(torch.func, name)))
    for name in DIRECT:
        replace(undo, torch.func, name, direct(name, getattr(torch.func, name)))
    replace(undo, torch.func, "vjp", vjp)
    replace(undo, torch, "vmap", torch.func.vmap)

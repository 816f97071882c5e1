"""Dispatch modes of ours around programs that know nothing of them.

torch takes another path through `ctc_loss` while any dispatch mode is on: lengths that lie on the
CPU, as its documentation allows, then meet losses on the device, and the program ends with
"Expected all tensors to be on the same device" (aten/src/ATen/native/LossCTC.cpp,
`areAnyTensorSubclassLike`). Lengths in lists take the path that is taken without a mode.

A traced graph (`torch.jit.trace`) holds its numbers as tensors of no dimension. A mode gets them as
plain numbers. Arithmetic takes them back as such, and has to: torch gives a plain number less say
over the result's type than any tensor. Other operators can't be called again with numbers, which
are made tensors first.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NUMBERS = (float, int, bool, complex)


class WatchingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode in which a program runs as it does without one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]
        real = cls.__dict__.get("__torch_dispatch__")
        if real is not None:
            cls.__torch_dispatch__ = given_tensors(real)  # type: ignore[method-assign]

    def __enter__(self) -> Any:
        keep_path_of_ctc()
        return super().__enter__()  # type: ignore[no-untyped-call]


def given_tensors(real: Any) -> Any:
    """The mode's method, called with a tensor wherever the operator takes nothing else."""

    @functools.wraps(real)
    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(type(value) in NUMBERS for value in args):
            places = places_of_tensors(func)
            if any(n in places and type(v) in NUMBERS for n, v in enumerate(args)):
                args = with_tensors(args, places)
        return real(self, func, types, args, kwargs)

    return dispatch


@functools.lru_cache(maxsize=4096)
def places_of_tensors(func: Any) -> frozenset[int]:
    """Positions at which an operator takes one tensor, and no number in its place."""
    schema = getattr(func, "_schema", None)
    if schema is None or torch._C._should_allow_numbers_as_tensors(schema.name.split("::")[-1]):
        return frozenset()
    given = enumerate(schema.arguments)
    return frozenset(n for n, argument in given if str(argument.type) == "Tensor")


def with_tensors(args: Any, places: frozenset[int]) -> Any:
    """The arguments with tensors of no dimension for numbers at these places. Their type decides
    nothing about the result's: float64 beside floating numbers with dimensions, else the type that
    torch gives a number there."""
    beside = [a for a in args if isinstance(a, torch.Tensor)]
    other = next((a for a in beside if a.is_floating_point()), None)
    own = torch.get_default_dtype() if beside and other is None else torch.float64
    if other is not None and not other.dim():
        own = other.dtype

    def tensor(value: Any) -> torch.Tensor:
        device = other.device if other is not None and not other.dim() else None
        return torch.tensor(value, dtype=own if type(value) is float else None, device=device)

    held = enumerate(args)
    return tuple(tensor(v) if n in places and type(v) in NUMBERS else v for n, v in held)


def keep_path_of_ctc() -> None:
    """Hand lengths to `torch.ctc_loss` in lists, as long as a mode is on. Done once a process."""
    real = torch.ctc_loss
    if hasattr(real, "__wrapped__"):
        return

    @functools.wraps(real)
    def ctc_loss(
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        lengths = (input_lengths, target_lengths)
        if torch._C._len_torch_dispatch_stack() and all(map(whole, lengths)):
            input_lengths, target_lengths = (one.reshape(-1).tolist() for one in lengths)
        return real(log_probs, targets, input_lengths, target_lengths, *rest, **named)

    torch.ctc_loss = ctc_loss


def whole(lengths: Any) -> bool:
    """Whether it is a plain tensor of whole numbers; the rest is for torch to take or refuse."""
    if type(lengths) is not torch.Tensor or lengths.is_meta:
        return False
    return not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)

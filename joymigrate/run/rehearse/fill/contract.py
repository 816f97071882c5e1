"""What an operator refuses: torch's own kernel is asked once per signature, before a fill runs.

The first call with new dtypes, shapes and numbers runs torch's CPU kernel on copies, so a fill
raises what torch raises. Halves are asked as float32, as not every CPU kernel takes them. Above
`LARGEST` numbers only torch's meta function is asked: it knows shapes and dtypes, not values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 20  # numbers in all inputs together
REMEMBERED = 4096  # signatures
HALVES = (torch.float16, torch.bfloat16)
# torch has no kernel to ask on this device; that is no refusal of the inputs.
NO_KERNEL = ("Could not run '", "not implemented for 'Half'", "not implemented for 'BFloat16'")

_accepted: set[Any] = set()


def require_accepted(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what torch raises for these inputs; nothing for inputs that it takes."""
    key = (overload, tuple(map(describe, args)), *((n, describe(v)) for n, v in kwargs.items()))
    if key in _accepted:
        return
    numbers = sum(t.numel() for value in (*args, *kwargs.values()) for t in tensors_in(value))
    device = "cpu" if numbers <= LARGEST else "meta"
    copied = [copied_to(value, device) for value in args]
    named = {name: copied_to(value, device) for name, value in kwargs.items()}
    state = torch.get_rng_state()
    try:
        with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
            overload(*copied, **named)
    except NotImplementedError as error:
        if not str(error).startswith(NO_KERNEL[0]) and not any(n in str(error) for n in NO_KERNEL):
            raise
    finally:
        torch.set_rng_state(state)
    if len(_accepted) < REMEMBERED:
        _accepted.add(key)


def describe(value: Any) -> Any:
    """What a check may depend on, data aside."""
    if isinstance(value, Tensor):
        return (value.dtype, tuple(value.shape), value.device.type)
    if isinstance(value, (list, tuple)):
        return tuple(map(describe, value))
    return repr(value)


def tensors_in(value: Any) -> list[Tensor]:
    """Tensors of an argument."""
    if isinstance(value, Tensor):
        return [value]
    return [t for one in value for t in tensors_in(one)] if isinstance(value, (list, tuple)) else []


def copied_to(value: Any, device: str) -> Any:
    """A copy that may be written to; a generator of the device is left out."""
    if isinstance(value, Tensor):
        dtype = torch.float32 if value.dtype in HALVES else value.dtype
        if device == "meta":
            return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=device)
        return value.detach().to(device=device, dtype=dtype, copy=True)
    if isinstance(value, (list, tuple)):
        return [copied_to(one, device) for one in value]
    if isinstance(value, torch.Generator):
        return None
    return value

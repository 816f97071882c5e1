"""Autocast and loss scaling on this CPU: the dtype that was asked for, by CUDA's lists.

A CPU's own lists are shorter: what CUDA computes in float32 (a softmax, a sum) it leaves in 16
bits. The operators of `door.yaml` get CUDA's way under an autocast that the program asked of its
card.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from joymigrate.run.door.cards import cards
from joymigrate.run.door.marks import tensors_in
from joymigrate.run.door.mode import convert
from joymigrate.run.door.table import table

KEY = "AutocastCPU"
KEPT: list[Any] = []  # a library's kernels live as long as it does


class Depth:
    """How many autocasts of the program's card are entered."""

    entered = 0


def install() -> None:
    """Let autocast, its questions and GradScaler mean this CPU where they name the card."""
    wrap_autocast(torch.amp.autocast_mode.autocast)
    wrap_scaler(torch.amp.grad_scaler.GradScaler)
    for name in ("custom_fwd", "custom_bwd"):
        real = getattr(torch.amp, name)
        for owner in (torch.amp, torch.amp.autocast_mode):
            setattr(owner, name, rename_keyword(real))
    for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype"):
        setattr(torch, name, about_cpu(getattr(torch, name)))
    setattr(torch, "set_autocast_dtype", about_cpu(torch.set_autocast_dtype))  # noqa: B010
    with contextlib.suppress(AttributeError):
        torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    add_kernels()
    add_products()


def is_card(value: Any) -> bool:
    """Whether a device type is the origin's."""
    return isinstance(value, str) and value.split(":")[0] == cards.word


def wrap_autocast(kind: Any) -> None:
    """The class itself is changed: programs have imported it, and made subclasses."""
    begin, enter, leave = kind.__init__, kind.__enter__, kind.__exit__

    @functools.wraps(begin)
    def init(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        self._joymigrate = is_card(device_type)
        if self._joymigrate:
            dtype = dtype or plain_dtype(cards.word)
            device_type = "cpu"
        begin(self, device_type, dtype, *args, **kwargs)

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        Depth.entered += bool(getattr(self, "_joymigrate", False))
        return enter(self)

    @functools.wraps(leave)
    def left(self: Any, *raised: Any) -> Any:
        Depth.entered -= bool(getattr(self, "_joymigrate", False))
        return leave(self, *raised)

    kind.__init__, kind.__enter__, kind.__exit__ = init, entered, left


plain_dtype = torch.get_autocast_dtype


def wrap_scaler(kind: Any) -> None:
    """Loss scaling on the CPU, also where no device is named: that means the card."""
    begin = kind.__init__

    @functools.wraps(begin)
    def init(self: Any, device: Any = cards.word, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if is_card(device) else device, *args, **kwargs)

    kind.__init__ = init


def rename_keyword(real: Any) -> Callable[..., Any]:
    """A function with a keyword `device_type`."""

    @functools.wraps(real)
    def call(*args: Any, device_type: str = cards.word, **kwargs: Any) -> Any:
        return real(*args, device_type="cpu" if is_card(device_type) else device_type, **kwargs)

    return call


def about_cpu(real: Any) -> Callable[..., Any]:
    """A question whose first argument is a device type; without one it is about the card."""

    @functools.wraps(real)
    def call(*args: Any) -> Any:
        named = args and isinstance(args[0], str)
        if named and is_card(args[0]):
            args = ("cpu", *args[1:])
        return real(*(args if named else ("cpu", *args)))

    return call


def add_kernels() -> None:
    """CUDA's lists for operators that a CPU's autocast passes through."""
    given = table()
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    KEPT.append(library)
    rows = ((given.float32, to_float32), (given.narrow, to_narrow), (given.widest, to_widest))
    for names, cast in rows:
        for name in names:
            base, _, overload = name.partition(".")
            packet = getattr(torch.ops.aten, base, None)
            op = getattr(packet, overload or "default", None)
            known = torch._C._dispatch_has_kernel_for_dispatch_key
            if op is None or known(f"aten::{name}", KEY):
                continue
            library.impl(name, kernel(op, cast), KEY)  # type: ignore[no-untyped-call]


def add_products() -> None:
    """A card sums a product of float16 in float32 and rounds it once. A CPU without such
    instructions takes many times as long in float16: it gets the card's way."""
    get_kernel = getattr(torch.library, "get_kernel", None)  # since torch 2.9
    if get_kernel is None or torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    KEPT.append(library)
    for name in table().products:
        real = get_kernel(f"aten::{name}", "CPU")
        made = product(real)
        with warnings.catch_warnings():  # torch says once that a kernel is replaced
            warnings.simplefilter("ignore")
            library.impl(name, made, "CPU", with_keyset=True, allow_override=True)  # type: ignore[no-untyped-call]


def product(real: Any) -> Callable[..., Any]:
    """A kernel of products whose float16 is computed in float32."""

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if all(one.dtype is not torch.float16 for one in tensors_in((args, kwargs))):
            return real.call_boxed(keys, *args, **kwargs)
        wide = convert((args, kwargs), torch.float16, torch.float32)
        return convert(real.call_boxed(keys, *wide[0], **wide[1]), torch.float32, torch.float16)

    return call


def kernel(op: Any, cast: Callable[[Any], Any]) -> Callable[..., Any]:
    """An operator with its tensors cast first, where the autocast is the card's."""
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            if Depth.entered:
                args, kwargs = cast((args, kwargs))
            return op(*args, **kwargs)

    return call


def to_float32(value: Any) -> Any:
    """16-bit tensors as float32."""
    return convert(convert(value, torch.float16, torch.float32), torch.bfloat16, torch.float32)


def to_narrow(value: Any) -> Any:
    """float32 as what autocast computes in."""
    dtype = plain_dtype("cpu")
    return convert(value, torch.float32, dtype)


def to_widest(value: Any) -> Any:
    """All in float32 where one is."""
    dtypes = {one.dtype for one in tensors_in(value) if one.is_floating_point()}
    return to_float32(value) if torch.float32 in dtypes else value

"""Registers the fills for a device, in front of the package's CPU fallback, and takes them back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate import chips
from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.run.rehearse.fill.contract import require_accepted
from joymigrate.run.rehearse.fill.declare import Fill

# Device types of torch with a dispatch key of their own; every other device is PrivateUse1.
OWN_KEYS = {"cuda": "CUDA", "xpu": "XPU", "hpu": "HPU", "mps": "MPS"}
# One set of fills per dispatch key and process.
_active: dict[str, Installed] = {}


@dataclass(slots=True)
class Installed:
    """Fills that are registered in this process: their overloads, and the way back."""

    key: str
    names: tuple[str, ...]
    library: Any

    def remove(self) -> None:
        """Give the operators back to what served them before."""
        if self.library is not None:
            self.library._destroy()
            self.library = None
        if _active.get(self.key) is self:
            del _active[self.key]

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *about: object) -> None:
        self.remove()


def register(
    fills: Mapping[str, Fill],
    chip: str | Chip | None = None,
    *,
    only: Iterable[str] | None = None,
    force: bool = False,
) -> Installed:
    """Register `fills` for a chip's device; `install` of the package says the rest."""
    owner = chip if isinstance(chip, Chip) else chips.target(chip)
    key = OWN_KEYS.get(owner.device, "PrivateUse1")
    if key in _active:
        return _active[key]
    chosen = select_fills(fills, only)
    taken = set() if force else own_kernels(key)
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    done = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is overridden: on purpose
        for one in chosen:
            for name in one.overloads:
                overload = find(name)
                if overload is None or name in taken:
                    continue
                library.impl(  # type: ignore[no-untyped-call]
                    name.removeprefix("aten::"),
                    kernel(one, overload),
                    key,
                    allow_override=True,
                )
                done.append(name)
    installed = Installed(key, tuple(sorted(done)), library)
    _active[key] = installed
    return installed


def select_fills(fills: Mapping[str, Fill], only: Iterable[str] | None) -> list[Fill]:
    """The fills that are asked for."""
    if only is None:
        return list(fills.values())
    by_name = {name: one for one in fills.values() for name in (one.name, *one.overloads)}
    for name in only:
        if name not in by_name:
            raise JoyError(
                f"there is no fill for '{name}'",
                help="`joymigrate.run.rehearse.fill.names()` lists those there are",
            )
    return list({by_name[name].name: by_name[name] for name in only}.values())


def own_kernels(key: str) -> set[str]:
    """Operators that the chip's package has a kernel for.

    Under a rehearsal its CPU fallback is registered operator by operator, to be counted; those
    are no kernels of the chip.
    """
    import sys

    registered = set(torch._C._dispatch_get_registrations_for_dispatch_key(key))
    counted = sys.modules.get("joymigrate.run.rehearse.fallback")
    return registered - set(getattr(counted, "COUNTED", ()))


def find(name: str) -> Any:
    """The overload of that name; None where this torch has none."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def kernel(one: Fill, overload: Any) -> Callable[..., Any]:
    """The fill as a kernel of one overload: new results, in place, or into `out` tensors."""
    arguments = overload._schema.arguments
    outs = [a.name for a in arguments if a.kwarg_only and writes(a)]
    places = [i for i, a in enumerate(arguments) if writes(a) and not a.kwarg_only]
    returns = len(overload._schema.returns)
    function = one.function

    if outs:

        def into(*args: Any, **kwargs: Any) -> Any:
            require_accepted(overload, args, kwargs)
            targets = [kwargs.pop(name) for name in outs]
            with torch._C._AutoDispatchBelowAutograd():
                made = function(*args, **kwargs)
                results = made if isinstance(made, tuple) else (made,)
                for target, result in zip(targets, results, strict=True):
                    place(target, result)
            return targets[0] if returns == 1 else tuple(targets)

        return into

    if places and returns == 1:

        def in_place(*args: Any, **kwargs: Any) -> Any:
            require_accepted(overload, args, kwargs)
            with torch._C._AutoDispatchBelowAutograd():
                args[0].copy_(function(*args, **kwargs))
            return args[0]

        return in_place

    def new(*args: Any, **kwargs: Any) -> Any:
        require_accepted(overload, args, kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return function(*args, **kwargs)

    return new


def writes(argument: Any) -> bool:
    """Whether a schema's argument is written to."""
    return argument.alias_info is not None and argument.alias_info.is_write


def place(target: Tensor, result: Tensor) -> None:
    """Put a result where the caller wants it; a target of another size follows it."""
    if target.size() != result.size():
        target.resize_(result.size())
    target.copy_(result)

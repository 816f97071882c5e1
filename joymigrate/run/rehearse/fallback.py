"""Operators that the chip's package has no kernel for: torch_npu moves their tensors to the CPU.

Here that really is what happens, through the package's own fallback; we count each with the line
that caused it, or refuse it under `--policy error`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.record import Record
from joymigrate.run.rehearse.settings import Settings

KEY = "PrivateUse1"
# Kernels that any of these keys provides are reached before a fallback is.
COMPOSITES = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
# Operators that have our counting kernel: the chip's package has none for them.
COUNTED: set[str] = set()


def falling_back() -> list[str]:
    """Operators with a CPU kernel that reach the package's fallback on the device."""
    registrations = torch._C._dispatch_get_registrations_for_dispatch_key
    names = set(registrations("CPU")) - set(registrations(KEY))
    for key in COMPOSITES:
        names -= set(registrations(key))
    return sorted(name for name in names if name.startswith("aten::"))


def install(
    names: list[str],
    put: Callable[[str, Callable[..., Any]], None],
    settings: Settings,
    record: Record,
) -> None:
    """Put a counting kernel before the package's fallback, operator by operator."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        return
    for name in names:
        try:
            kernel = get_kernel(name, KEY)
        except RuntimeError:
            continue
        put(name, counting(name, kernel, settings, record))
        COUNTED.add(name)


def counting(name: str, kernel: Any, settings: Settings, record: Record) -> Callable[..., Any]:
    """Count one use with its line, then let the package's own fallback do it."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def fall_back(*args: Any, **kwargs: Any) -> Any:
        where = call_site()
        record.fallback(name, where)
        if settings.policy == "error":
            raise NotImplementedError(
                f"rehearsal: '{name}' is not in the operator list of torch_npu "
                f"{settings.package}; on the chip it falls back to the CPU ({where})"
            )
        return kernel.call_boxed(keys, *args, **kwargs)

    return fall_back

"""Operators that the chip's package has no kernel for: torch_npu moves their tensors to the CPU.

Here that really is what happens, through the package's own fallback; we count each with the line
that caused it, or refuse it under `--policy error`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from importlib.machinery import ExtensionFileLoader
from typing import Any

import torch

from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.dispatch import KEY, Dispatcher
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.run.rehearse.settings import RehearsalSettings
from joymigrate.run.rehearse.signatures import Signatures
from joymigrate.run.rehearse.signatures import fall_back as fall_back_row

# Kernels that any of these keys provides are reached before a fallback is.
COMPOSITES = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
# Operators that have our counting kernel: the chip's package has none for them.
COUNTED: set[str] = set()


def falling_back() -> list[str]:
    """Operators of any namespace that reach the package's fallback on the device."""
    registrations = torch._C._dispatch_get_registrations_for_dispatch_key
    names = set(registrations("CPU")) - set(registrations(KEY))
    for key in COMPOSITES:
        names -= set(registrations(key))
    return sorted(names)


class Fallbacks:
    """Puts a counting kernel before the package's fallback, operator by operator; also for
    operators that a library or the program itself defines later."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: RehearsalSettings,
        record: RehearsalRecord,
        signatures: Signatures,
    ) -> None:
        self.dispatcher = dispatcher
        self.signatures = signatures
        self.settings = settings
        self.record = record
        self.known: set[str] = set()

    def count(self, names: Iterable[str]) -> None:
        """Count the uses of these operators from now on."""
        for name in names:
            self.known.add(name)
            kernel = self.dispatcher.kernel(name)
            if kernel is None:
                continue
            self.dispatcher.put(
                name, counting(name, kernel, self.settings, self.record, self.signatures)
            )
            COUNTED.add(name)

    def look_again(self) -> None:
        """Count what was defined since the last look."""
        new = [name for name in falling_back() if name not in self.known]
        if new:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that kernels are overridden
                self.count(new)

    def watch(self) -> None:
        """Look again after each thing that can define operators: an extension module, a library
        that torch loads, a kernel that Python registers."""
        for owner, name in (
            (ExtensionFileLoader, "exec_module"),
            (torch.ops, "load_library"),
            (torch.library.Library, "impl"),
        ):
            self.after(owner, name)
        self.after_new_names()

    def after_new_names(self) -> None:
        """Look again when a program first names an operator of a namespace that was not there at
        the start: a library may come in unseen (`ctypes.CDLL`)."""
        namespaces = {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
        real = torch._ops._OpNamespace.__getattr__
        looking = self

        @functools.wraps(real)
        def named(namespace: Any, name: str) -> Any:
            found = real(namespace, name)
            if namespace.name not in namespaces:
                looking.look_again()
            return found

        torch._ops._OpNamespace.__getattr__ = named  # type: ignore[method-assign]

    def after(self, owner: Any, name: str) -> None:
        """Look again whenever `owner.name` returns."""
        real = getattr(owner, name)
        looking = self

        @functools.wraps(real)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            if name != "impl" or "CPU" in (*args, *kwargs.values()):
                looking.look_again()
            return result

        setattr(owner, name, watched)


def counting(
    name: str,
    kernel: Any,
    settings: RehearsalSettings,
    record: RehearsalRecord,
    signatures: Signatures,
) -> Callable[..., Any]:
    """Count one use with its line, then let the package's own fallback do it."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def fall_back(*args: Any, **kwargs: Any) -> Any:
        where = call_site()
        record.fallback(name, where)
        fall_back_row(signatures.note(name, args, kwargs))
        if settings.policy == "error":
            raise NotImplementedError(
                f"rehearsal: '{name}' is not in the operator list of torch_npu "
                f"{settings.package}; on the chip it falls back to the CPU ({where})"
            )
        return kernel.call_boxed(keys, *args, **kwargs)

    return fall_back

"""The package's kernels, callable while ours lie above them; for every torch from 2.1 on.

torch from 2.9 on hands a registered kernel out (`torch.library.get_kernel`). Before, a small C++
library does (`shim/dispatch.cpp`), which is built with the simulated runtime.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from joymigrate.run.rehearse.build import SWITCH

KEY = "PrivateUse1"
AUTOGRAD_KEY = "AutogradPrivateUse1"


def find_overload(name: str) -> Any:
    """The `OpOverload` of `namespace::base.overload`; None where no schema was defined."""
    namespace, rest = name.split("::")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    except (AttributeError, RuntimeError):
        return None


class Switched:
    """A kernel that the C++ library kept; called like those of torch's `get_kernel`."""

    __slots__ = ("handle", "overload", "pass_on")

    def __init__(self, handle: int, overload: Any, pass_on: Any) -> None:
        self.handle, self.overload, self.pass_on = handle, overload, pass_on

    def call_boxed(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Call it with these arguments, as the dispatcher would with these keys."""
        self.pass_on(self.handle)
        try:
            return self.overload.redispatch(keys, *args, **kwargs)
        finally:
            self.pass_on(None)  # where the arguments were refused it is still asked for


class Dispatcher:
    """Registers kernels, one library per namespace, and keeps those that they are put over."""

    def __init__(self, libraries: Path) -> None:
        self.libraries: dict[str, Any] = {}
        self.kept: dict[str, Switched] = {}
        self.get_kernel = getattr(torch.library, "get_kernel", None)
        self.over = (
            {"allow_override": True}
            if "allow_override" in inspect.signature(torch.library.Library.impl).parameters
            else {}
        )
        self.switch = None
        if self.get_kernel is None:
            self.switch = ctypes.CDLL(str(libraries / SWITCH))
            self.switch.joy_keep.restype = ctypes.c_void_p
            self.switch.joy_switch.argtypes = self.switch.joy_pass.argtypes = [ctypes.c_void_p]

    def kernel(self, name: str) -> Any:
        """The kernel that answers for `name` on the device now; None where there is none."""
        if self.get_kernel is not None:
            try:
                return self.get_kernel(name, KEY)
            except RuntimeError:
                return None
        if name not in self.kept:
            base, _, overload = name.partition(".")
            handle = self.switch.joy_keep(base.encode(), overload.encode())  # type: ignore[union-attr]
            found = find_overload(name)
            if handle is None or found is None:
                return None
            self.kept[name] = Switched(handle, found, self.switch.joy_pass)  # type: ignore[union-attr]
        return self.kept[name]

    def put(self, name: str, kernel: Callable[..., Any], key: str = KEY) -> None:
        """Register `kernel` for the operator `name`, over the package's own where there is one."""
        namespace, rest = name.split("::")
        if namespace not in self.libraries:
            self.libraries[namespace] = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
        # torch refuses a second kernel from Python: the package's may be one, and the program may
        # well bring one of its own.
        known = f"{namespace}/{rest}/{key}"
        torch.library._impls.discard(known)
        self.libraries[namespace].impl(rest, kernel, key, **self.over)
        torch.library._impls.discard(known)
        kept = self.kept.get(name)
        if kept is not None and key == KEY:
            self.switch.joy_switch(kept.handle)  # type: ignore[union-attr]

"""pyACL, the Python module of the chip's runtime (`import acl`), on the simulated runtime.

It comes with CANN and not from an index, so programs find it on a machine with a chip alone. What
stands in the table calls the simulated library; any other function raises and says so. Values come
first and the code last, as CANN's documents have it (pyACL API reference, "Python API").
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int32, c_size_t, c_uint32, c_void_p
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from joymigrate.run.rehearse.settings import RehearsalSettings

NAME = "acl"
# function: (C function, arguments, what it writes back)
RUNTIME: dict[str, tuple[str, tuple[type, ...], tuple[type, ...]]] = {
    "set_device": ("aclrtSetDevice", (c_int32,), ()),
    "get_device": ("aclrtGetDevice", (), (c_int32,)),
    "reset_device": ("aclrtResetDevice", (c_int32,), ()),
    "get_device_count": ("aclrtGetDeviceCount", (), (c_uint32,)),
    "synchronize_device": ("aclrtSynchronizeDevice", (), ()),
    "malloc": ("aclrtMalloc", (c_size_t, c_int), (c_void_p,)),
    "free": ("aclrtFree", (c_void_p,), ()),
    "memcpy": ("aclrtMemcpy", (c_void_p, c_size_t, c_void_p, c_size_t, c_int), ()),
    "get_mem_info": ("aclrtGetMemInfo", (c_int,), (c_size_t, c_size_t)),
}
FIRST = {"aclrtMalloc"}  # write to their first argument


def provide(settings: RehearsalSettings) -> None:
    """Offer `acl` and `acl.rt` to this process's imports, after everything that is installed."""
    sys.meta_path.append(AclFinder(settings))


class AclFinder(MetaPathFinder, Loader):
    """Makes the two modules when they are asked for and CANN's own are not there."""

    def __init__(self, settings: RehearsalSettings) -> None:
        self.settings = settings

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in (NAME, f"{NAME}.rt"):
            return None
        return ModuleSpec(name, self, is_package=name == NAME)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AclModule(spec.name)

    def exec_module(self, module: Any) -> None:
        from joymigrate.run.rehearse.shim import load_runtime

        simulated = load_runtime(self.settings)
        if module.__name__ == NAME:
            simulated.aclrtGetSocName.restype = c_char_p
            module.get_soc_name = lambda: simulated.aclrtGetSocName().decode()
            module.init = lambda *_: 0
            module.finalize = lambda: 0
            module.rt = importlib.import_module(f"{NAME}.rt")
            return
        for name, (symbol, takes, gives) in RUNTIME.items():
            function = caller(getattr(simulated, symbol), takes, gives, symbol in FIRST)
            setattr(module, name, function)


class AclModule(ModuleType):
    """A module that names what it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"rehearsal device: {self.__name__}.{name} has no simulation")


def caller(
    function: Any, takes: tuple[type, ...], gives: tuple[type, ...], first: bool
) -> Callable[..., Any]:
    """The Python function of one C function: what it writes back, then its code."""
    function.restype = c_int

    def call(*given: Any) -> Any:
        if len(given) != len(takes):
            raise TypeError(f"{function.__name__} takes {len(takes)} arguments, got {len(given)}")
        values = [kind(value) for kind, value in zip(takes, given, strict=True)]
        back: list[Any] = [kind() for kind in gives]
        places = [ctypes.byref(one) for one in back]
        code = function(*places, *values) if first else function(*values, *places)
        return (*(one.value or 0 for one in back), code) if back else code  # no None for null

    return call

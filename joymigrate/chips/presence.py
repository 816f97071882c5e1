"""Vendor packages that are installed on a machine without their driver.

Libraries look for a vendor's package and import it when they find one; without its driver that
import fails, and the library with it. Hidden, the package counts as not installed, which is the
truth for everything such a library asks.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys

from joymigrate.chips.load import all_chips

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch imports the package by itself unless it is 0
REHEARSAL = "JOYMIGRATE_REHEARSE"  # the simulated chip brings the libraries itself


def hide_driverless() -> tuple[str, ...]:
    """Hide the packages whose driver (`library` in chip.yaml) does not load.

    Returns the names of all that are hidden, also of those that an earlier call hid.

    Affects this process, and `import torch` in its children. A package that is loaded already, and
    every package in a rehearsal, is left alone. Call it before importing a library that looks for
    accelerators by itself.
    """
    if os.environ.get(REHEARSAL):
        return ()
    for package in driverless():
        sys.modules[package] = None  # type: ignore[assignment]
        os.environ[AUTOLOAD] = "0"
    known = (chip.package for chip in all_chips().values() if chip.library is not None)
    return tuple(name for name in known if name and sys.modules.get(name, name) is None)


def driverless() -> tuple[str, ...]:
    """The packages that are installed, not loaded, and whose driver does not load."""
    return tuple(
        chip.package
        for chip in all_chips().values()
        if chip.package is not None
        and chip.library is not None
        and chip.package not in sys.modules
        and importlib.util.find_spec(chip.package) is not None
        and not loads(chip.library)
    )


def loads(library: str) -> bool:
    """Whether the dynamic linker finds `library`."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True

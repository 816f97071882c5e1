"""Operators that a chip sends to the CPU, made of operators that it has. (docs/how-to/fill.md)

Two lines in a program that runs on the chip (`install("NAME")` for another than the default):

    import joymigrate.run.rehearse.fill as fill
    fill.install()

`install` registers them for the chip's device where the chip's package has no kernel of its own;
torch's autograd formulas stay above them. `Installed.remove` takes them back. `--fill` of
`joymigrate rehearse` and `joymigrate run` does the same without a line.

Importing this package imports no torch: its hook runs before the program's own first line.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.run.rehearse.fill.declare import Fill
    from joymigrate.run.rehearse.fill.register import Installed

__all__ = ["fills", "install", "names"]


def fills() -> dict[str, Fill]:
    """Every fill by its name, found in the modules of this package."""
    from joymigrate.run.rehearse.fill.declare import FILLS

    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return FILLS


def names() -> list[str]:
    """Every overload that is filled, as `aten::lgamma.out`, sorted."""
    return sorted({name for one in fills().values() for name in one.overloads})


def install(
    chip: str | Chip | None = None, *, only: Iterable[str] | None = None, force: bool = False
) -> Installed:
    """Register the fills for a chip's device. A second call gives back the first one's.

    An operator that the chip's package has a kernel for keeps it, unless `force`. `only` names
    operators by `lgamma` or `aten::lgamma.out`. Raises JoyError for a name that is not filled.
    """
    from joymigrate.run.rehearse.fill.register import register

    return register(fills(), chip, only=only, force=force)

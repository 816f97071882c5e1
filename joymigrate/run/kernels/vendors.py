"""Implementations that chips bring: `kernels.yaml` in a chip's folder.

    schema: joymigrate.chip-kernels/1
    implementations:
      - op: rms_norm
        name: vendor                                   # default
        function: package.module:function              # the operator's signature
        calls: fused_rms_norm                          # the vendor's operator, for the reader
        dtypes: [float32, float16, bfloat16]
        priority: 50                                   # above torch's 10
        backward: true
        packages: [vendor_package]                     # default: the chip's package
        when: package.module:predicate                 # optional: Call -> reason or None
        source: where the signature was read

Outside packages that register a chip bring their kernels the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from joymigrate.chips import Chip, all_chips
from joymigrate.run.kernels.operator import FLOATS, Implementation
from joymigrate.schema import document, read_file, setting

FILE = "kernels.yaml"


@dataclass(frozen=True, slots=True)
class VendorKernel:
    """One kernel as its file says it."""

    op: str = setting(help="the operator")
    function: str = setting(help="package.module:function, with the operator's signature")
    name: str = setting("vendor", "what it is called in tables and requests")
    calls: str = setting("", "the vendor's operator behind it, for the reader")
    dtypes: tuple[str, ...] = setting(FLOATS, "dtypes that it takes")
    priority: int = setting(50, "the highest that can run is taken; torch's own has 10")
    backward: bool = setting(True, "whether gradients reach the inputs")
    packages: tuple[str, ...] | None = setting(
        None, "packages that must be there (default: the chip's)"
    )
    when: str | None = setting(None, "package.module:predicate, Call -> reason or None")
    source: str = setting("", "where the signature was read")
    note: str = setting("", "what else to know")


@document("chip-kernels", "Kernels that a chip brings: `kernels.yaml` in its folder.")
@dataclass(frozen=True, slots=True)
class ChipKernels:
    """The kernels of one chip."""

    VERSIONED = True

    implementations: tuple[VendorKernel, ...] = setting((), "the kernels")


def implementations(op: str) -> tuple[Implementation, ...]:
    """What all chips bring for one operator."""
    return tuple(item for chip in all_chips().values() for item in of_chip(chip.name).get(op, ()))


@functools.cache
def of_chip(name: str) -> Mapping[str, tuple[Implementation, ...]]:
    """A chip's implementations by operator."""
    return read_document(all_chips()[name])


def read_document(chip: Chip) -> Mapping[str, tuple[Implementation, ...]]:
    """The chip's kernels.yaml, checked."""
    path = chip.folder / FILE
    by_op: dict[str, tuple[Implementation, ...]] = {}
    for item in read_file(ChipKernels, path, "kernels").implementations if path.is_file() else ():
        by_op[item.op] = (*by_op.get(item.op, ()), implementation(item, chip))
    return by_op


def implementation(item: VendorKernel, chip: Chip) -> Implementation:
    """A kernel of a chip's file as one of the registry."""
    default = (chip.package,) if chip.package else ()
    return Implementation(
        name=item.name,
        function=item.function,
        priority=item.priority,
        devices=(chip.device,),
        dtypes=item.dtypes,
        backward=item.backward,
        packages=default if item.packages is None else item.packages,
        when=item.when,
        calls=item.calls,
        source=item.source,
        chip=chip.name,
        note=item.note,
    )

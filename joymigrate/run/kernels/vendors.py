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
from typing import Any

from joymigrate.chips import Chip, all_chips
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.kernels.operator import FLOATS, Implementation

SCHEMA = "joymigrate.chip-kernels/1"
FILE = "kernels.yaml"
KEYS = (
    "op", "name", "function", "calls", "dtypes", "priority", "backward", "packages", "when",
    "source", "note",
)  # fmt: skip


def implementations(op: str) -> tuple[Implementation, ...]:
    """What all chips bring for one operator."""
    return tuple(item for chip in all_chips().values() for item in of_chip(chip.name).get(op, ()))


@functools.cache
def of_chip(name: str) -> Mapping[str, tuple[Implementation, ...]]:
    """A chip's implementations by operator."""
    return read_document(all_chips()[name])


def read_document(chip: Chip) -> Mapping[str, tuple[Implementation, ...]]:
    """The chip's kernels.yaml, checked."""
    document = chip.data(FILE)
    if document is None:
        return {}
    where = str(chip.folder / FILE)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise JoyError("not a list of kernels", where=where, help=f"schema: {SCHEMA}")
    found: dict[str, tuple[Implementation, ...]] = {}
    for raw in document.get("implementations") or ():
        item = read_item(raw, chip, where)
        found[raw["op"]] = (*found.get(raw["op"], ()), item)
    return found


def read_item(raw: Any, chip: Chip, where: str) -> Implementation:
    """One item of `implementations`."""
    if not isinstance(raw, dict) or not raw.get("op") or not raw.get("function"):
        raise JoyError(f"a kernel needs `op` and `function`, got {raw!r}", where=where)
    for key in raw:
        if key not in KEYS:
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), KEYS)}", where=f"{where} {raw['op']}"
            )
    packages = raw.get("packages", [chip.package] if chip.package else [])
    return Implementation(
        name=str(raw.get("name", "vendor")),
        function=str(raw["function"]),
        priority=int(raw.get("priority", 50)),
        devices=(chip.device,),
        dtypes=tuple(raw.get("dtypes", FLOATS)),
        backward=bool(raw.get("backward", True)),
        packages=tuple(packages),
        when=raw.get("when"),
        calls=str(raw.get("calls", "")),
        source=str(raw.get("source", "")),
        chip=chip.name,
        note=str(raw.get("note", "")),
    )

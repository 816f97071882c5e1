"""CPU references of the vendor's operators: what a chip kernel computes, written with plain torch.

`registry()` finds every `@reference` below this folder; a new family is a new file. A reference
takes plain CPU tensors in the order of the operator's schema, mutates in-place and out arguments,
and returns CPU tensors in schema order. Backward operators are entries of their own.

What the references do not know: block order and rounding inside a kernel, timing, and the dtype
and shape limits of CANN. They round once, at the outputs.
"""

from __future__ import annotations

import importlib
import pkgutil

from joymigrate.run.rehearse.refs.declaration import DECLARED, Reference, reference, signatures
from joymigrate.run.rehearse.refs.forms import derive_forms
from joymigrate.run.rehearse.refs.missing_references import stand_ins

__all__ = ["Reference", "list_references", "reference", "registry", "signatures"]


def list_references() -> dict[str, Reference]:
    """Every reference by its own name (`npu::npu_rms_norm`, `npu::npu_max.dim`)."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        if not module.name.startswith("__"):
            importlib.import_module(f"{__name__}.{module.name}")
    return {**derive_forms(), **DECLARED}


def registry() -> dict[str, Reference]:
    """`computed()`, and stand-ins that refuse where the vendor's own code wouldn't do so cleanly.

    The vendor registers its operators a second time under `aten::`; those names are here too.
    """
    found = {**stand_ins(), **list_references()}
    twins = {
        f"aten::{name.removeprefix('npu::')}": item
        for name, item in found.items()
        if name.startswith("npu::")
    }
    return {**twins, **found}

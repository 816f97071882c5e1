"""Runs calls through the vendor's meta kernels, without CANN: shapes and dtypes of the outputs.

A process of its own: it declares the vendor's operators from our signatures and loads the meta
registrations of the installed wheel over stand-ins for the modules they import. Nothing else of
the vendor's package is imported.

Usage: python -m tests.run.rehearse.refs.vendor_meta → JSON on stdout.
"""

from __future__ import annotations

import json
import sys
import types
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from joymigrate.run.rehearse.refs import signatures
from tests.run.rehearse.refs import all_samples

NUMBERS = {
    "int4": 285,
    "hifloat8": 290,
    "float8_e5m2": 291,
    "float8_e4m3fn": 292,
    "float8_e8m0fnu": 293,
    "float4_e2m1fn_x2": 296,
    "float4_e1m2fn_x2": 297,
    "uint1": 283,
    "uint8": 260,  # a default that no sample reaches
}


def stand_ins() -> None:
    """Modules under the vendor's names with just what the meta file reads."""

    class AnyCode:
        def __getattr__(self, name: str) -> str:
            return name

    attributes: dict[str, dict[str, Any]] = {
        "torch_npu": NUMBERS,
        "torch_npu.utils": {},
        "torch_npu.utils._error_code": {"ErrCode": AnyCode(), "ops_error": lambda code: ""},
        "torch_npu.npu": {},
        "torch_npu.npu.utils": {
            "get_cann_version": lambda *a, **k: "9.1.0",
            "_is_gte_cann_version": lambda *a, **k: True,
        },
        "torch_npu.npu._backends": {"get_soc_version": lambda: 223},
    }
    for name, values in attributes.items():
        module = types.ModuleType(name)
        for key, value in values.items():
            setattr(module, key, value)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)


def load() -> list[torch.library.Library]:
    """Declare every `npu::` operator and load the meta kernels of the wheel."""
    found = PathFinder.find_spec("torch_npu")
    if found is None or found.origin is None:
        raise SystemExit("torch_npu is not installed")
    library = torch.library.Library("npu", "DEF")
    for name, schema in signatures().items():
        if name.startswith("npu::"):
            library.define(schema.removeprefix("npu::"))
    stand_ins()
    path = Path(found.origin).parent / "op_plugin" / "meta" / "_meta_registrations.py"
    scope: dict[str, Any] = {"__name__": "vendor_meta_registrations"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    return [library, *[v for v in scope.values() if isinstance(v, torch.library.Library)]]


def described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    return [list(value.shape), str(value.dtype)]


def main() -> None:
    kept = load()
    found = {}
    for name, calls in all_samples().items():
        if not name.startswith("npu::"):
            continue
        base, _, overload = name.removeprefix("npu::").partition(".")
        operator = getattr(getattr(torch.ops.npu, base), overload or "default")
        for number, (args, kwargs) in enumerate(calls):
            to_meta = tree_map(
                lambda v: v.to("meta") if isinstance(v, torch.Tensor) else v, (args, kwargs)
            )
            try:
                result = operator(*to_meta[0], **to_meta[1])
            except Exception as error:
                found[f"{name}#{number}"] = f"{type(error).__name__}: {error}"[:300]
                continue
            found[f"{name}#{number}"] = [described(v) for v in tree_flatten(result)[0]]
    del kept
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

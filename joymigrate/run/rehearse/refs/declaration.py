"""The noun of this package: one operator's reference, and the schema it follows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reference:
    """`function` computes on CPU what the operator `name` computes on the chip."""

    name: str  # dispatcher name with namespace and overload, "npu::npu_max.dim"
    function: Callable[..., Any]
    signature: str  # the schema followed, as the vendor's package declares it
    source: str  # where signature and semantics are documented


DECLARED: dict[str, Reference] = {}


@cache
def signatures() -> dict[str, str]:
    """Dispatcher name → schema of all operators that need a reference (torch_npu 2.13.0).

    Extracted from the wheel's `npu_native_functions_by_codegen.yaml` (`npu::`, and the `aten::`
    operators that torch has no CPU kernel for) and from op-plugin's ATB libraries (`atb::`).
    Forms with several outputs take `Tensor[] out`, as the package registers them; it also
    registers every `self` under the name `input`.
    """
    text = resources.files(__package__).joinpath("signatures.txt").read_text(encoding="utf-8")
    return {line.split("(", 1)[0]: line for line in text.splitlines() if "(" in line}


def as_declared(name: str) -> Callable[[Function], Function]:
    """Give a function of `*args, **kwargs` the parameters that an operator's schema declares."""

    def sign(function: Function) -> Function:
        import torch

        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    one.name,
                    kinds[one.kwarg_only],
                    default=one.default_value if one.has_default_value() else inspect._empty,
                )
                for one in torch._C.parse_schema(signatures()[name]).arguments
            ]
        )
        return function

    return sign


def reference(*names: str, source: str) -> Callable[[Function], Function]:
    """Declare a function as the reference of one or more operators of the same signature."""

    def declare(function: Function) -> Function:
        for name in names:
            full = name if "::" in name else f"npu::{name}"
            if full in DECLARED:
                raise RuntimeError(f"two references of {full}")
            DECLARED[full] = Reference(full, function, signatures()[full], source)
        return function

    return declare

"""The noun of this package: one operator's reference, and the schema it follows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from importlib import resources
from types import SimpleNamespace
from typing import Any, TypeVar

Result = TypeVar("Result")
MISSING = object()  # in place of a default


@dataclass(frozen=True, slots=True)
class Reference:
    """`function` computes on CPU what the operator `name` computes on the chip."""

    name: str  # dispatcher name with namespace and overload, "npu::npu_max.dim"
    function: Callable[..., Any]
    signature: str  # the schema followed, as the vendor's package declares it
    source: str  # where signature and semantics are documented


class ReferenceArguments(SimpleNamespace):
    """What a call gives to an operator, by the names in its schema; what is called self or input
    there is `x` as well. For references that take most of a long schema."""

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these that the operator's schema has."""
        return next((getattr(self, one) for one in names if hasattr(self, one)), default)


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


@cache
def arguments_of(name: str) -> dict[str, Any]:
    """Name → default of the arguments of an operator's schema; `MISSING` where there is none."""
    import torch

    declared = torch._C.parse_schema(signatures()[name]).arguments
    return {one.name: one.default_value if one.has_default_value() else MISSING for one in declared}


def written_by(name: str) -> list[str]:
    """The arguments that an operator writes into, by its schema."""
    import torch

    declared = torch._C.parse_schema(signatures()[name]).arguments
    return [one.name for one in declared if one.alias_info is not None and one.alias_info.is_write]


def bind(
    name: str, first: str, function: Callable[..., Result], without: Sequence[str] = ()
) -> Callable[..., Result]:
    """A function called as an operator's schema says, that is handed what it names of the
    arguments: by their names in the schema of the `first` operator of its declaration, whose
    arguments have the same order, or as `x` what is called self or input there. One that names
    `given` alone is handed all of them. What it computes `without` may not be given."""
    parameters = inspect.signature(function).parameters.values()
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    wanted = [one.name for one in parameters]

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Result:
        declared = arguments_of(name)
        given = {**declared, **dict(zip(declared, args, strict=False)), **kwargs}
        lacking = [argument for argument, value in given.items() if value is MISSING]
        if lacking or len(args) > len(declared) or len(given) > len(declared):
            more = ", ".join(lacking or kwargs.keys() - declared.keys() or ("too many",))
            raise TypeError(f"{name}: {more}; it is declared as {signatures()[name]}")
        if name != first:
            given = dict(zip(arguments_of(first), given.values(), strict=True))
        for one in without:
            if is_given(one, given[one], arguments_of(first)[one]):
                from joymigrate.run.rehearse.refs.dtypes import Unsimulated  # imports torch

                raise Unsimulated(name.split("::")[1], one)
        if every:
            return function(**given)
        given.setdefault("x", given.get("self", given.get("input")))
        if wanted == ["given"]:
            return function(ReferenceArguments(**given))
        return function(**{one: given[one] for one in wanted})

    return called


def is_given(name: str, value: Any, default: Any) -> bool:
    """Whether a call asks something of an argument: a tensor, a list with more than zeros, another
    number than the default or zero; a dtype's number may be zero."""
    if hasattr(value, "dim"):
        return True
    if isinstance(value, (list, tuple)):
        return any(value)
    return value not in (None, default) and (bool(value) or name.endswith("dtype"))


def reference(
    *names: str, source: str, without: str = ""
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Declare a function as the reference of one or more operators. It names those arguments of
    their schemas that it computes with; the schemas have their order and their defaults. A call
    that gives one of `without` has no formula here, and is refused."""

    def declare(function: Callable[..., Result]) -> Callable[..., Result]:
        operators = [name if "::" in name else f"npu::{name}" for name in names]
        for name in operators:
            if name in DECLARED:
                raise RuntimeError(f"two references of {name}")
            bound = bind(name, operators[0], function, without.split())
            DECLARED[name] = Reference(name, bound, signatures()[name], source)
        return DECLARED[operators[0]].function

    return declare

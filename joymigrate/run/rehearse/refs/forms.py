"""Forms of one operator that need no reference of their own: with an out argument, in place, and
what an operator that writes gives without writing. They mean what the form that has one means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from joymigrate.run.rehearse.refs.declaration import (
    DECLARED,
    Reference,
    arguments_of,
    bind,
    signatures,
    written_by,
)

CONTRADICTED = frozenset({"npu::npu_batch_gather_matmul"})  # by two public sources of the vendor


def derive_forms() -> dict[str, Reference]:
    """References of the forms of what is declared, by dispatcher name."""
    found = {}
    for name in signatures():
        function = None if name in DECLARED or name in CONTRADICTED else derive(name)
        if function is not None:
            of, call = function
            found[name] = Reference(name, bind(name, name, call), signatures()[name], of.source)
    return found


def derive(name: str) -> tuple[Reference, Callable[..., Any]] | None:
    """One form, and whose it is."""
    base, _, overload = name.partition(".")
    if overload == "out" or overload.endswith("_out"):
        functional = ".".join(filter(None, (base, overload.removesuffix("out").removesuffix("_"))))
        of = DECLARED.get(functional)
        return (of, write_outputs(name, of)) if of else None
    if base.endswith("_functional"):
        of = DECLARED.get(base.removesuffix("_functional"))
        return (of, copy_written(of)) if of else None
    if of := DECLARED.get(f"{base}_"):
        return of, copy_first(of)
    of = DECLARED.get(base.removesuffix("_"))
    return (of, write_first(of)) if of and base.endswith("_") and not overload else None


def write_outputs(name: str, of: Reference) -> Callable[..., Any]:
    """The form that writes its results into given tensors."""

    def written(**given: Any) -> Any:
        known = arguments_of(of.name)
        targets = [given.pop(one) for one in list(given) if one not in known and one != WORKSPACE]
        given = {one: value for one, value in given.items() if one in known}
        found = of.function(**given)
        outputs = targets[0] if isinstance(targets[0], (list, tuple)) else targets
        values = found if isinstance(found, (list, tuple)) else [found]
        for output, value in zip(outputs, values, strict=True):
            put(output, value, resize=not name.startswith("atb::"))
        return tuple(outputs) if isinstance(found, (list, tuple)) else outputs[0]

    return written


WORKSPACE = "workspace"  # memory that the chip's kernel works in


def put(output: Any, value: Any, *, resize: bool) -> None:
    """A result in its place. One that was not asked for leaves it as it is: an empty one, or an
    empty place where none is resized."""
    if not hasattr(value, "numel"):
        if value is not None:
            output.fill_(value)
    elif output.numel() == value.numel():
        output.copy_(value.reshape(output.shape))
    elif resize and value.numel():
        output.resize_(value.shape).copy_(value)


def copy_written(of: Reference) -> Callable[..., Any]:
    """What an operator gives, then copies of what it writes, in the schema's order."""

    def functional(**given: Any) -> Any:
        copies = {one: given[one].clone() for one in written_by(of.name)}
        found = of.function(**{**given, **copies})
        outputs = () if found is None else found if isinstance(found, tuple) else (found,)
        return (*outputs, *copies.values())

    return functional


def copy_first(of: Reference) -> Callable[..., Any]:
    """What an in-place operator gives, its first argument left as it is."""

    def functional(**given: Any) -> Any:
        first, value = next(iter(given.items()))
        copy = [one.clone() for one in value] if isinstance(value, Sequence) else value.clone()
        found = of.function(**{**given, first: copy})
        return copy if found is None else found

    return functional


def write_first(of: Reference) -> Callable[..., Any]:
    """An operator in place: its first argument becomes the result."""

    def in_place(**given: Any) -> Any:
        return next(iter(given.values())).copy_(of.function(**given))

    return in_place

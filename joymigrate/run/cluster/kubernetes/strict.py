"""Checks a value against a structural OpenAPI schema; an unknown field is an error.

Kubernetes itself drops unknown fields of a custom resource in silence, which is how a mistyped
`priorityClass` becomes a job without a priority.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.errors import did_you_mean

MISTYPED = "a value of type"  # how the help of a wrong type begins
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """One mistake of a manifest: where (file, object, field path), what, and what to do."""

    where: str
    path: str
    what: str
    help: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: {self.path}" if self.path else self.where
        return f"{place}: {self.what}" + (f"\n  help: {self.help}" if self.help else "")


Found = Iterator[tuple[str, str, str]]  # path, what, help


def check(value: Any, schema: Mapping[str, Any], path: str = "") -> Found:
    """Every way in which `value` breaks `schema`."""
    if value is None:
        if not schema.get("nullable") and path:
            yield path, "is null", "give a value or leave the field out"
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str, float)):
            yield path, f"is {value!r}", "a number or a text is wanted"
        elif isinstance(value, str):
            yield from bounds(value, {k: v for k, v in schema.items() if k == "pattern"}, path)
        return
    wanted = schema.get("type")
    if wanted and not of_type(value, wanted):
        yield path, f"is {value!r}", f"{MISTYPED} {wanted} is wanted"
        return
    yield from bounds(value, schema, path)
    if isinstance(value, dict):
        yield from fields(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from check(item, schema["items"], f"{path}[{number}]")


def of_type(value: Any, wanted: str) -> bool:
    """Whether a value has a schema's type; true is no number."""
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, TYPES.get(wanted, (object,)))


def fields(value: dict[Any, Any], schema: Mapping[str, Any], path: str) -> Found:
    """Required and unknown fields of an object, and what is inside the known ones."""
    known = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            yield path, f"`{name}` is missing", f"add `{name}`"
    more = schema.get("additionalProperties")
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or (not known and more is None)
    for name, item in value.items():
        inside = f"{path}.{name}" if path else str(name)
        if name in known:
            yield from check(item, known[name], inside)
        elif isinstance(more, dict):
            yield from check(item, more, inside)
        elif not open_ended and more is not True:
            hint = did_you_mean(str(name), known).strip()
            some = f"known here: {', '.join(list(known)[:12])}" if known else "remove it"
            yield inside, "is not a field of this object", hint or some


def bounds(value: Any, schema: Mapping[str, Any], path: str) -> Found:
    """Enumerations, patterns and limits."""
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(str(item) for item in schema["enum"])
        hint = did_you_mean(str(value), [str(item) for item in schema["enum"]])
        yield path, f"is {value!r}", f"one of {allowed}.{hint}"
    if isinstance(value, str):
        pattern = schema.get("pattern")
        if pattern and not matches(pattern, value):
            yield path, f"is {value!r}", f"it must match {pattern}"
        yield from size(len(value), schema, "Length", path, "characters")
    elif isinstance(value, list):
        yield from size(len(value), schema, "Items", path, "items")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and value < low:
            yield path, f"is {value}", f"at least {low}"
        if high is not None and value > high:
            yield path, f"is {value}", f"at most {high}"


def size(length: int, schema: Mapping[str, Any], what: str, path: str, unit: str) -> Found:
    """Lower and upper limits of a length."""
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    if low is not None and length < low:
        yield path, f"has {length} {unit}", f"at least {low}"
    if high is not None and length > high:
        yield path, f"has {length} {unit}", f"at most {high}"


def matches(pattern: str, value: str) -> bool:
    """Whether a Go pattern matches; one that Python cannot read is not checked."""
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True

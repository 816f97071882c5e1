"""Whether a tool call's arguments fit the schema that the client gave: as far as no program could
take them. Names that must be there, plain types and fixed values are looked at, at any depth; what
else a schema can say is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPTH = 8
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,), "null": (type(None),),
}  # fmt: skip


def misfit(value: Any, schema: Any, name: str = "arguments", depth: int = DEPTH) -> str | None:
    """What does not fit, None where nothing is seen."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    kinds = schema.get("type")
    named = kinds if isinstance(kinds, list) else [kinds]
    known = [kind for kind in named if isinstance(kind, str) and kind in TYPES]
    if value is None and schema.get("nullable") is True:  # of OpenAPI
        return None
    if known and not any(is_of(value, kind) for kind in known):
        return f"{name} of another type than {' or '.join(known)}"
    choices = schema.get("enum")
    if isinstance(choices, list) and value not in choices:
        return f"{name} with a value that is not offered"
    if isinstance(value, list):
        rows = (misfit(one, schema.get("items"), name, depth - 1) for one in value)
        return next(filter(None, rows), None)
    if not isinstance(value, dict):
        return None
    required = schema.get("required")
    for key in required if isinstance(required, list) else ():
        if isinstance(key, str) and key not in value:
            return f"{name} without '{key}'"
    properties = schema.get("properties")
    parts = properties if isinstance(properties, Mapping) else {}
    found = (misfit(value[key], parts[key], f"'{key}'", depth - 1) for key in parts if key in value)
    return next(filter(None, found), None)


def is_of(value: Any, kind: str) -> bool:
    """Whether a JSON value has a type. 5.0 is an integer, true is no number."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[kind])

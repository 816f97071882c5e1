"""A document's class as JSON Schema, draft 2020-12."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from joymigrate.schema.fields import (
    POWER,
    SchemaField,
    choices_of,
    fields_of,
    is_mapping,
    is_record,
    is_sequence,
    options_of,
    rest_of,
)
from joymigrate.schema.registry import DocumentKind, find

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def json_schema(document: DocumentKind) -> dict[str, Any]:
    """The schema of one document. Classes inside it stand under `$defs`."""
    definitions: dict[str, Any] = {}
    top = dict(record(document.kind, definitions) if document.kind else document.shape)
    if getattr(document.kind, "ITEMS", False):
        return frame_schema(document, {"type": "array", "items": top}, definitions)
    key = {"const": document.schema, "description": "the kind of this document and its version"}
    top["properties"] = {"schema": key, **top["properties"]}
    if document.output or getattr(document.kind, "VERSIONED", False):
        top["required"] = ["schema", *top.get("required", [])]
    return frame_schema(document, top, definitions)


def frame_schema(
    document: DocumentKind, top: dict[str, Any], definitions: dict[str, Any]
) -> dict[str, Any]:
    """A schema with what every schema says of itself."""
    schema = {
        "$schema": DIALECT,
        "$id": f"urn:joymigrate:{document.name}:{document.version}",
        "title": document.schema,
        **top,
        "description": document.about,
    }
    return {**schema, "$defs": dict(sorted(definitions.items()))} if definitions else schema


def record(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A class with fields."""
    rest = rest_of(kind)
    known = {key: item for key, item in fields_of(kind).items() if item is not rest}
    schema: dict[str, Any] = {"type": "object"}
    about = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    if about and not about.startswith(f"{kind.__name__}("):
        schema["description"] = about
    schema["properties"] = {key: field(item, definitions) for key, item in known.items()}
    required = [key for key, item in known.items() if item.required]
    if required:
        schema["required"] = required
    if rest is not None:
        inner = typing.get_args(rest.hint)
        others = describe_hint(inner[1], rest.meta, definitions) if inner else {}
        schema["additionalProperties"] = others or True
    elif not getattr(kind, "OPEN", False):
        schema["additionalProperties"] = False
    return schema


def field(item: SchemaField, definitions: dict[str, Any]) -> dict[str, Any]:
    """One key of a class."""
    if item.meta.get("part"):
        schema = {"type": "object"} | json_schema(find(item.meta["part"]))
        schema.pop("$schema")
    else:
        schema = describe_hint(item.hint, item.meta, definitions)
    if item.default is not dataclasses.MISSING:
        schema = with_null(schema)
    if item.meta.get("help"):
        schema = {**schema, "description": item.meta["help"]}
    if isinstance(item.default, str | int | float | list) and item.default != "":
        schema["default"] = item.default
    if item.meta.get("example") is not None:
        schema["examples"] = [item.meta["example"]]
    return schema


def with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that also takes null: a key without a value says nothing."""
    kind = schema.get("type")
    if schema == {} or kind == "null" or "null" in (kind if isinstance(kind, list) else ()):
        return schema
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    if set(schema) == {"anyOf"}:
        if {"type": "null"} in schema["anyOf"]:
            return schema
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


def describe_hint(
    hint: Any, meta: Mapping[str, Any], definitions: dict[str, Any]
) -> dict[str, Any]:
    """What an annotation allows."""
    options = options_of(hint)
    if len(options) > 1:
        schemas = [describe_hint(option, meta, definitions) for option in options]
        simple = all(set(item) == {"type"} and isinstance(item["type"], str) for item in schemas)
        return {"type": [item["type"] for item in schemas]} if simple else {"anyOf": schemas}
    if hint is Any:
        return {}
    if is_record(hint):
        return reference(hint, definitions)
    inner = typing.get_args(hint)
    if is_mapping(hint):
        values = describe_hint(inner[1], meta, definitions) if inner else {}
        schema: dict[str, Any] = {"type": "object"}
        if inner and inner[0] is int:
            schema["propertyNames"] = {"pattern": "^-?[0-9]+$"}
        return {**schema, "additionalProperties": values} if values else schema
    if is_sequence(hint):
        items = describe_hint(inner[0], meta, definitions) if inner else {}
        schema = {"type": "array", "items": items} if items else {"type": "array"}
        return {"anyOf": [items, schema]} if meta.get("single") else schema
    return scalar(hint, meta)


def reference(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A class by its name under `$defs`; one with a short form takes that as well."""
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # a class may hold itself
        definitions[name] = record(kind, definitions)
    link = {"$ref": f"#/$defs/{name}"}
    short = getattr(kind, "SHORT", None)
    if short is None:
        return link
    item = fields_of(kind)[short]
    return {"anyOf": [describe_hint(item.hint, item.meta, definitions), link]}


def scalar(hint: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    """A number, a text, a truth value, or one of some values."""
    choices = choices_of(hint, meta)
    if choices and (hint is str or isinstance(hint, enum.EnumMeta) or typing.get_args(hint)):
        return {"enum": list(choices)}
    schema: dict[str, Any] = {"type": TYPES[hint]}
    if hint is str and meta.get("words"):
        schema["type"] = ["string", "number"]
    if hint is str and meta.get("pattern"):
        schema["pattern"] = f"^(?:{meta['pattern']})$"
    if hint is float and meta.get("powers"):
        power = {"type": "string", "pattern": f"^(?:{POWER.pattern})$"}
        return {"anyOf": [scalar(hint, {**meta, "powers": False}), power]}
    if hint in (int, float):
        limits = {"least": "minimum", "most": "maximum", "above": "exclusiveMinimum"}
        schema |= {word: meta[key] for key, word in limits.items() if meta.get(key) is not None}
    return schema

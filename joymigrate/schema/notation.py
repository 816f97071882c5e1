"""The short form of an output's keys, in the `documents.yaml` of the package that writes them.

    scan:
      about: What `scan --format json` found.
      keys:
        to: text                             # text, whole, number, flag, any
        findings: [{path: text, cell?: whole|null}]
        by_rule: {'*': whole}                # names that only the run knows
        verdict: =pass|=fail; what was found # one of two texts; its meaning
        first~: {module: text}               # may be null

`?` behind a key: it may be absent. `~`: its value may be null. `[]` and `any` say nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema.source import read_yaml

FILE = "documents.yaml"
TYPES = {
    "text": "string", "whole": "integer", "number": "number", "flag": "boolean", "null": "null",
}  # fmt: skip


def outputs(path: Path) -> dict[str, dict[str, Any]]:
    """The documents of one `documents.yaml` by name: `about` and the schema of their `keys`."""
    known = {}
    for name, item in read_yaml(path).items():
        if set(item) - {"version"} != {"about", "keys"}:
            raise JoyError(f"'{name}' needs about and keys", where=str(path))
        shape = schema(item["keys"], f"{path} {name}")
        known[name] = {"about": item["about"], "shape": shape, "version": item.get("version", 1)}
    return known


def schema(form: Any, where: str) -> dict[str, Any]:
    """JSON Schema of one value in the short form."""
    if isinstance(form, list):
        return {"type": "array", "items": schema(form[0], where)} if form else {"type": "array"}
    if not isinstance(form, Mapping):
        return words(str(form), where)
    if "*" in form:
        return {"type": "object", "additionalProperties": schema(form["*"], where)}
    properties: dict[str, Any] = {}
    required = []
    for text, value in form.items():
        key = str(text).rstrip("?~")
        marks = str(text)[len(key) :]
        inner = schema(value, f"{where}.{key}")
        properties[key] = {"anyOf": [inner, {"type": "null"}]} if "~" in marks else inner
        if "?" not in marks:
            required.append(key)
    return {"type": "object", "properties": properties, "required": required}


def words(text: str, where: str) -> dict[str, Any]:
    """`text|null`, `=pass|=fail`, with a meaning behind `;`."""
    form, _, meaning = text.partition(";")
    names = [name.strip() for name in form.split("|")]
    about = {"description": meaning.strip()} if meaning else {}
    if names == ["any"]:
        return about
    if all(name.startswith("=") or name == "null" for name in names):
        return {"enum": [None if name == "null" else name[1:] for name in names], **about}
    for name in names:
        if name not in TYPES:
            raise JoyError(f"no type is called '{name}'.{did_you_mean(name, TYPES)}", where=where)
    kinds = [TYPES[name] for name in names]
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **about}

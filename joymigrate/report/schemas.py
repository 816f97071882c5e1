"""The documents as a list and as a page with a table of keys for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joymigrate.schema import DocumentKind, json_schema

HEAD = """\
# Documents

Every file that joymigrate reads, and every JSON document that it writes, has a JSON Schema
(draft 2020-12). `joymigrate schema` lists them, `joymigrate schema NAME` prints one,
`joymigrate schema NAME --check FILE` names every mistake in a file.

An editor that knows the schema completes keys and marks mistakes. With the YAML extension of
VS Code, run `joymigrate schema job -o job.schema.json` and write this line at the top of the file:

```yaml
# yaml-language-server: $schema=job.schema.json
```

An unknown key in a file that joymigrate reads is an error with the nearest name, the file and the
line. The keys of a document that joymigrate writes stay; others may be added.
"""


def listing(documents: Sequence[DocumentKind]) -> str:
    """One line per document: name, read or written, what it is."""
    width = max(len(item.name) for item in documents)
    return "".join(
        f"{item.name:<{width}}  {'out' if item.output else 'in ':<3}  {item.about}\n"
        for item in documents
    )


def page(documents: Sequence[DocumentKind]) -> str:
    """The page: what is read first, then what is written."""
    parts = [HEAD]
    for title, output in (("What joymigrate reads", False), ("What joymigrate writes", True)):
        chosen = [item for item in documents if item.output is output]
        if chosen:
            parts.append(f"\n## {title}\n")
            parts += [section(item) for item in chosen]
    return "".join(parts)


def section(document: DocumentKind) -> str:
    """One document with its keys."""
    schema = json_schema(document)
    lines = ["", f"### {document.name}", "", f"`{document.schema}`. {document.about}", ""]
    rows = list(keys(schema, schema.get("$defs", {}), ""))
    if rows:
        lines += ["| key | value | meaning |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def keys(
    schema: Mapping[str, Any], known: Mapping[str, Any], above: str, inside: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, str]]:
    """A row for every key: its path, what it takes, what it means."""
    required = schema.get("required", ())
    for key, item in schema.get("properties", {}).items():
        if key == "schema" and not above:
            continue
        path = f"{above}{key}"
        mark = "" if key in required else "?"
        meaning = item.get("description", "")
        if "default" in item:
            meaning = f"{meaning} (default: `{json.dumps(item['default'])}`)".strip()
        yield f"`{path}`{mark}", words(item), meaning.replace("|", "\\|")
        yield from below(item, known, path, inside)
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping) and not schema.get("properties"):
        yield from below(others, known, f"{above}NAME", inside)


def below(
    item: Mapping[str, Any], known: Mapping[str, Any], path: str, inside: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """The keys inside one value; a class inside itself is not opened again."""
    for option in (item, *item.get("anyOf", ())):
        if "$ref" in option:
            name = option["$ref"].rpartition("/")[2]
            if name not in inside:
                yield from keys(known[name], known, f"{path}.", (*inside, name))
        elif isinstance(option.get("items"), Mapping):
            yield from below(option["items"], known, f"{path}[]", inside)
        elif isinstance(option.get("additionalProperties"), Mapping):
            yield from below(option["additionalProperties"], known, f"{path}.NAME", inside)


def words(item: Mapping[str, Any]) -> str:
    """What a value may be, in a few words."""
    if "enum" in item:
        return ", ".join(f"`{value}`" for value in item["enum"])
    if "anyOf" in item:
        parts = [words(option) for option in item["anyOf"]]
        return " or ".join(dict.fromkeys(part for part in parts if part != "null"))
    if "$ref" in item:
        return "object"
    kinds = item.get("type", "anything")
    names = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    text = " or ".join(names)
    if "items" in item and text == "array":
        text = f"array of {words(item['items'])}"
    limits = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
    bounds = [f"{word} {item[key]:g}" for key, word in limits.items() if key in item]
    return " ".join([text, *bounds])

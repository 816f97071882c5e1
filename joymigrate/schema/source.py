"""A document's text: parsed once from YAML, JSON or TOML, with the line of every key."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Keys = Sequence[str | int]


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Where a document came from. `text` finds lines; `form` is yaml (JSON too) or toml."""

    name: str = ""
    text: str = ""
    form: str = "yaml"
    under: tuple[str, ...] = ()  # keys above the document in its file: ("tool", "joymigrate")

    def at(self, keys: Keys) -> str | None:
        """`FILE:LINE a.b[2]`, as much of it as is known; None where nothing is."""
        line = self.line(keys)
        place = f"{self.name}:{line}" if line and self.name else self.name
        return " ".join(part for part in (place, spell_path(keys)) if part) or None

    def line(self, keys: Keys) -> int | None:
        """The line of the nearest key on the way to `keys`, from 1; None where it is not known."""
        if not self.text:
            return None
        whole = (*self.under, *keys)
        return toml_line(self.text, whole) if self.form == "toml" else yaml_line(self.text, whole)


def spell_path(keys: Keys) -> str:
    """The keys as a reader writes them: `nodes[3].cards`."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def yaml_line(text: str, keys: Keys) -> int | None:
    """The line of a key in YAML or JSON text."""
    try:
        node = yaml.compose(text, Loader=loader())
    except yaml.YAMLError:
        return None
    line: int | None = None
    for key in keys:
        below = None
        if isinstance(node, yaml.MappingNode):
            below = next((pair for pair in node.value if pair[0].value == str(key)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            below = (node.value[key], node.value[key]) if key < len(node.value) else None
        if below is None:
            break
        line, node = below[0].start_mark.line + 1, below[1]
    return line


def toml_line(text: str, keys: Keys) -> int | None:
    """The line of a key in TOML text: the table's header, then the key below it."""
    header: tuple[str, ...] = ()
    best: tuple[int, int] | None = None  # how many keys agree, the line
    wanted = tuple(str(key) for key in keys if isinstance(key, str))
    for number, line in enumerate(text.splitlines(), start=1):
        table = re.match(r"\s*\[+([^\]]+)\]+", line)
        entry = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if table:
            header = names_of(table[1])
        if not table and not entry:
            continue
        here = header if table else (*header, *names_of(entry[1] if entry else ""))
        if here == wanted[: len(here)] and (best is None or len(here) > best[0]):
            best = (len(here), number)
    return best[1] if best else None


def names_of(text: str) -> tuple[str, ...]:
    """The parts of a dotted TOML key."""
    return tuple(part.strip().strip("\"'") for part in text.split("."))


@functools.cache
def loader() -> type[Any]:
    """A safe loader that leaves dates as text, so that data is plain and goes to JSON.

    A key that stands twice in one mapping is an error: YAML would silently take the last one.
    """
    # The C loader is ten times faster; every wheel of PyYAML has it.
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
        for first, known in base.yaml_implicit_resolvers.items()
    }
    made = type("PlainLoader", (base,), {"yaml_implicit_resolvers": resolvers})
    made.add_constructor("tag:yaml.org,2002:map", mapping)  # type: ignore[attr-defined]
    return made


def mapping(self: Any, node: yaml.MappingNode) -> Any:
    """A mapping whose keys differ. A generator, as PyYAML's own: anchors may refer to it."""
    data: dict[Any, Any] = {}
    yield data
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key.value}' stands twice", key.start_mark
                )
            seen.add(key.value)
    data.update(self.construct_mapping(node))


def parse_yaml(text: str | bytes, name: str) -> Any:
    """YAML or JSON text as plain data; a syntax error names the line and the column."""
    try:
        return yaml.load(text, Loader=loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise JoyError(
            f"not valid YAML: {getattr(error, 'problem', error)}",
            where=f"{name}{line}",
            help="correct the file",
        ) from error


def parse_json(text: str, name: str) -> Any:
    """JSON text as plain data; a syntax error names the line and the column."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise JoyError(
            f"not valid JSON: {error.msg}",
            where=f"{name}:{error.lineno}:{error.colno}",
            help="correct the file",
        ) from error


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """TOML text as plain data; a syntax error names the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JoyError(f"not valid TOML: {error}", where=name, help="correct the file") from None


def read_yaml(path: Path) -> Any:
    """Parse one YAML file; a syntax error names the file and the line."""
    return parse_yaml(path.read_bytes(), str(path))


def load_file(
    path: Path, what: str = "document", help: str | None = None
) -> tuple[Any, DocumentSource]:
    """The data of a YAML, JSON or TOML file with its source.

    Raises `JoyError` for a file that can't be read or parsed; `what` is named in it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JoyError(
            f"cannot read the {what}: {reason}",
            where=str(path),
            help=help or "name an existing file",
        ) from error
    if path.suffix == ".toml":
        return parse_toml(text, str(path)), DocumentSource(str(path), text, "toml")
    parse = parse_json if text.lstrip().startswith(("{", "[")) and path.suffix == ".json" else None
    return (parse or parse_yaml)(text, str(path)), DocumentSource(str(path), text)

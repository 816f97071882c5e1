"""One validator, and JSON Schema, for every document that goes in or out.

What is read is a frozen dataclass marked with `@document`, beside the code that owns it; what is
written stands in the `documents.yaml` of the package that writes it. `read_file` reads a document,
with one clear error per mistake; `json_schema` describes it for editors and tests; `names` and
`find` know all of them, by looking through the package.
"""

from joymigrate.schema.describe import json_schema
from joymigrate.schema.fields import setting
from joymigrate.schema.read import mistakes, read, read_file, read_items
from joymigrate.schema.registry import DocumentKind, document, find, names
from joymigrate.schema.source import (
    DocumentSource,
    load_file,
    parse_json,
    parse_toml,
    parse_yaml,
    read_yaml,
)

__all__ = [
    "DocumentKind",
    "DocumentSource",
    "document",
    "find",
    "json_schema",
    "load_file",
    "mistakes",
    "names",
    "parse_json",
    "parse_toml",
    "parse_yaml",
    "read",
    "read_file",
    "read_items",
    "read_yaml",
    "setting",
]

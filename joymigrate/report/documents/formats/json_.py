"""JSON that names its schema; asked last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import read_json


def matches(path: Path, head: bytes) -> bool:
    """Whatever no other kind took."""
    return True


def read(path: Path) -> dict[str, Any]:
    """The document."""
    document = read_json(path, help="name a JSON result")
    if not isinstance(document, dict):
        raise JoyError("not a document", where=str(path), help="name a file with a `schema`")
    return document

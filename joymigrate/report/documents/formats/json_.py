"""JSON that names its schema; asked last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError


def matches(path: Path, head: bytes) -> bool:
    """Whatever no other kind took."""
    return True


def read(path: Path) -> dict[str, Any]:
    """The document."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise JoyError(
            f"cannot read: {error.strerror}", where=str(path), help="name a document's file"
        ) from None
    except ValueError as error:
        raise JoyError(f"not JSON: {error}", where=str(path), help="name a JSON result") from None
    if not isinstance(document, dict):
        raise JoyError("not a document", where=str(path), help="name a file with a `schema`")
    return document

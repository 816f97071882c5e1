"""YAML that names its schema: a job, a chip, a tolerance, an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError


def matches(path: Path, head: bytes) -> bool:
    """By its name."""
    return path.suffix in (".yaml", ".yml")


def read(path: Path) -> dict[str, Any]:
    """The document. Dates and the like are shown as they were written."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise JoyError("not YAML: " + str(error).splitlines()[0], where=str(path)) from None
    if not isinstance(document, dict):
        raise JoyError("not a document", where=str(path), help="name a file with a `schema`")
    return document

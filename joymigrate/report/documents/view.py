"""What is known about a kind of document: its title, what it says, and what to show first."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError, did_you_mean

FOLDER = Path(__file__).parent / "views"
# Keys that serve programs: the document's name, and the templates of its sentences.
ALWAYS_HIDDEN = ("schema", "texts")


@dataclass(frozen=True, slots=True)
class DocumentView:
    """One kind of document. `first` names the fields of its summary, `hide` what no page shows."""

    schema: str
    title: str
    what: str
    first: tuple[str, ...] = ()
    hide: tuple[str, ...] = ALWAYS_HIDDEN


@functools.cache
def views() -> Mapping[str, DocumentView]:
    """Every kind of document by its schema, as the folder `views` holds them."""
    found = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        schema = f"joymigrate.{path.stem}/1"
        hide = (*ALWAYS_HIDDEN, *data.get("hide", ()))
        found[schema] = DocumentView(
            schema, data["title"], data["what"], tuple(data.get("first", ())), hide
        )
    return found


def view_of(schema: object, where: str) -> DocumentView:
    """The view of a schema. Raises `JoyError` for one that nobody wrote down."""
    known = views()
    if isinstance(schema, str) and schema in known:
        return known[schema]
    raise JoyError(
        f"no report for the schema {schema!r}.{did_you_mean(str(schema), known)}"
        if schema is not None
        else "the document names no schema",
        where=where,
        help="a document of joymigrate names its schema: joymigrate.scan/1, joymigrate.verdict/1 …",
    )

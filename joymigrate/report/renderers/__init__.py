"""One renderer per format; each shows any document of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joymigrate.report.blocks import BlockDocument
from joymigrate.report.renderers import html, md, text

RENDERERS: Mapping[str, Callable[[BlockDocument], str]] = {
    "html": html.render,
    "md": md.render,
    "text": text.render,
}


def render(document: BlockDocument, form: str, most: int | None = None) -> str:
    """The document in one of the formats of `RENDERERS`, in the language that is spoken.

    Markdown of more than `most` characters is cut: it is a comment somewhere.
    """
    if form == "md":
        return md.render(document, most)
    return RENDERERS[form](document)

"""An opened document as text, Markdown or a page."""

from __future__ import annotations

from joymigrate.report.blocks import BlockDocument
from joymigrate.report.documents.chapters import chapters
from joymigrate.report.documents.document_files import Opened
from joymigrate.report.renderers import FORMATS, render

__all__ = ["FORMATS", "show"]


def show(opened: Opened, format: str) -> str:
    """The document in one of `FORMATS`."""
    view = opened.view
    return render(
        BlockDocument(
            title=view.title,
            subtitle=view.what,
            chapters=chapters(opened.document, view),
            footer=f"{opened.path.name} · {view.schema}",
        ),
        format,
    )

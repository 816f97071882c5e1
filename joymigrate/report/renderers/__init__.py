"""One renderer per format; each shows any document of blocks.

A renderer is one file of this folder, named by its format, with `render(document)`. It is found by
its folder and imported when it is asked for; files with a leading underscore are parts of others.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joymigrate.report.blocks import BlockDocument

FORMATS = tuple(
    sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem[0] != "_")
)
# What a terminal shows is each command's own text: these formats all commands draw alike.
DRAWN = tuple(form for form in FORMATS if form != "text")


def render(document: BlockDocument, form: str, most: int | None = None) -> str:
    """The document in one of `FORMATS`, in the language that is spoken.

    Markdown of more than `most` characters is cut: it is a comment somewhere.
    """
    cut = () if most is None or form != "md" else (most,)
    made: str = importlib.import_module(f"{__name__}.{form}").render(document, *cut)
    return made

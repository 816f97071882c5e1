"""`scan --why FILE:LINE`: what decided about a place, told line by line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import JoyError
from joymigrate.language import Language

if TYPE_CHECKING:
    from joymigrate.model import Scan


def explain_place(scan: Scan, place: str, lang: str) -> str:
    """The explanations of all findings in a line. Raises `JoyError` where there is none."""
    from joymigrate.rewrite import explain, patch
    from joymigrate.rewrite.project import graph_of

    path, line = split_place(scan, place)
    words = patch.vocabulary_of(scan)
    data = {name: (scan.root / name).read_bytes() for name in scan.digests if patch.is_python(name)}
    texts = {name: content.decode("utf-8", "replace") for name, content in data.items()}
    graph = graph_of(scan.root, texts, words, data.__getitem__, scan.skipped)
    found = explain.explain(scan, graph, words, path, line)
    if not found:
        raise JoyError(
            "nothing was found in this line",
            where=f"{path}:{line}",
            help="name a line that `joymigrate scan` lists",
        )
    say = Language(lang)
    return "\n".join(text for each in found for text in explain.render(each, say)) + "\n"


def split_place(scan: Scan, place: str) -> tuple[str, int]:
    """A file of the scan, by its path from the scan's root, and a line of it."""
    name, _, number = place.rpartition(":")
    if not name or not number.isdigit():
        raise JoyError(f"--why {place}: no place", help="--why FILE:LINE, for example main.py:12")
    file = Path(name)
    inside = file.resolve().is_relative_to(scan.root) and file.exists()
    path = file.resolve().relative_to(scan.root).as_posix() if inside else file.as_posix()
    if path not in scan.digests:
        raise JoyError("the scan has no such file", where=name, help="name a file below PATH")
    return path, int(number)

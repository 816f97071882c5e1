"""Names as a user knows them: `layers.2.mlp`; the model's own only where there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Display:
    """Turns `root:path` of a bundle into a qualified name."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        roots: Sequence[Mapping[str, Any]] = program.get("roots", [])
        models = [r["name"] for r in roots if r["parameters"]]
        self.main = models[0] if len(models) == 1 else None

    def __call__(self, place: str) -> str:
        """The name of one place."""
        root, _, path = place.partition(":")
        if not path:
            return root
        return path if root == self.main else f"{root}.{path}"


def split(place: str) -> tuple[str, str]:
    """Root and path of a place."""
    root, _, path = place.partition(":")
    return root, path

"""Which files start programs: the ones that get the vendor's shim in the shim style."""

from __future__ import annotations

import re
from collections.abc import Mapping

from joymigrate.rewrite.module_index import ModuleIndex

GUARD = re.compile(r"^if\s+__name__\s*==\s*['\"]__main__['\"]\s*:", re.M)
IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+([\w, ]+)|import\s+([\w., ]+))", re.M)
STATEMENT = re.compile(r"^(?:[A-Za-z_][\w.]*\s*\(|for |while |with )", re.M)


def entries(texts: Mapping[str, str], tree: ModuleIndex) -> frozenset[str]:
    """Paths of files that are started: with a `__main__` guard, or loose scripts nobody imports.

    `texts` maps the path of every Python file to its text. Only files that import torch count.
    """
    imported = set()
    for path, text in texts.items():
        for base, names, plain in IMPORT.findall(text):
            dotted = [part.split(" as ")[0].strip() for part in plain.split(",")] if plain else []
            dotted += [f"{base}.{name.strip()}" for name in names.split(",")] if base else []
            found = (tree.locate(path, name) for name in dotted)
            imported |= {each[0] for each in found if each is not None}
    return frozenset(
        path
        for path, text in texts.items()
        if re.search(r"^\s*(?:import|from) torch\b", text, re.M)
        and (
            GUARD.search(text)
            or (path not in imported and not tree.package(path) and STATEMENT.search(text))
        )
    )

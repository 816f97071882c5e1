"""Folders of a project that are installed as a distribution, and the packages that each lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

FILES = ("setup.py", "setup.cfg", "pyproject.toml")
# Sections of settings that say how packages are built; a file with others only sets up tools.
BUILDS = re.compile(r"^\[(?:build-system|project|tool\.poetry|options|metadata)\]", re.M)
LISTED = re.compile(r"^\s*packages\s*=\s*\[([^\]]*)\]", re.M)


def find_built(root: Path, folders: Iterable[str]) -> dict[str, str]:
    """Those of some folders below `root` that are built, each with the packages that its files
    list one by one; an empty text for all of them."""
    found: dict[str, str] = {}
    for folder in folders:
        for name in FILES:
            try:
                text = (root / folder / name).read_text("utf-8", "replace")
            except OSError:
                continue
            if name == "setup.py" or BUILDS.search(text):
                listed = LISTED.search(text)
                found[folder] = listed[1] if listed else found.get(folder, "")
    return found

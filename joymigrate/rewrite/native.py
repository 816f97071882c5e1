"""Projects that serve the target by themselves: they are told to, not rewritten.

The chip's `native.yaml` lists them with the release that began it and the switch to use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from packaging.version import InvalidVersion, Version

from joymigrate.chips import Chip
from joymigrate.language import Text
from joymigrate.model import Finding

VERSION = re.compile(r"^\s*(?:__version__|version)\s*=\s*[\"']([^\"']+)", re.M)
WHY = "{package} serves {chip} by itself since {since}: {switch}"


def leave(findings: Iterable[Finding], chip: Chip, root: Path) -> list[Finding]:
    """The findings, those inside packages that serve the chip by themselves as reports."""
    found = list(findings)
    for item in chip.data("native.yaml") or ():
        for folder in (str(item["package"]), f"src/{item['package']}"):
            if not (root / folder / "__init__.py").is_file():
                continue
            version = version_of(root, folder)
            if version is None or version < Version(str(item["since"])):
                continue
            why = Text(
                WHY,
                package=item["package"],
                chip=chip.name,
                since=item["since"],
                switch=item["switch"],
            )
            folders = (folder, *item.get("folders", ()))
            found = [
                each.leave(why) if any(inside(each, one) for one in folders) else each
                for each in found
            ]
    return found


def runs_unchanged(package: str, chip: Chip) -> bool:
    """Whether programs that use a package need nothing beside it: it finds the chip by itself."""
    rows = chip.data("native.yaml") or ()
    return any(row["package"] == package and row.get("unchanged") for row in rows)


def inside(finding: Finding, folder: str) -> bool:
    """Whether a finding with edits lies below a folder."""
    return finding.path.startswith(f"{folder}/") and bool(finding.edits)


def version_of(root: Path, folder: str) -> Version | None:
    """The release that a package says it is, None where it does not say it as text."""
    places = (f"{folder}/__init__.py", f"{folder}/version.py", "pyproject.toml", "setup.py")
    for name in (*places, "version.txt"):
        try:
            text = (root / name).read_text(encoding="utf-8", errors="replace")
            match = VERSION.search(text)
            if match or name == "version.txt":
                return Version(match[1] if match else text.strip())
        except (OSError, InvalidVersion):
            continue
    return None

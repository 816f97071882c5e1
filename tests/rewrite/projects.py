"""Small projects in a folder, scanned and rewritten, for the tests of this package."""

from __future__ import annotations

from pathlib import Path

from joymigrate import chips
from joymigrate.model import Finding, Scan, Style
from joymigrate.rewrite import device_tests, patches, scan


def write(root: Path, files: dict[str, str]) -> Path:
    """Create the files of a project."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    return root


def look(root: Path, style: Style = Style.DIRECT, to: str | None = None, **more: object) -> Scan:
    """A scan of the project for a move to `to` (default: the default target)."""
    return scan([root], chip=chips.target(to), origin=chips.origin(), style=style, **more)  # type: ignore[arg-type]


def move(
    root: Path,
    style: Style = Style.DIRECT,
    to: str | None = None,
    origin: str | None = None,
    unsafe: bool = False,
) -> Scan:
    """Rewrite the project in place and return the scan that it came from."""
    start = chips.get(origin) if origin else chips.origin()
    found = scan([root], chip=chips.target(to), origin=start, style=style)
    for patch in patches(device_tests.include(found), unsafe=unsafe):
        assert patch.after is not None
        patch.path.write_bytes(patch.after)
    return found


def rewritten(root: Path, text: str, style: Style = Style.DIRECT, unsafe: bool = False) -> str:
    """One file's text after a rewrite to the default target."""
    write(root, {"sample.py": text})
    move(root, style, unsafe=unsafe)
    return (root / "sample.py").read_text()


def findings(root: Path, text: str, rule: str | None = None) -> list[Finding]:
    """Findings of one file, of one rule or of all."""
    write(root, {"sample.py": text})
    return [f for f in look(root).findings if rule is None or f.rule == rule]

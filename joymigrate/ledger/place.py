"""Where a project's ledger lies, and its folder `.joymigrate/`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from joymigrate.errors import JoyError

FOLDER = ".joymigrate"
MARKERS = (FOLDER, "joymigrate.toml", "pyproject.toml", ".git")


def project_root(path: Path) -> Path:
    """The nearest folder at or above `path` with one of `MARKERS`; else `path` (or its folder)."""
    path = path.resolve()
    start = path if path.is_dir() else path.parent
    for folder in (start, *start.parents):
        if any((folder / marker).exists() for marker in MARKERS):
            return folder
    return start


def home_of(root: Path) -> Path:
    """`.joymigrate/` of a project; it need not exist."""
    return root / FOLDER


def make_home(root: Path) -> Path:
    """Create `.joymigrate/`, invisible to git, and return it."""
    home = home_of(root)
    try:
        home.mkdir(exist_ok=True)
        (home / "steps").mkdir(exist_ok=True)
        ignore = home / ".gitignore"
        if not ignore.is_file():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise unwritable(home, error) from None
    return home


def remove_empty_home(root: Path) -> None:
    """Remove a `.joymigrate/` that holds nothing: with it a folder would count as a project."""
    home = home_of(root)
    ignore = home / ".gitignore"
    with suppress(OSError):
        (home / "steps").rmdir()
        if list(home.iterdir()) == [ignore]:
            ignore.unlink()
            home.rmdir()


def unwritable(path: Path, error: OSError) -> JoyError:
    """The one error for a tree that cannot be written."""
    return JoyError(
        f"cannot write: {error.strerror or error}",
        where=str(path),
        help="make the tree writable; a rewritten copy of it needs no such place: "
        "joymigrate rewrite -o DIR",
    )

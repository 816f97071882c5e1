"""Where the data lie: the rules folder, and the folder of every chip, built in or brought along."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from joymigrate.errors import JoyError

ENTRY_POINT_GROUP = "joymigrate.chips"


def rules_root() -> Path:
    """The `rules` folder: inside the installed package, else beside it in a checkout."""
    package = Path(__file__).parent
    packaged = package / "_rules"
    if packaged.is_dir():
        return packaged
    beside = package.parent / "rules"
    if beside.is_dir():
        return beside
    raise JoyError(
        "the rules of this joymigrate are missing",
        where=str(packaged),
        help="reinstall it: pip install --force-reinstall joymigrate",
    )


def folders() -> Iterator[tuple[Path, str]]:
    """Every chip folder with where it came from: built in ones first, then outside packages."""
    for path in sorted(rules_root().iterdir()):
        if (path / "chip.yaml").is_file():
            yield path, "built in"
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        yield outside(entry)


def outside(entry: metadata.EntryPoint) -> tuple[Path, str]:
    """The folder that an outside package registers. What goes wrong there names the package."""
    package = entry.dist.name if entry.dist else entry.value
    help = f"correct the entry point '{ENTRY_POINT_GROUP}' of {package}, or uninstall it"
    try:
        found = entry.load()
        path = Path(os.fspath(found() if callable(found) else found))
    except Exception as error:
        raise JoyError(
            f"the chip '{entry.name}' of package {package} can't be loaded: "
            f"{type(error).__name__}: {error}",
            where=entry.value,
            help=help,
        ) from error
    if not (path / "chip.yaml").is_file():
        raise JoyError(
            f"the chip '{entry.name}' of package {package} has no chip.yaml",
            where=str(path),
            help=help,
        )
    return path, f"package {package}"

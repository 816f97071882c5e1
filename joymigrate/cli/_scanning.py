"""What `scan` does with one or many projects: the configuration, the scan, how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.cli._output import Progress, one_of
from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.config import Config
    from joymigrate.model import Scan

STYLES = ("direct", "agnostic", "shim")


@dataclass(frozen=True, slots=True)
class View:
    """How the result is shown."""

    format: str
    output: Path | None
    lang: str
    color: str
    statistics: bool = False
    show_kept: bool = False
    verbose: bool = False
    quiet: bool = False


def must_exist(paths: list[Path]) -> None:
    """Every PATH must be there; one error names all that are not."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise JoyError(f"no such file or folder: {', '.join(missing)}", help="check the path")


def configured(start: Path, overrides: dict[str, Any]) -> Config:
    """The configuration that holds for `start`, with its style checked."""
    from joymigrate import config

    settings = config.load(start, overrides)
    one_of(settings["style"], STYLES, "--style")
    return settings


def run(paths: list[Path], origin: str | None, settings: Config, quiet: bool) -> Scan:
    """Scan the paths under a configuration, with progress on a terminal."""
    from joymigrate import chips, rewrite
    from joymigrate.model import Style

    with Progress("scanning", on=not quiet) as progress:
        return rewrite.scan(
            paths,
            chip=chips.target(settings["to"]),
            origin=chips.get(origin) if origin else chips.origin(),
            style=Style(settings["style"]),
            select=settings["select"],
            ignore=settings["ignore"],
            exclude=settings["exclude"],
            follow_imports=settings["follow_imports"],
            jobs=settings["jobs"],
            chip_version=settings["chip_version"],
            on_progress=progress,
        )


def now() -> str:
    """The time for a page's footer."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")

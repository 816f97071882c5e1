"""`[tool.joymigrate]` of pyproject.toml, or joymigrate.toml, with the source of every value.

Precedence: command line > environment > configuration file > default. An unknown key or
table is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.schema import DocumentSource, document, load_file, read, setting

NAME = "joymigrate"
ENVIRONMENT = {"to": "JOYMIGRATE_TO"}
HELP = "name a readable file with --settings"


@document("settings", "`[tool.joymigrate]` of pyproject.toml, or joymigrate.toml.")
@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """Every configuration key with its default."""

    UNDER = ("tool", NAME)

    to: str | None = setting(
        None, "the chip to migrate to (default: the one whose chip.yaml says `default: true`)"
    )
    style: str = setting(
        "direct",
        "direct, accelerator, agnostic or shim",
        choices=("direct", "accelerator", "agnostic", "shim"),
    )
    select: tuple[str, ...] = setting((), "rules to use (ids or prefixes)")
    ignore: tuple[str, ...] = setting((), "rules to leave out (ids or prefixes)")
    exclude: tuple[str, ...] = setting((), "paths to leave out (.gitignore patterns)")
    follow_imports: tuple[str, ...] = setting((), "installed packages to scan with the project")
    codemods: tuple[str, ...] = setting((), "files or folders of the project's own codemods")
    baseline: str | None = setting(None, "file of known findings that are not reported again")
    chip_version: str | None = setting(None, "version of the chip's torch package, as in chip.yaml")
    jobs: int = setting(0, "processes to use; 0 means one per core", least=0)
    lang: str = setting("en", "language of reports: en or zh")
    effort: Mapping[str, float] = setting(
        make=dict, help="minutes per site, by tier or rule, for the effort model", least=0
    )
    gates: Mapping[str, Any] = setting(make=dict, help="limits that stop `migrate`", part="gates")


@dataclass(frozen=True, slots=True)
class Config:
    """Values with where each came from: `default`, a file, `environment` or `command line`."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def folder(self, key: str) -> Path:
        """The folder that paths of a key count from: the configuration file's, or the present."""
        source = Path(self.sources[key])
        return source.parent if source.suffix == ".toml" else Path()


def choose_journey_style(settings: Config) -> str:
    """The style of a journey, and of an agent's tools: the one that was named, else `agnostic`, as
    the original has to run on as it did."""
    chosen: str = settings["style"]
    return "agnostic" if settings.sources["style"] == "default" else chosen


def find_file(start: Path) -> Path | None:
    """The nearest configuration file at or above `start`.

    A pyproject.toml without our table says nothing, and hides none above it.
    """
    start = start if start.is_dir() else start.parent
    for folder in (start, *start.parents):
        own = folder / "joymigrate.toml"
        if own.is_file():
            return own
        project = folder / "pyproject.toml"
        if project.is_file() and tables(project)[0] is not None:
            return project
    return None


def tables(path: Path) -> tuple[Mapping[str, Any] | None, DocumentSource]:
    """The settings of a TOML file, None where it has none, and where they stand.

    A table of another tool is nobody's business, one that is nearly called like ours is a slip.
    """
    raw, source = load_file(path, "settings", HELP)
    tools = raw.get("tool", {})
    for name in tools if NAME not in tools else ():
        if difflib.SequenceMatcher(None, name.lower(), NAME).ratio() > 0.85:
            raise JoyError(
                f"unknown table [tool.{name}]. Did you mean [tool.{NAME}]?",
                where=source.at(("tool", name)),
                help="correct the table's name",
            )
    if path.name != "pyproject.toml" and "tool" not in raw:
        return raw, source
    if path.name == "joymigrate.toml":
        read(Above, raw, source)
    return tools.get(NAME), replace(source, under=ProjectSettings.UNDER)


@dataclass(frozen=True, slots=True)
class Above:
    """What stands above the settings where joymigrate.toml has `[tool.joymigrate]`."""

    tool: Mapping[str, Any] = setting(make=dict)


def load(start: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration that holds for `start`; `overrides` come from the command line."""
    settings, written = ProjectSettings(), set()
    named = os.environ.get("JOYMIGRATE_SETTINGS")
    path = Path(named) if named else find_file(start.resolve())
    if path is not None:
        table, source = tables(path)
        settings, written = read(ProjectSettings, table or {}, source), {*(table or {})}
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    values = {key: list(one) if isinstance(one, tuple) else one for key, one in values.items()}
    sources = {key: str(path) if key in written else "default" for key in values}
    for key, name in ENVIRONMENT.items():
        if os.environ.get(name):
            values[key] = os.environ[name]
            sources[key] = f"environment {name}"
    for key, value in (overrides or {}).items():
        if value is not None and value != [] and value != ():
            values[key] = value
            sources[key] = "command line"
    return Config(values, sources)

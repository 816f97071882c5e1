"""What is installed and missing for each command, and how to get it."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._output import one_of
from joymigrate.errors import Exit

if TYPE_CHECKING:
    from joymigrate.cli._installed import Check, Readiness
    from joymigrate.config import Config

SCHEMA = "joymigrate.doctor/1"
FORMATS = ("text", "json")
MARKS = {"ok": "ok", "missing": "--", "broken": "!!"}
TITLES = {"core": "Core", "chip": "Chip", "program": "Programs", "extra": "Extras"}


def command(
    to: str | None = typer.Option(None, "--to", help="The chip to look for."),
    show_config: bool = typer.Option(
        False, "--show-config", help="Every configuration value and where it comes from."
    ),
    project: Path = typer.Option(
        Path(), "--project", metavar="DIR", help="The folder whose configuration holds."
    ),
    format: str = typer.Option("text", "--format", help="text or json."),
) -> int:
    """Show what is installed and missing for each command, and how to get it. Exits 0 either way.

    With --show-config: the configuration instead.
    """
    from joymigrate import __version__, chips, config

    one_of(format, FORMATS, "--format")
    settings = config.load(project, {"to": to})
    chip = chips.target(settings["to"])
    if show_config:
        show_settings(settings, format)
        return Exit.OK

    from joymigrate.cli import _installed
    from joymigrate.cli._main import command_names

    found = _installed.checks(chip)
    ready = _installed.readiness(command_names(), found, chip)
    machine = {
        "joymigrate": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }
    if format == "json":
        document = {
            "schema": SCHEMA,
            "to": chip.name,
            **machine,
            **_installed.as_json(found, ready),
        }
        print(json.dumps(document, ensure_ascii=False, indent=1))
        return Exit.OK
    print(
        f"joymigrate {machine['joymigrate']}, Python {machine['python']}, "
        f"{machine['platform']}, {machine['cores']} cores"
    )
    for line in [*check_lines(found, chip.title), *command_lines(ready)]:
        print(line)
    return Exit.OK


def check_lines(found: list[Check], chip: str) -> list[str]:
    """The checks by kind."""
    lines = []
    kind = None
    width = max(len(check.name) for check in found)
    for check in found:
        if check.kind != kind:
            kind = check.kind
            lines += ["", f"{TITLES[kind]}: {chip}" if kind == "chip" else TITLES[kind]]
        facts = " ".join(filter(None, (check.version, check.detail)))
        lines.append(f"  {MARKS[check.status]}  {check.name:<{width}}  {facts}".rstrip())
        if check.help:
            lines.append(f"      {'':<{width}}  help: {check.help}")
    return lines


def command_lines(ready: list[Readiness]) -> list[str]:
    """The commands that can run, and what the others lack."""
    able = [item.command for item in ready if item.ready]
    lines = ["", "Commands", f"  ok  {' '.join(able)}"]
    for item in ready:
        if not item.ready:
            lines.append(f"  --  {item.command}")
            lines += [f"      {line}" for line in item.missing]
    return lines


def show_settings(settings: Config, format: str) -> None:
    """Every configuration value with where it came from."""
    if format == "json":
        rows = [
            {"key": key, "value": value, "source": settings.sources[key]}
            for key, value in settings.values.items()
        ]
        print(json.dumps({"schema": SCHEMA, "config": rows}, ensure_ascii=False, indent=1))
        return
    width = max(map(len, settings.values))
    shown = {key: json.dumps(value, ensure_ascii=False) for key, value in settings.values.items()}
    value_width = max(map(len, shown.values()))
    for key, value in shown.items():
        print(f"{key:<{width}}  {value:<{value_width}}  {settings.sources[key]}")

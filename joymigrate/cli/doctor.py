"""What is installed and missing for each command, and how to get it."""

from __future__ import annotations

import json
import platform
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate import processors
from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.cli._output import one_of
from joymigrate.language import columns

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.cli._installation import Check
    from joymigrate.cli._requirements import CommandReadiness, CommandUse
    from joymigrate.config import Config

SCHEMA = "joymigrate.doctor/1"
MARKS = {"ok": "ok", "missing": "--", "broken": "!!"}
WIDTH = 96
FIT = "Do driver, toolkit and packages go together?"
NAME = 10
PAD = " " * 6
TITLES = {"core": "Core", "chip": "Chip", "program": "Programs", "extra": "Extras"}


@answers("doctor")
def command(
    words: list[str] | None = typer.Argument(
        None, metavar="[COMMAND]...", help="Only this command: serve, cluster submit."
    ),
    to: str | None = TO,
    show_config: bool = typer.Option(
        False, "--show-config", help="Every configuration value and where it comes from."
    ),
    fit: bool = typer.Option(
        False, "--fit", help="Do driver, toolkit and packages go together? The next thing to mend."
    ),
    record: bool = typer.Option(
        False, "--record", help="Write what this machine has for the chip, to diagnose elsewhere."
    ),
    env: Path | None = typer.Option(
        None,
        "--env",
        metavar="FILE",
        help="Diagnose another machine: what --record wrote, or pasted pip list, env, errors.",
    ),
    lock: Path | None = typer.Option(
        None, "--lock", metavar="FILE", help="Write the versions of this machine with hashes."
    ),
    check_lock: Path | None = typer.Option(
        None, "--check-lock", metavar="FILE", help="Exit 1 where this machine is not as it was."
    ),
    project: Path = typer.Option(
        Path(), "--project", metavar="DIR", help="The folder whose configuration holds."
    ),
) -> Answer:
    """Show what is installed and missing for each command, and how to get it.

    Exits 0 whatever is missing; with COMMAND 1 when that lacks something it needs.
    With --show-config: the configuration instead. With --fit, --record, --env, --lock or
    --check-lock: the chip's software on this machine or a recorded one; 1 when something is known
    to fail, or differs from the lock.
    """
    from joymigrate import chips, config
    from joymigrate.cli import _installation, _requirements

    settings = config.load(project, {"to": to})
    chip = chips.target(settings["to"])
    if show_config:
        return show_settings(settings)
    if check_lock is not None:
        from joymigrate.cli._diagnosis import compare_lock

        return compare_lock(chip, check_lock)
    if fit or record or env or lock:
        from joymigrate.cli._diagnosis import run_diagnosis

        return run_diagnosis(chip, env, record, lock)
    uses = select_uses(words or [])
    found = _installation.checks(chip, probe_chip=not words or _requirements.about_chip(uses))
    ready = _requirements.readiness(uses, found, chip)
    if words and words[0] == "rehearse":
        ready = _requirements.after_trial(ready, _installation.rehearsal_error(chip))
    document = {"schema": SCHEMA, "to": chip.name, **machine(), **as_json(found, ready)}
    text = "\n".join(text_lines(chip, found, ready, whole=not words)) + "\n"
    return Answer(document, text, code=bool(words) and not all(item.ready for item in ready))


def select_uses(words: list[str]) -> list[CommandUse]:
    """Every use of every command, or those of the one that is named."""
    from joymigrate.cli import _requirements
    from joymigrate.cli._commands import command_names

    names = command_names()
    if not words:
        return [use for name in names for use in _requirements.uses(name)]
    name, *more = words
    one_of(name, tuple(names), "doctor")
    every = _requirements.uses(name)
    way = " ".join(more)
    found = [use for use in every if not way or f"{use.way} ".startswith(f"{way} ")]
    if not found:
        one_of(way, tuple(use.way for use in every if use.way), f"doctor {name}")
    return found


def machine() -> dict[str, object]:
    """What joymigrate runs on."""
    from joymigrate import __version__

    return {
        "joymigrate": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": processors.available(),
    }


def as_json(found: list[Check], ready: list[CommandReadiness]) -> dict[str, object]:
    """Checks, and commands with their uses. A command is ready when all of its uses are."""
    commands: dict[str, list[CommandReadiness]] = {}
    for item in ready:
        commands.setdefault(item.use.command, []).append(item)
    return {
        "checks": [asdict(check) for check in found],
        "commands": [
            {
                "command": name,
                "ready": all(item.ready for item in items),
                "missing": list(dict.fromkeys(line for item in items for line in item.missing)),
                "uses": [
                    {
                        "use": item.use.name,
                        "ready": item.ready,
                        "missing": list(item.missing),
                        "without": list(item.without),
                    }
                    for item in items
                ],
            }
            for name, items in commands.items()
        ],
    }


def text_lines(
    chip: Chip, found: list[Check], ready: list[CommandReadiness], *, whole: bool
) -> list[str]:
    """Everything as a table; of one command only what it lacks."""
    if not whole:
        return use_lines(ready)
    about = machine()
    first = (
        f"joymigrate {about['joymigrate']}, Python {about['python']}, {about['platform']}, "
        f"{about['cores']} cores"
    )
    plain = [name for name, items in by_command(ready).items() if not any(map(lacking, items))]
    rest = [item for item in ready if item.use.command not in plain]
    wrapped = textwrap.wrap(" ".join(plain), WIDTH, initial_indent="  ok  ", subsequent_indent=PAD)
    lines = [first, *check_lines(found, chip.title), "", "Commands", *wrapped, *use_lines(rest)]
    if (chip.folder / "doctor.yaml").is_file():
        lines += ["", f"{FIT}: joymigrate doctor --to {chip.name} --fit"]
    return lines


def by_command(ready: list[CommandReadiness]) -> dict[str, list[CommandReadiness]]:
    """The uses of each command."""
    found: dict[str, list[CommandReadiness]] = {}
    for item in ready:
        found.setdefault(item.use.command, []).append(item)
    return found


def lacking(item: CommandReadiness) -> bool:
    """Whether anything is missing, needed or not."""
    return bool(item.missing or item.without)


def use_lines(ready: list[CommandReadiness]) -> list[str]:
    """A line per set of uses of a command that lack the same, with the remedies below it."""
    lines = []
    for name, items in by_command(ready).items():
        alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for item in items:
            alike.setdefault((item.missing, item.without), []).append(item.use.way)
        for (missing, without), ways in alike.items():
            mark = MARKS["missing" if missing else "ok"]
            start = f"  {mark}  {name:<{NAME}} "
            words = ", ".join(way for way in ways if way)
            lines += textwrap.wrap(
                words, WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
                break_on_hyphens=False,
            ) or [start.rstrip()]  # fmt: skip
            lines += [f"{PAD}  {line}" for line in missing]
            lines += [f"{PAD}  without {line}" for line in without]
    return lines


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


def show_settings(settings: Config) -> Answer:
    """Every configuration value with where it came from."""
    rows = [
        {"key": key, "value": value, "source": settings.sources[key]}
        for key, value in settings.values.items()
    ]
    cells = [
        (row["key"], json.dumps(row["value"], ensure_ascii=False), row["source"]) for row in rows
    ]
    return Answer({"schema": SCHEMA, "config": rows}, "\n".join([*columns(cells), ""]))

"""What each way of using a command needs on this machine, as its file declares it.

A command's file may say, as literals that are read without importing it,

    NEEDS = {"submit": ("package:ray",), "--config FILE": ("extra:serve",)}
    WANTS = {"check": {"extra:kernels": "implementations in Triton"}}

`NEEDS`: without it this use fails. `WANTS`: without it the use can do less, and what. A key is a
sub-command, an option of one (`validate --dump FILE`), or a way to use the command itself
(`MODEL_DIR`); a plain tuple counts for the whole command. A need is `extra:NAME`, `package:NAME`
(a distribution of Python), `program:NAME`, `chip` (it is here and its package loads),
`chip-package` (installed, whether it loads or not) or `rehearsal` (the simulated chip);
`chip|rehearsal` is either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.cli._installation import Check

COMMANDS = Path(__file__).parent
SETUP = "joymigrate rehearse setup"
HIDDEN = "default"  # what a group does when no sub-command is named


@dataclass(frozen=True, slots=True)
class CommandUse:
    """One way of using a command: `serve`, `MODEL_DIR`; the way is empty for a plain command."""

    command: str
    way: str
    needs: tuple[str, ...] = ()
    wants: Mapping[str, str] | None = None  # need → what is left out without it

    @property
    def name(self) -> str:
        """As the user types it."""
        return f"{self.command} {self.way}".strip()


@dataclass(frozen=True, slots=True)
class CommandReadiness:
    """Whether a use works here; what is missing, and what it does without. One remedy a line."""

    use: CommandUse
    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether it can be used."""
        return not self.missing


def after_trial(ready: list[CommandReadiness], error: str | None) -> list[CommandReadiness]:
    """What is ready after a real start was tried: nothing that it failed for."""
    if error is None:
        return ready
    told = f"a trial start failed: {error}"
    return [replace(item, missing=(told,)) if item.ready else item for item in ready]


def uses(command: str) -> list[CommandUse]:
    """Every way of using a command: its sub-commands, and the ways that its files name."""
    from joymigrate.cli._main import load

    needs, wants = read_declared(command)
    ways = list(leaves(load(command)))
    named = [*needs, *(way for way in wants if way not in needs)]
    if HIDDEN in ways or "" in ways:
        own = [way for way in named if way and way.partition(" ")[0] not in ways]
        kept = [way for way in ways if way not in (HIDDEN, "")]
        ways = [*(own or [""]), *kept]
        if "" in named and "" not in ways:
            ways.insert(0, "")
    ways += [way for way in named if way and way not in ways]
    return [CommandUse(command, way, needs.get(way, ()), wants.get(way)) for way in ways]


def leaves(command: Any, path: str = "") -> Iterable[str]:
    """Sub-commands of a command, and theirs."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path
        return
    for name, each in inner.items():
        yield from leaves(each, f"{path} {name}".strip())


def read_declared(command: str) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, str]]]:
    """NEEDS and WANTS of a command's file and of the files of its sub-commands, by use."""
    stem = command.replace("-", "_")
    needs: dict[str, tuple[str, ...]] = {}
    wants: dict[str, dict[str, str]] = {}
    for path in (COMMANDS / f"{stem}.py", *sorted(COMMANDS.glob(f"_{stem}_*.py"))):
        way = path.stem.removeprefix(f"_{stem}_").replace("_", "-") if path.stem != stem else ""
        said = literals(path)
        needs |= by_way(said.get("NEEDS", {}), way, tuple)
        wants |= by_way(said.get("WANTS", {}), way, dict)
    return needs, wants


def by_way(said: Any, way: str, kind: type) -> dict[str, Any]:
    """A declaration by the use it is about; a sub-command's own file need not repeat its name."""
    plain = isinstance(said, tuple) or (
        bool(said) and all(isinstance(value, str) for value in said.values())
    )
    table = {"": said} if plain else said
    return {f"{way} {key}".strip(): kind(value) for key, value in table.items()}


def literals(path: Path) -> dict[str, Any]:
    """The literals NEEDS and WANTS of a file."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("NEEDS", "WANTS"):
                found[name] = ast.literal_eval(node.value)
    return found


def about_chip(uses: Iterable[CommandUse]) -> bool:
    """Whether one of the uses has to do with the chip, whose package takes seconds to load."""
    return any(
        part.partition(":")[0] in ("chip", "chip-package", "rehearsal")
        for use in uses
        for need in (*use.needs, *(use.wants or ()))
        for part in need.split("|")
    )


def readiness(uses: Iterable[CommandUse], found: list[Check], chip: Chip) -> list[CommandReadiness]:
    """What each use lacks, judged by the checks."""
    bad = {(check.kind, check.name): check for check in found if check.status != "ok"}
    core = tuple(f"{name}: {bad[kind, name].help}" for kind, name in bad if kind == "core")
    answers = []
    for use in uses:
        missing = tuple(line for need in use.needs for line in lacks(need, bad, chip))
        without = tuple(
            f"{what}: {line}"
            for need, what in (use.wants or {}).items()
            for line in lacks(need, bad, chip)
        )
        answers.append(CommandReadiness(use, (*core, *missing), without))
    return answers


def lacks(need: str, bad: Mapping[tuple[str, str], Check], chip: Chip) -> list[str]:
    """What is missing for a need, each with how to get it; nothing when it is met."""
    from joymigrate.cli import _installation
    from joymigrate.extras import how_to_get

    if "|" in need:
        answers = [lacks(part, bad, chip) for part in need.split("|")]
        easier = answers[-1] if _installation.can_rehearse(chip) else answers[0]
        return [] if [] in answers else easier

    kind, _, name = need.partition(":")
    if kind == "package":
        return [] if _installation.has(name) else [f"{name}: {how_to_get(name)}"]
    package = chip.distribution or chip.name
    if kind == "rehearsal":
        if not _installation.can_rehearse(chip):
            return [f"simulated chip: {chip.title} cannot be rehearsed"]
        package_lacks = [] if _installation.can_find_package() else [f"{package}: {SETUP}"]
        return [*lacks("extra:torch", bad, chip), *package_lacks, *lacks("program:cc", bad, chip)]
    check = bad.get(("chip", package) if kind.startswith("chip") else (kind, name))
    if check is None or (kind == "chip-package" and check.status == "broken"):
        return []
    return [f"{check.name}: {check.help}"]

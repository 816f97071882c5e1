"""The list of public programs: where each comes from, how it starts, what its end should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
LIST = HERE / "programs.yaml"
DATA = HERE / "data"


@dataclass(frozen=True, slots=True)
class Program:
    """One program. `folder` is the part of the repository that is taken, `data` the script of
    `board/data/` (and its words) that makes its small data, `seconds` and `gib` the limits of one
    run, `baseline` how the original starts on the CPU where that differs from `command`, `chip` how
    the rewritten one starts where a device is named on the command line, `packages` what it needs
    beside this environment, `suite` says that it is pytest over a library's own tests."""

    name: str
    repository: str
    commit: str
    licence: str
    family: str
    command: str
    chosen_before: bool
    folder: str = "."
    data: str = ""
    baseline: str = ""
    chip: str = ""
    expect: str = "exit 0"
    seconds: float = 120
    gib: float = 6
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    suite: bool = False

    @property
    def checkout(self) -> str:
        """The name of its checkout among the sources."""
        return self.repository.replace("/", "+")


def load(path: Path = LIST) -> list[Program]:
    """The list. Shared keys of a repository stand once, above its programs.

    Raises ValueError for an unknown key, a key that is missing, or a name that stands twice.
    """
    known = {one.name for one in fields(Program)}
    found: list[Program] = []
    for group in yaml.safe_load(path.read_text(encoding="utf-8")):
        shared = {key: value for key, value in group.items() if key != "programs"}
        for one in group["programs"]:
            found.append(program({**shared, **one}, known, path))
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: these names stand twice: {', '.join(twice)}")
    return found


def program(given: dict[str, Any], known: set[str], path: Path) -> Program:
    """One program out of its keys."""
    wrong = sorted(set(given) - known)
    if wrong:
        raise ValueError(f"{path}: {given.get('name')}: unknown key {wrong[0]!r}")
    try:
        return Program(**{**given, "packages": tuple(given.get("packages", ()))})
    except TypeError as error:
        raise ValueError(f"{path}: {given.get('name')}: {error}") from error


def shard(programs: list[Program], asked: str) -> list[Program]:
    """Every n-th program, beginning with the i-th, for `i/n`. Raises ValueError for other text."""
    number, _, of = asked.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise ValueError(f"a shard is i/n with 1 <= i <= n, such as 1/4; this is {asked!r}")
    return programs[int(number) - 1 :: int(of)]

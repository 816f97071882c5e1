"""Which program a migration starts, where nobody named one: found in the project, asked once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.journey.entries import EntryCandidate

Ask = Callable[[str], str]
NONE = ("n", "none")


def asker() -> Ask | None:
    """How a question is put; None elsewhere than on a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(question: str) -> str:
        print(question, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()

    return ask


def choose_entry(project: Path, ask: Ask | None) -> str:
    """The command that the user chooses among those that the project names; empty where it names
    none, or the answer is to go without.

    Without somebody to ask, `JoyError` lists them: nothing is started that nobody chose.
    """
    from joymigrate.journey.entries import find_entries

    found = find_entries(project)
    if not found:
        return ""
    if ask is None:
        raise JoyError(
            "no program is named with --entry, and there is no terminal to ask on",
            where=str(project),
            help="name one of these, or go without with --until rewrite:\n"
            + list_candidates(found),
        )
    rows = [f"  {number}  {describe(one)}" for number, one in enumerate(found, 1)]
    question = "\n".join(["Programs that this project names:", *rows])
    answer = ask(f"{question}\nStart which (Enter for 1, n for none)? ").strip().lower()
    if answer in NONE:
        return ""
    number = int(answer) if answer.isdigit() else 1 if not answer else 0
    if not 1 <= number <= len(found):
        raise JoyError(
            f"'{answer}' is none of 1 to {len(found)}", help="name a program with --entry"
        )
    return found[number - 1].command


def list_candidates(found: Sequence[EntryCandidate]) -> str:
    """The candidates as they are given on the command line."""
    return "\n".join(f"    --entry '{one.command}'  ({origin_of(one)})" for one in found)


def describe(one: EntryCandidate) -> str:
    """One candidate in a line."""
    return f"{one.command}  ({origin_of(one)})"


def origin_of(one: EntryCandidate) -> str:
    """Where a candidate was found, and what was made small."""
    return "; ".join([one.source, *(f"made small: {said}" for said in one.settings)])

"""Calls of the language against what a chip's documents list: names, arguments, dtypes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from joymigrate.profile.port.notes import Note

LANGUAGE = "triton.language."
OWN = re.compile(r"^(core|math|random|standard)\.")  # modules behind `tl` itself
COMPUTED = "?"  # in the place of an argument that is no literal
PLAIN = frozenset(("to", "item"))  # methods of every tensor


@dataclass(frozen=True, slots=True)
class LanguageCall:
    """One call: its full name, literals by keyword or place, dtypes among the arguments.

    `where` says with which arguments of the kernel alone it is met, "" for with all.
    """

    name: str
    line: int
    given: Mapping[str, Any]
    dtypes: Sequence[str] = ()
    helper: str = ""  # the function that it stands in, with its file and line
    where: str = ""

    @property
    def inner(self) -> str:
        """The name below `tl`."""
        return OWN.sub("", self.name.removeprefix(LANGUAGE))

    @property
    def base(self) -> str:
        """The last part of it."""
        return self.inner.rpartition(".")[2] if self.inner.startswith("extra.") else self.inner


def judge_calls(calls: Sequence[LanguageCall], known: dict[str, Any]) -> Iterator[Note]:
    """Notes on every call."""
    listed = {*known.get("documented", ()), *known.get("taken", ()), *PLAIN}
    refused = refused_dtypes(known)
    for call in calls:
        found = [*arguments(call, known)]
        part = part_of(call, known)
        if part is not None:
            found.append(Note(part["verdict"], call.line, f"tl.{call.inner}", part["help"],
                              part.get("source", "")))  # fmt: skip
        elif call.base not in listed:
            said = (
                f"tl.{OWN.sub('', call.name.removeprefix(LANGUAGE))} is not in the chip's documents"
            )
            found.append(Note("unknown", call.line, said, replace_call(call.name, known)))
        for dtype in call.dtypes:
            if dtype in refused:
                op, source = refused[dtype]
                found.append(Note(
                    "changes", call.line, f"{dtype} is a dtype that tl.{op} does not take",
                    "use float32, or int32 for whole numbers", source,
                ))  # fmt: skip
        yield from (place_note(note, call) for note in found)
    yield from find_mixed(calls, known)


def place_note(note: Note, call: LanguageCall) -> Note:
    """A note with the function that the call stands in, and with which arguments it is met."""
    if call.where and note.level == "fails":
        said = f"{note.message}, where {call.where}"
        note = replace(
            note, level="changes", message=said, help=f"launch it otherwise, or {note.help}"
        )
    return replace(note, message=f"{note.message} (in {call.helper})") if call.helper else note


def find_mixed(calls: Sequence[LanguageCall], known: dict[str, Any]) -> Iterator[Note]:
    """Calls that must not stand in one kernel."""
    used = {call.base: call for call in calls}
    for rule in known.get("apart", ()):
        one = next((name for name in rule["calls"] if name in used), None)
        other = next((name for name in rule["beside"] if name in used), None)
        if one and other:
            yield Note("changes", used[one].line, f"tl.{one} beside tl.{other}", rule["help"],
                       rule["source"])  # fmt: skip


def refused_dtypes(known: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Dtypes that every kernel meets a refusal of, with the operator and the source."""
    rows = {name: known.get("operators", {}).get(name) for name in ("load", "store", "cast")}
    return {
        dtype: (name, row["source"])
        for name, row in rows.items() if row for dtype in row["refuses"] if dtype != "bool"
    }  # fmt: skip


def part_of(call: LanguageCall, known: dict[str, Any]) -> dict[str, Any] | None:
    """The rule about a vendor's part of the language that speaks of a call."""
    for part in known.get("modules", ()):
        prefix = part["prefix"].removeprefix("tl.").removeprefix(LANGUAGE)
        if call.inner == prefix or call.inner.startswith(f"{prefix}."):
            found: dict[str, Any] = part
            return found
    return None


def replace_call(name: str, known: dict[str, Any]) -> str:
    """What `--write` puts in place of a call."""
    rule = known.get("replace", {}).get(name)
    return f"--write puts {rule['with'].format('a', 'b', 'c', tl='tl')} there" if rule else ""


def arguments(call: LanguageCall, known: dict[str, Any]) -> Iterator[Note]:
    """Arguments with a value that the chip does not know."""
    for rule in known.get("values", ()):
        if not fnmatchcase(call.base, rule["calls"]):
            continue
        keys = (rule["argument"], str(rule.get("place")))
        value = next((call.given[key] for key in keys if key in call.given), rule.get("without"))
        only = rule["only"] if isinstance(rule["only"], list) else [rule["only"]]
        if value is not None and value != COMPUTED and value not in only:
            yield Note(
                rule.get("level", "changes"), call.line,
                f"tl.{call.base}({rule['argument']}={value!r})",
                f"only {' or '.join(map(repr, only))} is known", rule["source"],
            )  # fmt: skip
    refuses = known.get("operators", {}).get(call.base)
    if call.base.startswith("atomic_") and refuses:
        yield Note(
            "note", call.line, f"tl.{call.base} does not take {' '.join(refuses['refuses'])}",
            "see that the pointer has another dtype", refuses["source"],
        )  # fmt: skip

"""Error codes of a chip's software: `codes.csv` of its folder, from number to what helps.

A code is a number, letters with a number, or the word of a library that counts from one and its
number. Where nobody wrote what a code means, its row repeats its name in words.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from joymigrate.chips.chip import Chip
from joymigrate.errors import JoyError

FILE = "codes.csv"
WORD = re.compile(r"(?<![A-Za-z0-9.])[A-Z]{1,4}\d{4,6}(?![A-Za-z0-9])")
# A number is a code where the words before it say so: a step or a line may have the same digits.
RETURNED = re.compile(
    r"(?i)(?:\b\w*(?:code|ret|result|status)|return(?:ed)?|error|failed)\b(?: is\b)?"
    r"[\s:=\[(]*(\d+)\b"
    r"|\((\d{6})\)"
)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One code. `cause` names a cause of `doctor.yaml`; empty where the code does not say one."""

    code: str
    name: str
    of: str  # whose: the runtime's, a driver's, a package's …
    meaning: str
    do: str
    cause: str
    source: str


def look_up_code(chip: Chip, text: str) -> ErrorCode | None:
    """The code that somebody names by number or by name, in any case of letters."""
    return read_codes(chip.folder / FILE).get(" ".join(text.split()).casefold())


def find_codes(chip: Chip, text: str) -> Iterator[ErrorCode]:
    """The codes inside a message, in its order, each once."""
    known = read_codes(chip.folder / FILE)
    numbers = [one for groups in RETURNED.findall(text) for one in groups if one]
    whose = {key.rpartition(" ")[0] for key in known} - {""}
    named = [one for one in whose if re.search(rf"(?i)\b{one}", text)]
    keys = [key for one in numbers for key in (one, *(f"{word} {one}" for word in named))]
    keys += [word.casefold() for word in WORD.findall(text)]
    yield from dict.fromkeys(known[key] for key in keys if key in known)


@cache
def read_codes(path: Path) -> Mapping[str, ErrorCode]:
    """The rows of a table by code and by name, in small letters; none where there is no file."""
    if not path.is_file():
        return {}
    names = tuple(one.name for one in fields(ErrorCode))
    known: dict[str, ErrorCode] = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != names:
            raise JoyError(f"a table of codes has the columns {','.join(names)}", where=str(path))
        for number, row in enumerate(lines, 2):
            where = f"{path}:{number}"
            if None in row or not all(row[key] for key in ("code", "of", "meaning", "source")):
                raise JoyError("a code needs `of`, `meaning` and `source`", where=where)
            one = ErrorCode(**row)
            if one.code.casefold() in known:
                raise JoyError(f"code {one.code} stands twice", where=where)
            known[one.code.casefold()] = one
    for one in list(known.values()):
        if one.name:
            known.setdefault(one.name.casefold(), one)
    return known

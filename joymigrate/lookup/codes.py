"""What a number or a code of an error stands for, by the rows that chips' data has of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from joymigrate.blame import vendor
from joymigrate.chips import Chip
from joymigrate.environment.rules import DoctorRules, rules_of
from joymigrate.language import Text
from joymigrate.lookup.described import Statement

CODE = re.compile(r"\d{5,6}|E[A-Z0-9]\d{4}|ERR\d{5}")
COVERS = (
    "one code alone; the first error of the whole message decides: `joymigrate doctor` reads it"
)
CAUSE = "{what}; what helps: {fix}"
STOP = "{why}; what helps: {fix}; it says: {says}"
RUNTIME = "a number of the chip's runtime, of which no row says what it means"
PACKAGE = "a number of the chip's torch package, of which no row says what it means"


def describe(code: str, chips: Sequence[Chip]) -> Iterator[Statement]:
    """What each chip's data says of a code; nothing for what is no code of any."""
    if not CODE.fullmatch(code):
        return
    for chip in chips:
        found = [*list_causes(code, chip), *list_stops(code, chip)]
        yield from found or list_kinds(code, chip)


def list_causes(code: str, chip: Chip) -> Iterator[Statement]:
    """The causes of `doctor` whose signs have the code."""
    known = rules_of(chip) or DoctorRules()
    for sign in known.signs:
        if code in codes_of(sign.pattern):
            cause = known.causes[sign.cause]
            text = Text(CAUSE, what=Text(cause.what), fix=Text(cause.fix))
            yield Statement((chip.name,), text, rule=sign.cause, source=sign.source)


def list_stops(code: str, chip: Chip) -> Iterator[Statement]:
    """The known stops of packages beside the chip's own whose message has the code."""
    for row in vendor.load(chip.name).rows:
        if code in codes_of(row.says):
            text = Text(STOP, why=Text(row.why), fix=Text(row.do), says=row.says)
            yield Statement((chip.name,), text, rule=row.name, source=row.source)


def list_kinds(code: str, chip: Chip) -> Iterator[Statement]:
    """Whose number it is, where nothing more is known."""
    words = vendor.load(chip.name)
    if re.search(words.runtime_code, f"({code})"):
        yield Statement((chip.name,), Text(RUNTIME), source=f"{chip.name}/{vendor.FILE}")
    elif re.search(words.package_code, code):
        yield Statement((chip.name,), Text(PACKAGE), source=f"{chip.name}/{vendor.FILE}")


def codes_of(text: str) -> list[str]:
    """The codes in a text or in a pattern."""
    return re.findall(rf"(?<![\dA-Z])(?:{CODE.pattern})(?!\d)", text)


def list_codes(chip: Chip) -> Iterator[str]:
    """Every code that a row of a chip names."""
    for sign in (rules_of(chip) or DoctorRules()).signs:
        yield from codes_of(sign.pattern)
    for row in vendor.load(chip.name).rows:
        yield from codes_of(row.says)

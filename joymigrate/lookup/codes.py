"""What a number or a code of an error stands for, by the rows that chips' data has of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from joymigrate.blame import vendor
from joymigrate.chips import Chip
from joymigrate.chips.codes import FILE, ErrorCode, look_up_code, read_codes
from joymigrate.environment.rules import DoctorRules, rules_of
from joymigrate.language import Text
from joymigrate.lookup.statements import Statement

CODE = re.compile(r"\d{5,6}|E[A-Z0-9]\d{4}|ERR\d{5}")
MEANING = "{meaning} ({name} of the {of})"
COVERS = (
    "one code alone; the first error of the whole message decides: `joymigrate doctor` reads it"
)
CAUSE = "{what}; what helps: {fix}"
STOP = "{why}; what helps: {fix}; it says: {says}"


def describe(code: str, chips: Sequence[Chip]) -> Iterator[Statement]:
    """What each chip's data says of a code, by its number or its name; nothing for no code of any:
    the chip's table, the causes of `doctor`, known stops with it."""
    for chip in chips:
        found = look_up_code(chip, code)
        if found is not None:
            yield read_row(found, chip)
        if CODE.fullmatch(code):
            yield from list_causes(code, chip)
            yield from list_stops(code, chip)


def read_row(found: ErrorCode, chip: Chip) -> Statement:
    """A row of the chip's table."""
    said = Text(MEANING, meaning=Text(found.meaning), name=found.name or found.code, of=found.of)
    known = rules_of(chip) or DoctorRules()
    cause = known.causes.get(found.cause)
    fix = Text(found.do) if found.do else Text(cause.fix) if cause else None
    text = Text(CAUSE, what=said, fix=fix) if fix else said
    return Statement((chip.name,), text, rule=found.cause or None, source=found.source)


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


def codes_of(text: str) -> list[str]:
    """The codes in a text or in a pattern."""
    return re.findall(rf"(?<![\dA-Z])(?:{CODE.pattern})(?!\d)", text)


def list_codes(chip: Chip) -> Iterator[str]:
    """Every code that a row of a chip names."""
    yield from dict.fromkeys(one.code for one in read_codes(chip.folder / FILE).values())
    for sign in (rules_of(chip) or DoctorRules()).signs:
        yield from codes_of(sign.pattern)
    for row in vendor.load(chip.name).rows:
        yield from codes_of(row.says)

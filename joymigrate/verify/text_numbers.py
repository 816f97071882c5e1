"""Numbers in text: a line as words and numbers, and how far two lines' numbers are apart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joymigrate.verify.judge import ErrorSeries, Key

# Not inside of a word, a path, a version or a time of day.
NUMBER = re.compile(
    r"(?<![\w./\\-])(?<!\d:)[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)(?![\w/\\]|[.:]\d)"
)
# A place in a source file (of a warning, of a traceback): the rewrite moves lines.
PLACE = re.compile(r"""(\.(?:pyx?|ipynb|cpp|cc|cu|cuh|c|h|hpp)\b['"]?)(?::|,? line )\d+(?::\d+)?""")
UNIT = re.compile(r"\s?[A-Za-z%/]+")
NAMES_NEXT = re.compile(r"\s[\w/%.-]*[A-Za-z][\w/%.-]*\s*[=:]?\s*" + NUMBER.pattern)
MEASURES = re.compile(
    r"time|sec|took|elapsed|eta\b|speed|throughput|mem|bytes|\b[kmg]i?b\b|\bms\b|\bus\b|\bs\b|/s\b"
    r"|it/s|tok|flops|date|\bpid\b|port|addr|host|version|device|\w*[gn]pu|cuda|seed|path|file|cpu"
    r"|(?-i:\bSM(?:s| count))\W*$|multi.?processors?",
    re.IGNORECASE,
)
# What a program is told is no result, and carries no rounding of the numbers beside it.
SETTINGS = re.compile(
    r"(?<![a-z])(?:lr|wd|eps|tol)(?![a-z])|learning.?rate|decay|epsilon|beta|coef|momentum"
    r"|temperature|dropout|threshold",
    re.IGNORECASE,
)
# float32's rounding. A number that is the difference of others carries theirs: the margin of two
# rewards of 1e-6, made of log probabilities of -50. Never more than this, our own choice.
ROUNDING, HIGHEST_FLOOR = 2.0**-23, 1e-5


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """One number of a line: what stands around it."""

    template: str
    index: int
    words: str  # before it, and right after it

    @property
    def measures(self) -> bool:
        """Whether it tells of the machine: time, memory, names."""
        return bool(MEASURES.search(self.words))

    @property
    def is_setting(self) -> bool:
        """Whether it tells what the program was told: a learning rate."""
        return bool(SETTINGS.search(self.words))

    @property
    def named(self) -> bool:
        """Whether words say what it is."""
        return bool(re.search(r"[A-Za-z]{2}", self.words))

    @property
    def key(self) -> Key:
        """Its series."""
        return "printed", f"{self.index} {self.template}"


@dataclass(frozen=True, slots=True)
class Printed:
    """One number as it was printed: its value and the last place that was shown."""

    value: float
    unit: float
    whole: bool
    floor: float = 0.0  # below which it is rounding of the numbers beside it


def read(text: str) -> Printed:
    """A printed number."""
    mantissa, _, exponent = text.lower().partition("e")
    whole = "." not in text and not exponent and mantissa.lstrip("+-").isdigit()
    places = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - places) if math.isfinite(float(text)) else 0.0
    return Printed(float(text), 0.0 if whole else unit, whole)


def columns(lines: Iterable[str]) -> dict[NumberColumn, list[Printed]]:
    """Every number of some lines, by what stands around it, in the order of the lines."""
    found: dict[NumberColumn, list[Printed]] = {}
    for line in map(without_places, lines):
        numbers = list(NUMBER.finditer(line))
        template = NUMBER.sub("#", line).strip()
        end, known = 0, []
        for index, match in enumerate(numbers):
            before, end = line[end : match.start()][-24:], match.end()
            words = f"{before} {unit_of(line, before, end)}"
            column = NumberColumn(template, index, NUMBER.sub("#", words))
            known.append((column, read(match.group())))
        sizes = (abs(n.value) for c, n in known if not n.whole and not c.measures)
        floor = min(ROUNDING * max(filter(math.isfinite, sizes), default=0.0), HIGHEST_FLOOR)
        for column, number in known:
            own = 0.0 if column.is_setting else floor
            found.setdefault(column, []).append(replace(number, floor=own))
    return found


def without_places(line: str) -> str:
    """A line with the names of source files, without the lines in them."""
    return PLACE.sub(r"\1", line)


def unit_of(line: str, before: str, end: int) -> str:
    """The word behind a number; empty where it names the next one: `loss 2.6 tokens 30`."""
    unit = UNIT.match(line, end)
    if unit is None:
        return ""
    names_next = line[end : end + 1] == " " and NAMES_NEXT.match(line, end)
    return "" if names_next and re.search(r"[A-Za-z]", before) else unit.group()


def counterparts(
    ours: Iterable[NumberColumn], theirs: Iterable[NumberColumn]
) -> dict[NumberColumn, NumberColumn]:
    """Columns of both sides: of the same line, else the only ones left with the same words.

    A line reads otherwise where a part of it names the machine: `memory None` beside `memory 13.3`.
    """
    mine, other = list(ours), set(theirs)
    found = {column: column for column in mine if column in other}
    left: dict[str, list[NumberColumn]] = {}
    for column in other - found.keys():
        left.setdefault(column.words, []).append(column)
    for column in mine:
        same = [one for one in mine if one not in found and one.words == column.words]
        there = left.get(column.words, [])
        if column not in found and column.named and len(same) == len(there) == 1:
            found[column] = there[0]
    return found


def distances(
    ours: Sequence[Printed], theirs: Sequence[Printed], *, rounded: bool = True
) -> ErrorSeries:
    """Relative distances of two sequences, infinite where one alone is not finite; `rounded`: less
    what printing has rounded, one unit of the finest number's last place. Below the floor is what
    hides behind equal prints in half of all cases. Whole numbers have to be the same."""
    pairs = list(zip(ours, theirs, strict=False))
    if all(a.whole and b.whole for a, b in pairs):
        return ErrorSeries([(n, float(a.value != b.value)) for n, (a, b) in enumerate(pairs)], True)
    unit = min((n.unit for n in (*ours, *theirs) if n.unit), default=0.0) if rounded else 0.0
    sizes = sorted(abs(a.value) for a in ours if math.isfinite(a.value))
    typical = sizes[len(sizes) // 2] if sizes else 0.0
    points = []
    for number, (a, b) in enumerate(pairs):
        if not (math.isfinite(a.value) and math.isfinite(b.value)):
            same = a.value == b.value or (math.isnan(a.value) and math.isnan(b.value))
            points.append((number, 0.0 if same else math.inf))
            continue
        gap = max(0.0, abs(a.value - b.value) - 1.01 * unit - a.floor)
        points.append((number, gap / max(abs(a.value), typical, 1e-12) if gap else 0.0))
    hidden = unit * (1 - 0.5 ** (1 / max(len(points), 1)))
    return ErrorSeries(points, floor=max(ROUNDING, hidden / max(typical, 1e-12)))

"""Loss curves out of what a program prints.

Programs print several: of a batch, of the validation set, of each part. They are told apart by
what stands around the word; the curve is the longest that isn't of a test, and among the longest
the one that is called plainly `loss` or `total`, else the first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
WORD = r"[A-Za-z][\w/]*"
# `loss 1.23`, `train_loss=1.23`, `'loss': '1.23'`, `| loss | 1.23 |`, `Gen Loss Total : 1.23`,
# `loss: tensor(1.23)`, `lossD: 1.23`. Words behind it need a sign before the number.
LOSS = re.compile(
    rf"(?P<before>(?:{WORD}[ ])?)"
    rf"(?P<word>(?:(?<![A-Za-z])(?:\w+[_/.-])?[Ll]oss|(?<![A-Za-z])LOSS|(?<=[a-z])Loss)"
    rf"(?:es)?(?:[A-Z0-9](?![a-z])|[_/.-]\w+)*)"
    rf"(?:(?P<after>(?:\s+{WORD}){{1,2}})\s*[:=|]|['\"]?\s*[:=|]|\s)"
    rf"\s*['\"]?(?:tensor\(|[\[(])*\s*{NUMBER}(?![\w])",
)
NONE = re.compile(r"scale|weight|coef|function|\bfn\b|_fn|type|lambda|lossless", re.IGNORECASE)
TESTING = re.compile(
    r"(?<![a-z])(?:val|valid|validation|test|testing|eval|evaluation|dev)(?![a-z])"
)
STEP = re.compile(
    r"(?<![a-z])(?:step|iter(?:ation)?|it|batch)s?['\"]?\s*[:=#|]?\s*\[?\s*(\d+)", re.IGNORECASE
)
BAR = re.compile(r"(\d+)/\d+ \[\d*\d:\d\d<")  # of tqdm, which prints a step more than once
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# `site-packages/torch/nn/modules/loss.py:48: UserWarning: …`, `File "loss.py", line 48`
PLACED = re.compile(r"[\w./\\~-]*\.pyx?(?::\d+\b(?::\d+\b)?|\", line \d+)(?:: \w*Warning: .*)?")


@dataclass(slots=True)
class PrintedSeries:
    """One quantity that a program prints; `steps` None where a line names none."""

    testing: bool
    steps: list[int | None] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    bar: bool = False

    def numbered(self) -> list[int]:
        """A step for each value: what is printed, going on where it begins anew; else a count."""
        if any(step is None for step in self.steps):
            return list(range(len(self.steps)))
        found: list[int] = []
        offset = last = 0
        for step in self.steps:
            assert step is not None
            offset, last = (offset + last + 1, step) if step < last else (offset, step)
            found.append(offset + step)
        if not self.bar and len(set(found)) < len(found):
            return list(range(len(found)))
        return found

    def points(self) -> list[tuple[int, float, float]]:
        """(step, value, resolution), the last value of a step."""
        sizes = resolutions(self.values, self.texts)
        rows = zip(self.numbered(), self.values, sizes, strict=True)
        return list({step: (step, value, size) for step, value, size in rows}.values())


def losses(lines: Iterable[str]) -> list[tuple[int, float]]:
    """(step, loss) of the program's curve; without a step they are counted."""
    return [(step, value) for step, value, _ in curve(lines)]


def curve(lines: Iterable[str]) -> list[tuple[int, float, float]]:
    """(step, loss, resolution) of the program's curve."""
    found = read(lines)
    name = main(found)
    return [] if name is None else found[name].points()


def main(found: Mapping[str, PrintedSeries]) -> str | None:
    """Which of the series is the program's curve; None where there is none."""
    if not found:
        return None
    order = list(found)

    def rank(name: str) -> tuple[bool, int, bool, int]:
        one = found[name]
        plain = name in ("loss", "total loss", "loss total", "train loss", "training loss")
        return (not one.testing, len(one.values), plain, -order.index(name))

    return max(found, key=rank)


def read(lines: Iterable[str]) -> dict[str, PrintedSeries]:
    """Every loss that is printed, by name."""
    found: dict[str, PrintedSeries] = {}
    for line in lines:
        line = PLACED.sub("", COLOURS.sub("", line))
        if "loss" not in line.lower():
            continue
        bar, step = BAR.search(line), STEP.search(line)
        place = int(bar.group(1)) if bar else int(step.group(1)) if step else None
        for match in LOSS.finditer(line):
            words = f"{match['before']}{match['word']}{match['after'] or ''}".lower()
            if NONE.search(words):
                continue
            testing = bool(TESTING.search(line[: match.end()].lower().replace("_", " ")))
            name = re.sub(r"[\s_]+", " ", words).strip()
            one = found.setdefault(f"{name} (test)" if testing else name, PrintedSeries(testing))
            one.steps.append(place)
            one.values.append(float(match.group(match.lastindex or 0)))
            one.texts.append(match.group(match.lastindex or 0).lower())
            one.bar |= bar is not None
    return found


def resolutions(values: list[float], texts: list[str]) -> list[float]:
    """The size of the last digit that a program prints, for each value.

    Programs print a number of decimals, or of digits and drop trailing zeros: the most of either
    in the series is what they print, and the coarser of both is what a value has.
    """
    decimals = max((decimals_of(text) for text in texts), default=0)
    digits = max((len(re.sub(r"e.*|[^\d]", "", text).lstrip("0")) for text in texts), default=1)
    return [
        max(10.0**-decimals, 10.0 ** (math.floor(math.log10(abs(value))) - max(digits, 1) + 1))
        if math.isfinite(value) and value and decimals < 300
        else 10.0 ** -min(decimals, 300)
        for value in values
    ]


def decimals_of(text: str) -> int:
    """How many decimals a number has as it is printed."""
    mantissa, _, exponent = text.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)


def write_curve(log: Path, target: Path) -> int:
    """Write the losses of a program's output as `{"step", "loss", "loss_resolution"}` lines;
    returns how many."""
    with open(log, encoding="utf-8", errors="replace") as lines:
        found = curve(lines)
    rows = [{"step": step, "loss": loss, "loss_resolution": size} for step, loss, size in found]
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)

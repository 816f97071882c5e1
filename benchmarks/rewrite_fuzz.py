"""Mutate real Python files and rewrite them: nothing may crash, break or change outside the edits.

    python -m benchmarks.rewrite_fuzz FOLDER --count 1000 [--seed 1] [--style agnostic]

Every case takes a file of FOLDER that names the origin and changes it: spaces around keywords go
where strings stand beside them, line ends become CRLF, a form feed, a coding cookie or a byte order
mark comes in front, lines are dropped or doubled. What no longer parses still must not crash.
Counted: crashes, outputs that don't parse, and bytes outside the edits that differ.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from joymigrate import chips
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import python
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.proof import Devices, prove
from joymigrate.rewrite.source import Unreadable, decode

Mutation = Callable[[bytes, random.Random], bytes]


def lines_changed(data: bytes, rng: random.Random) -> bytes:
    """One line dropped or doubled."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((b"", lines[at] * 2))
    return b"".join(lines)


MUTATIONS: dict[str, Mutation] = {
    "no spaces": lambda data, _: re.sub(rb" (if|else|in|and|or|is) ?(?=[\"'(\[])", rb" \1", data),
    "tight strings": lambda data, _: re.sub(rb"([\"')\]]) (if|else|in|and|or) ", rb"\1\2 ", data),
    "crlf": lambda data, _: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "form feed": lambda data, _: b"\f" + data,
    "cookie": lambda data, _: b"# -*- coding: latin-1 -*-\n" + data,
    "mark": lambda data, _: b"\xef\xbb\xbf" + data,
    "lines": lines_changed,
    "no last newline": lambda data, _: data.rstrip(b"\n"),
}


def parses(data: bytes) -> bool:
    """Whether bytes are Python."""
    try:
        ast.parse(data)
    except (SyntaxError, ValueError):
        return False
    return True


def outside_kept(before: bytes, after: bytes, findings: tuple[Finding, ...]) -> bool:
    """Whether what stands between the edits stands in the result, in order and byte for byte."""
    edits = sorted({e for f in findings for e in f.edits}, key=lambda e: (e.start, e.end))
    at = position = 0
    for edit in edits:
        between = before[at : edit.start]
        if after[position : position + len(between)] != between:
            return False
        position += len(between) + len(edit.text)
        at = edit.end
    return after[position:] == before[at:]


def main() -> None:
    """Run the cases and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--style", default="agnostic")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(options.seed)
    style = Style(options.style)
    origin, target = chips.origin(), chips.target(None)
    context = Context.between(target, origin, style)
    devices = Devices(origin.device, target.device, style is Style.AGNOSTIC)
    files = [p for p in sorted(options.folder.rglob("*.py")) if b"cuda" in p.read_bytes()]
    told: Counter[str] = Counter()
    for number in range(options.count):
        path = rng.choice(files)
        data = path.read_bytes()
        for name in rng.sample(sorted(MUTATIONS), rng.randint(1, 3)):
            data = MUTATIONS[name](data, rng)
        try:
            found = python.findings(decode("a.py", data, python=True), context)
            safe = [f for f in found if f.tier is not Tier.REPORT and f.edits]
            proven = prove("a.py", data, safe, devices)
        except Unreadable:
            told["unreadable"] += 1
            continue
        except Exception as error:
            told["crashes"] += 1
            print(f"crash in case {number}, {path}: {error!r}")
            continue
        told["rewritten" if proven.findings else "no edit"] += 1
        told["left out by the proof"] += len(proven.left)
        for name, fine in (
            ("outputs that do not parse", parses(proven.content) or not parses(data)),
            ("bytes outside", outside_kept(data, proven.content, proven.findings)),
        ):
            if not fine:
                told[name] += 1
                print(f"{name}: case {number}, {path}")
    print(f"{options.count} cases of {len(files)} files: {dict(told)}")


if __name__ == "__main__":
    main()

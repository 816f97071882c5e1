"""What the rewriting engine makes of a name, by a program of one line, on each chip in each style.

Nothing is said here that a rewrite would not do. Whether the chip computes the same is not known.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from joymigrate.chips import Chip, relate
from joymigrate.chips.advice import NameAdvice
from joymigrate.chips.names import span_of
from joymigrate.language import Text
from joymigrate.lookup.statements import Statement
from joymigrate.model import Finding, Style
from joymigrate.rewrite import rules
from joymigrate.rewrite.patch import patches
from joymigrate.rewrite.portable.table import floors
from joymigrate.rewrite.project import scan

STYLES = (Style.DIRECT, Style.ACCELERATOR, Style.AGNOSTIC)
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
IMPORT = "JM001"  # the import that other edits need
STAYS = "stays as it is"
LATER = "{package} {first} and later"
EVERY = "every {package} from {first} on, the oldest that was read"
ONLY = "{package} {span}"
PORTABLE = "docs.pytorch.org/docs/stable/accelerator.html"


def write_program(name: str, kind: str, origin: Chip) -> tuple[str, str]:
    """A file in which the name is used as programs use it."""
    if kind == "variable":
        return "sample.py", f'import os\n\nos.environ["{name}"] = "1"\n'
    if kind == "tool":
        return "sample.sh", f"{name}\n"
    if kind == "value":
        called = "distributed.init_process_group" if name == origin.backend else "device"
        return "sample.py", f'import torch\n\nvalue = torch.{called}("{name}")\n'
    if kind == "method":
        method = name.rpartition(".")[2]
        return "sample.py", f"import torch\n\ntensor = torch.zeros(3)\ntensor.{method}()\n"
    return "sample.py", f"import {name.partition('.')[0]}\n\nvalue = {name}()\n"


def ask(name: str, kind: str, chips: Sequence[Chip], origin: Chip) -> Iterator[Statement]:
    """What becomes of the name on each chip in each style, as the engine answers."""
    with tempfile.TemporaryDirectory(prefix="joymigrate-name-") as folder:
        file, text = write_program(name, kind, origin)
        path = Path(folder) / file
        path.write_text(text, encoding="utf-8")
        for style in STYLES:
            for chip in chips:
                found = scan([path], chip=chip, origin=origin, style=style, jobs=1)
                mine = [one for one in found.findings if one.rule != IMPORT]
                where = (chip.name,)
                if not mine:
                    yield Statement(where, Text(STAYS), (style.value,))
                after = [patch.after for patch in patches(found, unsafe=True)]
                lines = after[0].decode().splitlines() if after and after[0] else []
                for one in mine:
                    known = read_advice(name, kind, chip, origin)
                    new = read(one, chip, origin, known)
                    if one.after == one.before and lines:  # the edit is of more than the name
                        new = replace(new, becomes=lines[-1].removeprefix("value = "))
                    yield replace(new, chips=where, styles=(style.value,))


def read(found: Finding, chip: Chip, origin: Chip, known: NameAdvice | None) -> Statement:
    """The statement of one finding."""
    since, where = begin(found.after or "", chip)
    reference = rules.load(chip, origin)[found.rule].reference
    told = known.source if known else ""
    dated = f"{told} ({known.date})" if known and told and known.date else told
    return Statement(
        chips=(),
        text=Text.of(found.reason or ("" if found.after else found.message)),
        becomes=found.after,
        since=since,
        tier=found.tier.value,
        rule=found.rule,
        source=dated or where or reference,
    )


def read_advice(name: str, kind: str, chip: Chip, origin: Chip) -> NameAdvice | None:
    """What the chip's data says of the name itself, for its source."""
    if kind == "variable":
        return chip.variable(name)
    if kind == "tool":
        return chip.commands().get(name)
    if kind in ("value", "method"):
        return None
    head = f"{origin.module}."
    if name.startswith(head):
        return relate(origin, chip).name(name[len(head) :])
    return chip.import_advice(name)


def begin(written: str, chip: Chip) -> tuple[str | None, str]:
    """Since which release there is what is written, and where that was read."""
    found = DOTTED.match(written)
    if found is None:
        return None, ""
    known = {name: since for name, since in floors().items() if found[0].startswith(name)}
    if known:
        since = known[max(known, key=len)]
        return Text(LATER, package="torch", first=since), PORTABLE
    listed = chip.name_list()
    section = listed.section_of(found[0]) if listed else None
    if listed is None or section is None:
        return None, ""
    versions = [v for v in listed.versions if listed.knows(section[0], v)]
    having = [v for v in versions if listed.has(*section, v) is not False]
    if not having:
        return None, ""
    package = chip.distribution or chip.module
    source = listed.versions[having[-1]]
    return say_span(package, span_of(having, versions), versions), source


def say_span(package: str, span: str, versions: Sequence[str]) -> Text:
    """A span of releases (`2.11-`, empty for all) in words."""
    if not span:
        return Text(EVERY, package=package, first=versions[0])
    if re.fullmatch(r"[\w.]+-", span):
        return Text(LATER, package=package, first=span[:-1])
    return Text(ONLY, package=package, span=span)

"""Runs the examples that a codemod carries: what it writes, what it only reports, what it keeps."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from joymigrate import chips
from joymigrate.chips import Chip
from joymigrate.model import Case
from joymigrate.rewrite.codemod import Codemod
from joymigrate.rewrite.patch import patches
from joymigrate.rewrite.project import scan


@dataclass(frozen=True, slots=True)
class ExampleCheck:
    """One example after its run: what is wrong, None when nothing is."""

    rule: str
    number: int  # from 1
    fault: str | None


def check(kind: type[Codemod], chip: Chip | None = None) -> list[ExampleCheck]:
    """Run every case of a codemod in a folder of its own; a codemod without one is a fault."""
    if not kind.CASES:
        return [ExampleCheck(kind.RULE, 0, "no CASES: give an example of what it changes")]
    target = chip or chips.target(None)
    return [
        ExampleCheck(kind.RULE, number, fault_of(kind, case, target))
        for number, case in enumerate(kind.CASES, 1)
    ]


def fault_of(kind: type[Codemod], case: Case, chip: Chip) -> str | None:
    """What is wrong with one case."""
    with tempfile.TemporaryDirectory(prefix="joymigrate-case-") as folder:
        root = Path(folder)
        for path, text in ((case.file, case.before), *case.files):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(text.encode())
        found = scan(
            [root],
            chip=chips.target(case.chip) if case.chip else chip,
            origin=chips.origin(),
            style=case.style,
            select=[kind.RULE],
            jobs=1,
            codemods=(kind,),
        )
        mine = [one for one in found.findings if one.path == case.file]
        written = {
            one.path.relative_to(found.root).as_posix(): one.after
            for one in patches(found, unsafe=True)
        }
    if case.keep:
        return f"found {len(mine)} sites in code to be left alone" if mine else None
    if not mine:
        return "found nothing"
    after = (written.get(case.file) or case.before.encode()).decode()
    wanted = case.before if case.after is None else case.after
    if after == wanted:
        return None
    reasons = "; ".join(str(one.reason) for one in mine if one.reason)
    return f"wrote {after!r} and not {wanted!r}" + (f" ({reasons})" if reasons else "")

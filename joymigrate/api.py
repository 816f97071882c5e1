"""joymigrate from Python: five functions whose results have the facts and a pandas `.frame()`.

    from joymigrate import api

    found = api.scan("project")
    found.frame().groupby("rule").size()
    api.coverage("run.jsonl").frame().query("status == 'missing'")

Each result is frozen, and `document` is the JSON document that the command of the same name writes.
Importing this module imports neither torch nor pandas. Errors of the user's are
`joymigrate.errors.JoyError`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    import pandas

    from joymigrate.model import Patch, Scan

__all__ = [
    "CoverageTable",
    "Judged",
    "Rehearsed",
    "Rewritten",
    "Scanned",
    "coverage",
    "rehearse",
    "rewrite",
    "scan",
    "verdict",
]  # fmt: skip

AnyPath: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True, slots=True)
class Document:
    """What a command found: its JSON document, and that document's table."""

    document: Mapping[str, Any]

    def frame(self) -> pandas.DataFrame:
        """The table: one row per finding, edit, operator, record or fallback."""
        from joymigrate.report import tables

        return tables.frame_of(self.document)


@dataclass(frozen=True, slots=True)
class Scanned(Document):
    """`scan`: the sites of a project that have to change. A row is a finding."""

    scan: Scan


@dataclass(frozen=True, slots=True)
class Rewritten(Document):
    """`rewrite`: what would change. A row is an edit."""

    patches: tuple[Patch, ...]

    def diff(self) -> bytes:
        """The change as a patch that `git apply` takes."""
        from joymigrate.rewrite.outcome import diff

        return diff(self.patches, Path(str(self.document["root"])))


@dataclass(frozen=True, slots=True)
class CoverageTable(Document):
    """`coverage`: what the chip does with each operator. A row is an operator."""

    share: Mapping[str, float | None]  # of ops, calls and time that the chip computes, 0 to 1


@dataclass(frozen=True, slots=True)
class Judged(Document):
    """`verdict`: two runs held against each other. A row is a record that was compared."""

    verdict: str  # pass, fail or inconclusive


@dataclass(frozen=True, slots=True)
class Rehearsed(Document):
    """`rehearse`: a run on the simulated chip. A row is an operator that went to the CPU."""

    exit_code: int  # the program's


def scan(*paths: AnyPath, to: str | None = None, **settings: Any) -> Scanned:
    """Find the sites of projects that have to change; no file is written.

    `to` names the chip. `settings` are keys of `[tool.joymigrate]`: style, select, ignore, exclude,
    follow_imports, jobs, chip_version, effort. They go before the configuration of the first path.
    """
    from joymigrate.report import json_, result

    found, effort = _scan(paths, to, settings)
    return Scanned(json_.document(result.build(found, effort)), found)


def rewrite(
    *paths: AnyPath,
    to: str | None = None,
    unsafe: bool = False,
    tests: bool = False,
    **settings: Any,
) -> Rewritten:
    """What `joymigrate rewrite` would change; no file is written.

    `unsafe` and `tests` are its options: also edits that need review, also tests that need the
    device.

    To apply it: `joymigrate rewrite` (one step that can be rolled back), or `git apply` with
    `diff()`.
    """
    from joymigrate import rewrite as rewriting
    from joymigrate.ledger import Ledger
    from joymigrate.report.rewriting import as_json
    from joymigrate.rewrite import device_tests
    from joymigrate.rewrite.outcome import RewriteOutcome

    found, _ = _scan(paths, to, settings)
    found = device_tests.include(found) if tests else found
    patches = tuple(p for p in rewriting.patches(found, unsafe=unsafe) if p.before != p.after)
    outcome = RewriteOutcome(found, patches, Ledger.of(Path(paths[0])))
    document = json.loads(as_json(outcome, wrote=False))
    return Rewritten(document, patches)


def coverage(*traces: AnyPath, to: str | None = None, version: str | None = None) -> CoverageTable:
    """Judge every operator of recordings (`joymigrate profile record`) on a chip.

    The same as `joymigrate profile coverage`, in a process of its own. Needs no torch.
    """
    words = ["profile", "coverage", *map(str, traces), "-q"]
    words += ["--to", to] if to else []
    words += ["--version", version] if version else []
    _, document = _command(words)
    return CoverageTable(document, dict(document["share"]))


def verdict(baseline: AnyPath, target: AnyPath, *, to: str | None = None) -> Judged:
    """Compare two recordings of `joymigrate verify record`: the same, or where they part.

    Needs the extra `torch`. The same as `joymigrate verify compare`, in a process of its own.
    """
    words = ["verify", "compare", str(baseline), str(target), *(["--to", to] if to else [])]
    code, document = _command(words)
    if code not in (0, 1, 3):
        raise JoyError(f"verify compare ended with exit code {code}")
    return Judged(document, str(document["verdict"]))


def rehearse(
    command: Sequence[str], *, to: str | None = None, devices: int = 8, migrate: bool = False
) -> Rehearsed:
    """Run a program on the simulated chip; its output goes where this process's goes.

    `migrate` rewrites it in memory as it loads. Needs torch, and once `joymigrate rehearse setup`.
    """
    options = ["--devices", str(devices), *(["--to", to] if to else [])]
    options += ["--migrate"] if migrate else []
    code, document = _command(["rehearse", *options], [*map(str, command)])
    return Rehearsed(document, code)


def _scan(
    paths: Sequence[AnyPath], to: str | None, settings: Mapping[str, Any]
) -> tuple[Scan, Mapping[str, Any]]:
    """A scan under the configuration of the first path, and its `effort`."""
    from joymigrate import chips, config
    from joymigrate import rewrite as rewriting
    from joymigrate.model import Style
    from joymigrate.rewrite.codemod_loader import load

    places = [Path(path) for path in paths]
    absent = [str(path) for path in places if not path.exists()]
    if absent or not places:
        what = f"no such file or folder: {', '.join(absent)}" if absent else "no path to scan"
        raise JoyError(what, help="check the path")
    chosen = config.load(places[0], {"to": to, **settings})
    found = rewriting.scan(
        places,
        chip=chips.target(chosen["to"]),
        origin=chips.origin(),
        style=Style(chosen["style"]),
        select=chosen["select"],
        ignore=chosen["ignore"],
        exclude=rewriting.Exclusion(tuple(chosen["exclude"]), chosen.folder("exclude")),
        follow_imports=chosen["follow_imports"],
        jobs=chosen["jobs"],
        chip_version=chosen["chip_version"],
        codemods=load(chosen["codemods"], chosen.folder("codemods")),
    )
    return found, chosen["effort"]


def _command(words: Sequence[str], program: Sequence[str] = ()) -> tuple[int, Mapping[str, Any]]:
    """Run a command of joymigrate as a process: its exit code and its JSON document."""
    with tempfile.TemporaryDirectory(prefix="joymigrate-api-") as folder:
        path = Path(folder) / "document.json"
        line = [sys.executable, "-m", "joymigrate", *words, "--format", "json", "-o", str(path)]
        done = subprocess.run(
            [*line, *(["--", *program] if program else [])],
            stderr=None if program else subprocess.PIPE,
            text=True,
            check=False,
        )
        if not path.is_file():
            said = (done.stderr or "").strip().removeprefix("error: ")
            raise JoyError(said or f"joymigrate {words[0]} wrote no document: see its error above")
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return done.returncode, found

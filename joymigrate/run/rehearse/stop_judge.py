"""What stopped a rehearsed program: the judge, asked with what a rehearsal knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from joymigrate.blame import signs
from joymigrate.blame.end_files import read_chain
from joymigrate.blame.exceptions import Raised
from joymigrate.blame.judge import judge
from joymigrate.blame.program import Program
from joymigrate.blame.stop import StopEvidence
from joymigrate.blame.vendor import load
from joymigrate.blame.watch import ENVIRONMENT
from joymigrate.ledger import Ledger
from joymigrate.ledger.rollback import find_undone
from joymigrate.run.rehearse.settings import RehearsalSettings

FOLDER = "stops"


def notes_folder(settings: RehearsalSettings, environment: Mapping[str, str]) -> Path:
    """Where the processes note what ends them: the caller's folder where it named one."""
    named = environment.get(ENVIRONMENT)
    return Path(named) if named else settings.session / FOLDER


def explain_stop(
    settings: RehearsalSettings,
    folder: Path,
    code: int,
    refusals: Sequence[Mapping[str, Any]],
    rewritten: bool,
) -> dict[str, Any] | None:
    """Why the program ended with an exit code that is not 0, by what it left in `folder`; None
    where it is 0. `rewritten`: with `--migrate`. How the unchanged program ends is not known."""
    if code == 0:
        return None
    program, chain = Program(Path.cwd()), read_chain(folder)
    evidence = StopEvidence(
        program,
        chain,
        code,
        refusals=refusals,
        versions={**list_versions(), "torch-npu": settings.package},
        vendor=load(settings.chip),
        rewritten=rewritten or (was_rewritten(program.project) and not spells(program, chain)),
    )
    return judge(evidence).document()


def was_rewritten(project: Path) -> bool:
    """Whether the ledger holds a rewrite of the files that nobody took back."""
    steps = Ledger.of(project).steps()
    gone = find_undone(steps)
    return any(step.kind == "rewrite" and step.id not in gone for step in steps)


def spells(program: Program, chain: Sequence[Raised]) -> bool:
    """Whether a line of the program on the way to the stop names the origin."""
    frames = [frame for one in chain for frame in one.frames if program.holds(frame.file)]
    return any(signs.WORD.search(frame.text) for frame in frames)


def list_versions() -> dict[str, str]:
    """The version of every installed distribution, by its name in small letters."""
    return {
        one.name.lower().replace("_", "-"): one.version
        for one in distributions()
        if one.name is not None
    }

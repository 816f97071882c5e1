"""Asks the ledger whether the standby may take traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joymigrate.run.serve.gateway.settings import UpstreamSettings


@dataclass(frozen=True, slots=True)
class Opinion:
    """`open` lets the ramp begin. `bad` keeps the standby from standing in, too."""

    open: bool
    reason: str
    bad: bool = False


def ask(standby: UpstreamSettings, folder: Path, *, unverified: bool = False) -> Opinion:
    """What the ledger says about the standby's model on its chip.

    Without `chip` the standby is taken for the default target. `folder` is where the search for
    the project begins when the standby names no ledger.
    """
    from joymigrate import chips
    from joymigrate.ledger import Ledger, Subject

    chip = chips.target(standby.chip).name
    if unverified:
        return Opinion(True, "--unverified: no verdict was asked for")
    if standby.model is None:
        return Opinion(
            False, f"'{standby.name}' names no model, so there is no verdict on {chip} to ask for"
        )
    start = folder / standby.ledger if standby.ledger else folder
    project = start.parent if start.name in (".joymigrate", "ledger.jsonl") else start
    project = project.parent if project.name == ".joymigrate" else project
    ledger = Ledger(project) if (project / ".joymigrate").is_dir() else Ledger.of(project)
    standing = ledger.verdict(Subject(standby.model), chip)
    refusal = standing.refusal()
    if refusal:
        return Opinion(False, refusal, bad=standing.verdict == "fail")
    return Opinion(True, f"'{standby.model}' passed on {chip}")

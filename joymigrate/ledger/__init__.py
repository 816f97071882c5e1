"""`.joymigrate/`: the steps that joymigrate took in a project, their artefacts, and the way back.

`ledger.jsonl` holds one line per step and is only appended to; `steps/<id>/` holds what the step
produced. A step that changed files carries the old contents (`before/`, by hash) and a manifest.
"""

from __future__ import annotations

from joymigrate.ledger.current import CurrentVerdicts
from joymigrate.ledger.ledger import Ledger, RolledBack, StepState
from joymigrate.ledger.place import FOLDER, project_root
from joymigrate.ledger.recovery import Recovered
from joymigrate.ledger.step import FileHash, Step, Subject, sha256, to_json
from joymigrate.ledger.tree import Change

__all__ = [
    "FOLDER",
    "Change",
    "CurrentVerdicts",
    "FileHash",
    "Ledger",
    "Recovered",
    "RolledBack",
    "Step",
    "StepState",
    "Subject",
    "project_root",
    "sha256",
    "to_json",
]

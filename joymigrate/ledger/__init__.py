"""`.joymigrate/`: the steps that joymigrate took in a project, their artefacts, and the way back.

`ledger.jsonl` holds one line per step and is only appended to; `steps/<id>/` holds what the step
produced. A step that changed files carries the old contents (`before/`, by hash) and a manifest.
"""

from __future__ import annotations

from joymigrate.ledger.book import Ledger, RolledBack, State
from joymigrate.ledger.place import FOLDER, project_root
from joymigrate.ledger.recovery import Recovered
from joymigrate.ledger.standing import Standing
from joymigrate.ledger.step import FileHash, Step, Subject, sha256, to_json
from joymigrate.ledger.tree import Change

__all__ = [
    "FOLDER",
    "Change",
    "FileHash",
    "Ledger",
    "Recovered",
    "RolledBack",
    "Standing",
    "State",
    "Step",
    "Subject",
    "project_root",
    "sha256",
    "to_json",
]

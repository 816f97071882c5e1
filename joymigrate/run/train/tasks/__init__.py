"""Tasks: what one record becomes, which model is trained, and what its loss and metrics are.

One file per task; its class stands in `TASK`, its name is the file's (`dpo.py` → `task: dpo`). A
file dropped into this folder is found without any list.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.tasks.task import NeedsSchema, Task, TaskContext

__all__ = ["Task", "TaskContext", "find", "names"]

# Tasks that read rows of features alone: `data.schema` chooses them in samples/task_names.py.
OF_FEATURES = ("generative", "multitask", "sequence")


def names() -> list[str]:
    """All tasks, from the files of this folder."""
    found = (path.stem for path in Path(__file__).parent.glob("*.py"))
    own = {n.replace("_", "-") for n in found if n not in ("__init__", "task") and n[0] != "_"}
    return sorted(own | set(OF_FEATURES))


def find(name: str) -> type[Task]:
    """The class of a task; `JoyError` with the nearest name when there is none."""
    wanted = name.replace("_", "-")
    if wanted not in names():
        raise JoyError(
            f"unknown task '{name}'.{did_you_mean(wanted, names())}",
            help=f"one of {', '.join(names())}",
        )
    if wanted in OF_FEATURES:
        return NeedsSchema
    module = importlib.import_module(f"{__name__}.{wanted.replace('-', '_')}")
    found: type[Task] = module.TASK
    return found

"""The tasks over features by their names."""

from __future__ import annotations

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.samples.generative import GenerativeTask
from joymigrate.run.train.samples.reward_learning import ItemDpo, ItemGrpo
from joymigrate.run.train.samples.tasks import (
    ClickTask,
    FeatureTask,
    ListTask,
    MultiTask,
    NextItemTask,
)

TASKS: dict[str, type[FeatureTask]] = {
    "ctr": ClickTask,
    "ranking": ListTask,
    "sequence": NextItemTask,
    "multitask": MultiTask,
    "generative": GenerativeTask,
    "grpo": ItemGrpo,
    "dpo": ItemDpo,
}


def find(name: str) -> type[FeatureTask]:
    """The task of a name; `JoyError` with the nearest one."""
    if name not in TASKS:
        raise JoyError(
            f"task '{name}' does not read features.{did_you_mean(name, TASKS)}",
            where="task",
            help=f"with data.schema one of {', '.join(TASKS)}",
        )
    return TASKS[name]

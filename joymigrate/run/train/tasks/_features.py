"""Tasks that only read features: their names stand among the others, with what they need."""

from __future__ import annotations

from typing import ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train.tasks.task import Task, TaskContext


class NeedsSchema(Task):
    """Says what is missing."""

    TOKENIZER: ClassVar[bool] = False
    SCHEMA: ClassVar[str] = "Parquet with a schema of features: data: {schema: features.yaml}"

    def __init__(self, context: TaskContext) -> None:
        raise JoyError(
            "this task reads features, and the data have no schema",
            where="data.schema",
            help="data: {train: clicks-*.parquet, schema: features.yaml}; "
            "see docs/how-to/samples.md",
        )

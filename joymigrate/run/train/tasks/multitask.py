"""Several labels at once; needs a schema of features (`data.schema`)."""

from __future__ import annotations

from joymigrate.run.train.tasks._features import NeedsSchema


class MultitaskRecords(NeedsSchema):
    """Trained from Parquet by the sample engine."""


TASK = MultitaskRecords

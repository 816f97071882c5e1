"""The next item of a sequence of events; needs a schema of features (`data.schema`)."""

from __future__ import annotations

from joymigrate.run.train.tasks._features import NeedsSchema


class SequenceRecords(NeedsSchema):
    """Trained from Parquet by the sample engine."""


TASK = SequenceRecords

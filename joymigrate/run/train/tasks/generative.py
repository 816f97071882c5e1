"""The next item, from a model that reads long sequences or writes semantic ids; needs a schema."""

from __future__ import annotations

from joymigrate.run.train.tasks._features import NeedsSchema


class GenerativeRecords(NeedsSchema):
    """Trained from Parquet by the sample engine."""


TASK = GenerativeRecords

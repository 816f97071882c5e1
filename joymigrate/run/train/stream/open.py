"""Opens a source of rows by its address."""

from __future__ import annotations

from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.train.samples.schema import FeatureSchema
from joymigrate.run.train.stream.kafka import KafkaTopic
from joymigrate.run.train.stream.sources import RedisStream, StreamSource, Tell, WatchedFolder


def open_source(place: str, schema: FeatureSchema, folder: Path, tell: Tell) -> StreamSource:
    """The source at `redis://HOST:PORT/DB#STREAM`, `kafka://HOST:PORT/TOPIC`, or a folder."""
    if place.startswith(("redis://", "rediss://", "unix://")):
        url, _, stream = place.partition("#")
        if not stream:
            raise JoyError("no stream is named", where=place, help="redis://HOST:PORT/DB#STREAM")
        return RedisStream(url, stream, schema, tell)
    if place.startswith("kafka://"):
        return KafkaTopic(place, schema)
    return WatchedFolder(folder / place, schema)

"""Kafka as a stream of rows, by kafka-python. Written from its documentation, never run here.

One partition per run: `kafka://HOST:PORT/TOPIC/PARTITION`. A message is one row as JSON.
"""

from __future__ import annotations

import importlib
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.samples.schema import FeatureSchema
from joymigrate.run.train.stream.sources import (
    ROW,
    Position,
    StreamRows,
    arrow_schema,
    record_of,
    refuse_entry,
    table_of,
)


class KafkaTopic:
    """Messages of one partition; the position is the offset behind the last one."""

    def __init__(self, place: str, schema: FeatureSchema) -> None:
        try:
            kafka = importlib.import_module("kafka")
        except ImportError:
            raise JoyError(
                "a Kafka topic needs kafka-python", where=place, help="pip install kafka-python"
            ) from None
        servers, _, rest = place.removeprefix("kafka://").partition("/")
        topic, _, partition = rest.partition("/")
        self.where, self.schema = place, schema
        self.part: Any = kafka.TopicPartition(topic, int(partition or 0))
        self.consumer: Any = kafka.KafkaConsumer(
            bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="none"
        )
        self.consumer.assign([self.part])

    def read(self, position: Position, count: int, wait_s: float) -> StreamRows | None:
        """Messages behind the position."""
        self.consumer.seek(self.part, position.get("offset", 0))
        found = self.consumer.poll(timeout_ms=int(wait_s * 1000), max_records=count)
        messages = found.get(self.part, [])
        if not messages:
            return None
        kinds = arrow_schema(self.schema)
        records: list[dict[str, Any]] = []
        lost: dict[str, int] = {}
        for message in messages:
            try:
                records.append(record_of({ROW: message.value}, kinds))
            except ValueError as error:
                refuse_entry(self.schema, error, f"{self.where} offset {message.offset}", lost)
        last = messages[-1].offset
        behind = {"offset": last + 1}
        return StreamRows(table_of(records, kinds), behind, f"{self.where} offset {last}", lost)

    def close(self) -> None:
        """Let the connection go."""
        self.consumer.close()

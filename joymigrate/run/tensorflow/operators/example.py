"""Reads tf.train.Example without TensorFlow, by protobuf alone.

Fields: tensorflow/core/example/example.proto and feature.proto. Names of features are bytes here:
files of other writers may have any.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

LISTS = {"bytes_list": "TYPE_BYTES", "float_list": "TYPE_FLOAT", "int64_list": "TYPE_INT64"}


@functools.cache
def example_type() -> Any:
    """The class of messages."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example", package="joymigrate", syntax="proto3")

    def add(message: str, *fields: tuple[str, str, bool], choice: bool = False) -> None:
        """A message with fields: name, type (or another message), repeated."""
        made: Any = file.message_type.add(name=message)
        if choice:
            made.oneof_decl.add(name="kind")
        for number, (name, kind, repeated) in enumerate(fields, 1):
            field = made.field.add(
                name=name, number=number, **({"oneof_index": 0} if choice else {})
            )
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            field.type = getattr(field, kind, field.TYPE_MESSAGE)
            if field.type == field.TYPE_MESSAGE:
                field.type_name = f".joymigrate.{kind}"

    for name, kind in LISTS.items():
        add(name, ("value", kind, True))
    add("Feature", *((name, name, False) for name in LISTS), choice=True)
    add("Entry", ("key", "TYPE_BYTES", False), ("value", "Feature", False))
    add("Features", ("feature", "Entry", True))
    add("Example", ("features", "Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("joymigrate.Example"))


def read_example(data: bytes) -> dict[bytes, Any]:
    """Features by name: a list of bytes, or a numpy array of float32 or int64.

    Raises ValueError for bytes that are no Example.
    """
    from google.protobuf.message import DecodeError

    try:
        made = example_type().FromString(bytes(data))
    except DecodeError as error:
        raise ValueError(f"the bytes are no protobuf message: {error}") from None
    return {entry.key: read_feature(entry.value) for entry in made.features.feature}


def read_feature(feature: Any) -> Any:
    """The values of one feature; an empty one has none."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return list(values)
    return np.array(values, np.float32 if kind == "float_list" else np.int64)


def write_example(features: dict[str, Any]) -> bytes:
    """An Example of lists: bytes or str, float, int."""
    made = example_type()()
    for name, given in features.items():
        entry = made.features.feature.add(key=name.encode())
        entry.value.SetInParent()  # TensorFlow reads no entry without a value, be it an empty one
        values = [one.encode() if isinstance(one, str) else one for one in given]
        if not values:
            continue
        if isinstance(values[0], bytes):
            entry.value.bytes_list.value.extend(values)
        elif isinstance(values[0], float | np.floating):
            entry.value.float_list.value.extend(map(float, values))
        else:
            entry.value.int64_list.value.extend(map(int, values))
    data: bytes = made.SerializeToString()
    return data

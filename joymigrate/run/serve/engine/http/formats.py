"""`response_format` and guided fields → a guide, or a refusal; never ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.guide import GrammarState, Guides
from joymigrate.run.serve.web.errors import HttpRefusal

ANY_OBJECT = {"type": "object"}
GUIDED = ("json", "regex", "choice", "grammar")


def read(fields: Fields, guides: Guides) -> Callable[[], GrammarState] | None:
    """The guide that a request asks for, or None."""
    asked = []
    given = fields.table_of("response_format")
    if given is not None:
        asked.append(response_format(Fields(given, "response_format."), guides))
    asked += [
        guide(kind, fields.raw(f"guided_{kind}"), f"guided_{kind}", guides) for kind in GUIDED
    ]
    outputs = fields.table_of("structured_outputs")
    if outputs is not None:
        inner = Fields(outputs, "structured_outputs.")
        for kind in GUIDED:
            name = f"structured_outputs.{kind}"
            asked.append(guide(kind, inner.raw(kind), name, guides))
        if inner.flag("json_object"):
            asked.append(guides.of_schema(ANY_OBJECT, "structured_outputs.json_object"))
        inner.close()
    for name in ("guided_decoding_backend", "guided_whitespace_pattern"):
        fields.refuse(name, "there is one way of guiding")
    found = [guide for guide in asked if guide is not None]
    if len(found) > 1:
        raise HttpRefusal(400, "one guide per request: response_format or one guided field")
    return found[0] if found else None


def response_format(fields: Fields, guides: Guides) -> Callable[[], GrammarState] | None:
    """`text`, `json_object`, `json_schema`."""
    kind = fields.required("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise HttpRefusal(
            400,
            f"response_format.type is text, json_object or json_schema, got {kind!r}",
            param="response_format.type",
        )
    made = None
    if kind == "json_object":
        made = guides.of_schema(ANY_OBJECT, "response_format")
    schema = fields.table_of("json_schema")
    if kind == "json_schema":
        inner = Fields(fields.required("json_schema"), "response_format.json_schema.")
        for name in ("name", "description"):
            inner.text(name)
        inner.flag("strict")
        made = guides.of_schema(inner.required("schema"), "response_format.json_schema.schema")
        inner.close()
    elif schema is not None:
        raise HttpRefusal(400, f"json_schema goes with type json_schema, not {kind}",
                          param="response_format.json_schema")  # fmt: skip
    fields.close()
    return made


def guide(kind: str, value: Any, param: str, guides: Guides) -> Callable[[], GrammarState] | None:
    """One of vLLM's guided fields."""
    if value is None:
        return None
    if kind == "json":
        return guides.of_schema(load_schema(value, param), param)
    if kind == "choice":
        good = isinstance(value, list) and value and all(isinstance(one, str) for one in value)
        if not good:
            raise HttpRefusal(
                400, f"{param} is a list of strings", code="invalid_type", param=param
            )
        return guides.of_choice(tuple(value), param)
    if not isinstance(value, str):
        raise HttpRefusal(400, f"{param} is a string", code="invalid_type", param=param)
    return guides.of_regex(value, param) if kind == "regex" else guides.of_lark(value, param)


def load_schema(value: Any, param: str) -> Any:
    """A schema given as an object or as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise HttpRefusal(400, f"{param} is no JSON", param=param) from None

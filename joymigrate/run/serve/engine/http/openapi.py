"""The OpenAPI description of what the server takes and gives; openapi.yaml has its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joymigrate import __version__
from joymigrate.chips import read_yaml
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.web.messages import Ask, Reply, data

Schema = dict[str, Any]
PARTS = Path(__file__).parent / "openapi.yaml"
TEXT: Schema = {"type": "string"}
NULLABLE: Schema = {"type": ["string", "null"]}
ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": TEXT, "type": TEXT, "param": NULLABLE, "code": NULLABLE},
        }
    },
}


def operation(path: str, does: str, body: Schema | None, required: list[str]) -> Schema:
    """One operation."""
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    answers: Schema = {"200": {"description": "done"}, "default": {"description": "error", **error}}
    made: Schema = {"summary": does, "operationId": path.strip("/"), "responses": answers}
    if "{model}" in path:
        made["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": TEXT}]
    if body is not None:
        schema: Schema = {"type": "object", "properties": body}
        if required:
            schema["required"] = required
        made["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": schema}},
        }
    return made


def describe(service: EngineService) -> Schema:
    """The whole description."""
    parts: Schema = read_yaml(PARTS)
    paths: Schema = {}
    for path, row in parts["paths"].items():
        body = row.get("body")
        body = parts[body] if isinstance(body, str) else body
        made = operation(path, row["does"], body, row.get("required", []))
        paths[path] = {row["method"]: made}
    made = {
        "openapi": "3.1.0",
        "info": {"title": f"joymigrate: {service.name}", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    if service.keys.keys:
        made["security"] = [{"key": []}]
    return made


async def reply(service: EngineService, ask: Ask) -> Reply:
    """GET /openapi.json."""
    return data(describe(service))

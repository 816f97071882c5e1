"""The OpenAPI description of what the server takes and gives."""

from __future__ import annotations

from typing import Any

from joymigrate import __version__
from joymigrate.run.serve.engine.http.service import Service
from joymigrate.run.serve.engine.http.triton.metadata import INPUTS
from joymigrate.run.serve.web.messages import Reply, data

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
IDS: Schema = {"type": "array", "items": WHOLE}


def number(low: float, high: float, default: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high, "default": default}


SAMPLING: Schema = {
    "model": TEXT,
    "stream": {**FLAG, "default": False},
    "stream_options": {
        "type": "object",
        "properties": {"include_usage": FLAG, "continuous_usage_stats": FLAG},
    },
    "max_tokens": {"type": ["integer", "null"], "minimum": 0},
    "min_tokens": {**WHOLE, "minimum": 0, "default": 0},
    "temperature": number(0, 100, 1),
    "top_p": number(0, 1, 1),
    "top_k": {**WHOLE, "minimum": -1, "default": 0},
    "min_p": number(0, 1, 0),
    "presence_penalty": number(-2, 2, 0),
    "frequency_penalty": number(-2, 2, 0),
    "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 100, "default": 1},
    "n": {**WHOLE, "minimum": 1, "maximum": 128, "default": 1},
    "use_beam_search": {**FLAG, "default": False},
    "length_penalty": number(-100, 100, 1),
    "early_stopping": {**FLAG, "default": False},
    "seed": WHOLE,
    "stop": {"oneOf": [TEXT, {"type": "array", "items": TEXT}]},
    "stop_token_ids": IDS,
    "include_stop_str_in_output": FLAG,
    "ignore_eos": {**FLAG, "default": False},
    "skip_special_tokens": {**FLAG, "default": True},
    "logit_bias": {"type": "object", "additionalProperties": number(-100, 100, 0)},
    "prompt_logprobs": {**WHOLE, "minimum": 0},
    "return_token_ids": {**FLAG, "default": False},
    "truncate_prompt_tokens": {**WHOLE, "minimum": 1},
    "response_format": {
        "type": "object",
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": OBJECT,
        },
    },
    "guided_json": {"oneOf": [OBJECT, TEXT]},
    "guided_regex": TEXT,
    "guided_choice": {"type": "array", "items": TEXT},
    "guided_grammar": TEXT,
    "structured_outputs": OBJECT,
}
CHAT: Schema = {
    **SAMPLING,
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
                "content": {"oneOf": [TEXT, {"type": "array", "items": OBJECT}, {"type": "null"}]},
                "name": TEXT,
                "tool_call_id": TEXT,
                "tool_calls": {"type": "array", "items": OBJECT},
            },
        },
    },
    "max_completion_tokens": {**WHOLE, "minimum": 1},
    "logprobs": {**FLAG, "default": False},
    "top_logprobs": {**WHOLE, "minimum": 0, "maximum": 20},
    "tools": {"type": "array", "items": OBJECT},
    "tool_choice": {"oneOf": [{"enum": ["auto", "none", "required"]}, OBJECT]},
    "parallel_tool_calls": {**FLAG, "default": True},
    "continue_final_message": {**FLAG, "default": False},
    "add_generation_prompt": {**FLAG, "default": True},
    "chat_template_kwargs": OBJECT,
}
COMPLETION: Schema = {
    **SAMPLING,
    "prompt": {
        "oneOf": [TEXT, {"type": "array", "items": TEXT}, IDS, {"type": "array", "items": IDS}]
    },
    "max_tokens": {"type": ["integer", "null"], "minimum": 0, "default": 16},
    "logprobs": {**WHOLE, "minimum": 0},
    "echo": {**FLAG, "default": False},
}
RESPONSE: Schema = {
    "model": TEXT,
    "input": {"oneOf": [TEXT, {"type": "array", "minItems": 1, "items": OBJECT}]},
    "instructions": {"type": ["string", "null"]},
    "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
    "stream": {**FLAG, "default": False},
    "temperature": number(0, 100, 1),
    "top_p": number(0, 1, 1),
    "tools": {"type": "array", "items": OBJECT},
    "tool_choice": {"oneOf": [{"enum": ["auto", "none", "required"]}, OBJECT]},
    "parallel_tool_calls": {**FLAG, "default": True},
    "text": OBJECT,
    "reasoning": OBJECT,
    "include": {"type": "array", "items": TEXT},
    "top_logprobs": {**WHOLE, "minimum": 0, "maximum": 20},
}
EMBEDDING: Schema = {
    "model": TEXT,
    "input": COMPLETION["prompt"],
    "encoding_format": {"enum": ["float", "base64"]},
    "dimensions": {**WHOLE, "minimum": 1},
}
LISTED: Schema = {"type": "array", "minItems": 1, "items": {"oneOf": [TEXT, OBJECT]}}
SCORE: Schema = {
    "model": TEXT,
    "text_1": {"oneOf": [TEXT, LISTED]},
    "text_2": {"oneOf": [TEXT, LISTED]},
    "use_activation": {**FLAG, "default": True},
}
RERANK: Schema = {
    "model": TEXT,
    "query": TEXT,
    "documents": LISTED,
    "top_n": {**WHOLE, "minimum": 0},
    "return_documents": {**FLAG, "default": True},
    "use_activation": {**FLAG, "default": True},
}
TENSORS: Schema = {
    "id": TEXT,
    "parameters": OBJECT,
    "inputs": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name", "shape", "datatype"],
            "properties": {
                "name": {"enum": [name for name, _, _ in INPUTS]},
                "shape": IDS,
                "datatype": TEXT,
                "data": {"type": "array"},
                "parameters": OBJECT,
            },
        },
    },
    "outputs": {"type": "array", "items": OBJECT},
}
ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
# path: method, what it does, the body's properties, those that must be there
PATHS: tuple[tuple[str, str, str, Schema | None, list[str]], ...] = (
    ("/health", "get", "200 while the engine works", None, []),
    ("/ready", "get", "200 while requests are taken", None, []),
    ("/metrics", "get", "Metrics in Prometheus' form", None, []),
    ("/version", "get", "The server's version", None, []),
    ("/v1/models", "get", "The models", None, []),
    ("/v1/models/{model}", "get", "One model", None, []),
    ("/v1/completions", "post", "Continue a text", COMPLETION, ["prompt"]),
    ("/v1/chat/completions", "post", "Answer in a conversation", CHAT, ["messages"]),
    ("/v1/responses", "post", "Answer, in OpenAI's newer form", RESPONSE, ["input"]),
    ("/v1/embeddings", "post", "Vectors of texts, where the model has them", EMBEDDING, ["input"]),
    ("/v1/score", "post", "How well texts fit", SCORE, ["text_1", "text_2"]),
    ("/v1/rerank", "post", "Documents, the best first", RERANK, ["query", "documents"]),
    ("/tokenize", "post", "Ids of a text", {"prompt": TEXT, "messages": CHAT["messages"]}, []),
    ("/detokenize", "post", "The text of ids", {"tokens": IDS}, ["tokens"]),
    ("/v2", "get", "Triton: the server", None, []),
    ("/v2/health/live", "get", "Triton: 200 while the process lives", None, []),
    ("/v2/health/ready", "get", "Triton: 200 while requests are taken", None, []),
    ("/v2/repository/index", "post", "Triton: the models", {"ready": FLAG}, []),
    ("/v2/models/{model}", "get", "Triton: metadata", None, []),
    ("/v2/models/{model}/ready", "get", "Triton: 200 when ready", None, []),
    ("/v2/models/{model}/config", "get", "Triton: configuration", None, []),
    ("/v2/models/{model}/stats", "get", "Triton: statistics", None, []),
    ("/v2/models/{model}/infer", "post", "Triton: tensors in, tensors out", TENSORS, ["inputs"]),
    ("/v2/models/{model}/generate", "post", "Triton: text in, text out",
     {"text_input": TEXT, "parameters": OBJECT}, ["text_input"]),
    ("/v2/models/{model}/generate_stream", "post", "Triton: text in, events out",
     {"text_input": TEXT, "parameters": OBJECT}, ["text_input"]),
)  # fmt: skip


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


def describe(service: Service) -> Schema:
    """The whole description."""
    paths: Schema = {}
    for path, method, does, body, required in PATHS:
        paths.setdefault(path, {})[method] = operation(path, does, body, required)
    made: Schema = {
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


def reply(service: Service) -> Reply:
    """GET /openapi.json."""
    return data(describe(service))

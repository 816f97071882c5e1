"""/v1/embeddings, where the engine has them."""

from __future__ import annotations

import base64
from typing import Any

from joymigrate.run.serve.engine.http import slow_reads
from joymigrate.run.serve.engine.http.completions import check_lengths, encode, prompts
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Ask, Reply, data


async def answer(service: EngineService, ask: Ask) -> Reply:
    """Answer POST /v1/embeddings."""
    embed = service.engine.embed
    if embed is None:
        raise HttpRefusal(
            400, f"'{service.name}' makes text, not embeddings", code="unsupported_model",
            param="model",
        )  # fmt: skip
    fields = Fields(ask.json())
    model = service.model(fields.raw("model"))
    given = prompts(fields.required("input"), "input")
    form = fields.text("encoding_format", "float")
    if form not in ("float", "base64"):
        raise HttpRefusal(400, f"encoding_format is float or base64, got {form!r}",
                          param="encoding_format")  # fmt: skip
    size = fields.whole("dimensions", low=1)
    fields.close()
    ids = await slow_reads.read(
        ask, lambda: [encode(service, prompt, True, "input") for prompt in given]
    )
    check_lengths(service, ids, "input")
    vectors: list[list[float]] = await embed(ids, service.adapter(model))
    if size is not None and vectors and size > len(vectors[0]):
        raise HttpRefusal(400, f"dimensions is at most {len(vectors[0])}", param="dimensions")
    used = sum(len(one) for one in ids)
    ask.notes.update(model=model, prompt_tokens=used)
    service.meters.prompt.add(used)
    return data(
        {
            "object": "list",
            "model": model,
            "data": [
                {
                    "object": "embedding",
                    "index": i,
                    "embedding": encode_vector(shorten(v, size), form),
                }
                for i, v in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }
    )


def shorten(vector: list[float], size: int | None) -> list[float]:
    """The first `size` values, of length 1 again."""
    if size is None or size >= len(vector):
        return vector
    kept = vector[:size]
    length = sum(value * value for value in kept) ** 0.5 or 1.0
    return [value / length for value in kept]


def encode_vector(vector: list[float], form: str) -> Any:
    """Numbers as a list, or as base64 of little-endian float32."""
    if form == "float":
        return vector
    import numpy

    return base64.b64encode(numpy.array(vector, "<f4").tobytes()).decode()

"""/v1/score and /v1/rerank: how well texts fit, by a model of pairs or by embeddings of each.

The forms are those of vLLM, and of Jina's and Cohere's rerankers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from joymigrate.run.serve.engine.http import slow_reads
from joymigrate.run.serve.engine.http.completions import MAX_PROMPTS, check_lengths
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.evidence.accounts import cosine
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Ask, Reply, data


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """Texts to compare, and whether their scores go through the model's activation."""

    model: str
    left: list[str]
    right: list[str]
    squeezed: bool


async def score(service: EngineService, ask: Ask) -> Reply:
    """Answer POST /v1/score: one text with each of several, or text by text."""
    fields = Fields(ask.json())
    model = service.model(fields.raw("model"))
    left, right = texts(fields, "text_1"), texts(fields, "text_2")
    if len(left) not in (1, len(right)):
        raise HttpRefusal(400, f"text_1 is one text, or as many as text_2: {len(left)} and "
                          f"{len(right)}", param="text_1")  # fmt: skip
    squeezed = fields.flag("use_activation", True)
    fields.close()
    left = left if len(left) == len(right) else left * len(right)
    found, used = await score_pairs(service, ask, ScorePairs(model, left, right, squeezed))
    rows = [{"index": i, "object": "score", "score": one} for i, one in enumerate(found)]
    return data(
        {
            "id": f"score-{ask.id}",
            "object": "list",
            "created": service.stamp(),
            "model": model,
            "data": rows,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }
    )


async def rerank(service: EngineService, ask: Ask) -> Reply:
    """Answer POST /v1/rerank: documents, the best first."""
    fields = Fields(ask.json())
    model = service.model(fields.raw("model"))
    query = fields.required("query")
    if not isinstance(query, str):
        raise fields.wrong("query", "a string", query)
    documents = texts(fields, "documents")
    most = fields.whole("top_n", low=0)
    given = fields.flag("return_documents", True)
    squeezed = fields.flag("use_activation", True)
    fields.close()
    pairs = ScorePairs(model, [query] * len(documents), documents, squeezed)
    found, used = await score_pairs(service, ask, pairs)
    order = sorted(range(len(found)), key=lambda i: (-found[i], i))
    results = [
        {
            "index": i,
            "relevance_score": found[i],
            **({"document": {"text": documents[i]}} if given else {}),
        }
        for i in order[: most or len(order)]
    ]
    return data(
        {
            "id": f"rerank-{ask.id}",
            "model": model,
            "results": results,
            "usage": {"total_tokens": used},
        }
    )


def texts(fields: Fields, name: str) -> list[str]:
    """A text, or a list of texts or of `{text: …}`."""
    raw = fields.required(name)
    listed = [raw] if isinstance(raw, str) else raw
    if not isinstance(listed, list) or not listed:
        raise fields.wrong(name, "a text or a list of texts", raw)
    if len(listed) > MAX_PROMPTS:
        raise HttpRefusal(400, f"{name} has at most {MAX_PROMPTS} texts", param=name)
    found = [one.get("text") if isinstance(one, dict) else one for one in listed]
    kept = [one for one in found if isinstance(one, str)]
    if len(kept) < len(found):
        raise fields.wrong(name, "a text or a list of texts", raw)
    return kept


async def score_pairs(
    service: EngineService, ask: Ask, pairs: ScorePairs
) -> tuple[list[float], int]:
    """The score of each pair, and how many tokens were read."""
    pooling = service.engine.pooling
    if pooling is None:
        raise HttpRefusal(400, f"'{service.name}' makes text, not scores", code="unsupported_model",
                          param="model")  # fmt: skip
    adapter = service.adapter(pairs.model)
    if pooling.head is not None:
        ids = await slow_reads.read(ask, lambda: together(service, pairs))
        check_lengths(service, ids, "model")
        raw = [row[0] for row in await service.engine.embeddings(ids, adapter)]
        found = [logistic(x) for x in raw] if pooling.squeezed and pairs.squeezed else raw
    else:
        every = list(dict.fromkeys((*pairs.left, *pairs.right)))
        ids = await slow_reads.read(ask, lambda: [service.words.encode(text) for text in every])
        check_lengths(service, ids, "model")
        vectors = dict(zip(every, await service.engine.embeddings(ids, adapter), strict=True))
        sides = zip(pairs.left, pairs.right, strict=True)
        found = [cosine(vectors[one], vectors[other], 0.0) for one, other in sides]
    used = sum(len(one) for one in ids)
    ask.notes.update(model=pairs.model, prompt_tokens=used)
    service.meters.prompt.add(used)
    return found, used


def together(service: EngineService, pairs: ScorePairs) -> list[list[int]]:
    """The ids of pairs, as the tokenizer puts two texts together."""
    hf: Any = service.words.tokens.hf
    if hf is None:
        raise HttpRefusal(400, "this model has no tokenizer, so it reads no texts", param="model")
    sides = zip(pairs.left, pairs.right, strict=True)
    return [list(hf(one, text_pair=other)["input_ids"]) for one, other in sides]


def logistic(x: float) -> float:
    """1 / (1 + e⁻ˣ), for any x."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))

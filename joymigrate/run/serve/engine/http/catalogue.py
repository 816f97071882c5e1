"""/v1/models, /tokenize, /detokenize, /version, health: what is here."""

from __future__ import annotations

from typing import Any

from joymigrate import __version__
from joymigrate.run.serve.engine.http import conversation, slow_reads
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Ask, Reply, data


async def models(service: EngineService, ask: Ask) -> Reply:
    """GET /v1/models."""
    return data(
        {
            "object": "list",
            "data": [card(service, name) for name in (*service.names, *service.adapters)],
        }
    )


async def model(service: EngineService, ask: Ask, name: str) -> Reply:
    """GET /v1/models/NAME."""
    return data(card(service, service.model(name)))


def card(service: EngineService, name: str) -> dict[str, Any]:
    """One model, with how it runs."""
    info = service.info
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "joymigrate",
        "root": service.name,
        "parent": service.name if name in service.adapters else None,
        "max_model_len": info.max_model_len,
        "vocabulary": service.engine.vocabulary,
        "dtype": info.dtype,
        "device": info.device,
        "quantisation": info.quantisation,
        "rehearsal": info.rehearsal,
    }


async def health(service: EngineService, ask: Ask) -> Reply:
    """GET /health: 200 while the engine works (also while it drains)."""
    trouble = service.trouble()
    if trouble is not None and (not service.draining or service.engine.failed is not None):
        raise HttpRefusal(503, trouble)
    return data({"status": "ok" if trouble is None else "draining"})


async def ready(service: EngineService, ask: Ask) -> Reply:
    """GET /ready: 200 while requests are taken."""
    trouble = service.trouble()
    if trouble is not None:
        raise HttpRefusal(503, trouble)
    stats = service.engine.stats()
    return data({"status": "ready", "running": stats.running, "waiting": stats.waiting})


async def version(service: EngineService, ask: Ask) -> Reply:
    """GET /version."""
    return data({"version": __version__})


async def metrics(service: EngineService, ask: Ask) -> Reply:
    """GET /metrics."""
    return Reply(200, service.meters.text(), "text/plain; version=0.0.4; charset=utf-8")


async def tokenize(service: EngineService, ask: Ask) -> Reply:
    """POST /tokenize: the ids of a prompt, or of messages after the chat template."""
    fields = Fields(ask.json())
    service.model(fields.raw("model"))
    prompt, messages = fields.text("prompt"), fields.raw("messages")
    if (prompt is None) == (messages is None):
        raise HttpRefusal(400, "give a prompt or messages", param="prompt")
    special = fields.flag("add_special_tokens", prompt is not None)
    strings = fields.flag("return_token_strs")
    if prompt is None:
        talk = conversation.read(messages, vision=False, developer=False)
        prompt = service.templates.render(
            talk.messages, generation_prompt=fields.flag("add_generation_prompt", True)
        )
    fields.close()
    ids = await slow_reads.read(ask, lambda: service.words.encode(prompt, special=special))
    made: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": service.info.max_model_len,
        "tokens": ids,
    }
    if strings:
        made["token_strs"] = [service.words.show(token)[0] for token in ids]
    return data(made)


async def detokenize(service: EngineService, ask: Ask) -> Reply:
    """POST /detokenize: the text of ids."""
    fields = Fields(ask.json())
    service.model(fields.raw("model"))
    fields.required("tokens")
    ids = fields.wholes("tokens")
    fields.close()
    service.words.check(ids, "tokens")
    return data({"prompt": service.words.decode(ids)})

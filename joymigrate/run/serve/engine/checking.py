"""Which requests can never run on an engine."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.types import Request, Resume


class EngineLimits(Protocol):
    """What an engine says of itself; requests are held against it."""

    model: Any
    max_model_len: int
    adapters: Any
    scheduler: Any
    options: Any

    @property
    def texts(self) -> Container[str]:
        """The requests that run or wait, by id."""


def check(engine: EngineLimits, request: Request) -> None:
    """Raise `JoyError` for a request that can never run here."""
    count = len(request.prompt)
    if not count:
        raise JoyError("the prompt is empty: it has no token", where="prompt")
    check_tokens(engine, request.prompt, "prompt")
    if count + (1 if request.sampling.max_tokens != 0 else 0) > engine.max_model_len:
        raise JoyError(
            f"the prompt has {count} tokens, the model takes {engine.max_model_len} with the "
            "output",
            where="prompt",
            help="--max-model-len, more memory for keys and values, or a shorter prompt",
        )
    if getattr(engine.model, "scores", False) and request.pooling is None:
        raise JoyError("this model scores texts, it makes none", where="model")
    if request.images and not hasattr(engine.model, "look"):
        raise JoyError(f"{engine.model.family} does not read images", where="images")
    engine.adapters.number(request.adapter)
    if request.id in engine.texts:
        raise JoyError(f"the request id '{request.id}' is in use", where="id")
    if request.resume and len(request.resume) != request.sampling.n:
        raise JoyError(
            f"{len(request.resume)} texts are resumed where {request.sampling.n} are asked for",
            where="resume",
        )
    for resume in request.resume:
        if resume is not None:
            check_resume(engine, request, resume)
    sampling = request.sampling
    check_tokens(engine, (*sampling.logit_bias, *sampling.stop_token_ids), "logit_bias")
    full = len(engine.scheduler.waiting) >= engine.options.max_waiting
    if full and request.pooling is None:  # the vectors of one request's texts wait together
        raise JoyError(f"{engine.options.max_waiting} requests wait already", where="queue")


def check_tokens(engine: EngineLimits, ids: Iterable[int], where: str) -> None:
    """Raise `JoyError` for a token that the model does not know."""
    size = engine.model.vocabulary
    outside = next((token for token in ids if not 0 <= token < size), None)
    if outside is not None:
        raise JoyError(f"token {outside} is outside the vocabulary of {size}", where=where)


def check_resume(engine: EngineLimits, request: Request, resume: Resume) -> None:
    """Raise `JoyError` for tokens that no engine has made for this request."""
    check_tokens(engine, resume.ids, "resume")
    most = request.sampling.max_tokens
    if most is not None and len(resume.ids) > most:
        raise JoyError("a text of at most max_tokens is resumed", where="resume")
    if len(request.prompt) + len(resume.ids) > engine.max_model_len:
        raise JoyError(
            f"{len(request.prompt)} tokens of the prompt and {len(resume.ids)} of the output "
            f"are more than the model's {engine.max_model_len}",
            where="resume",
        )

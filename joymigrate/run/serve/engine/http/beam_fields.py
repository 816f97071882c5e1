"""The fields of beam search → `BeamOptions`."""

from __future__ import annotations

from typing import Any

from joymigrate.run.serve.engine.beams import BeamOptions, ends_of, most_width
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.types import Sampling
from joymigrate.run.serve.web.errors import HttpRefusal

NEUTRAL = Sampling()
CHANGES = ("min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty",
           "logit_bias", "logprobs", "prompt_logprobs", "stop")  # fmt: skip


def read(
    fields: Fields, engine: Any, sampling: Sampling, *, others: dict[str, bool]
) -> BeamOptions | None:
    """`BeamOptions` where a request asks for beam search, else None; raises `HttpRefusal`.

    `engine` is the `AsyncEngine`. `others` are things by name that do not go with a search, and
    whether they are there.
    """
    wanted = fields.flag("use_beam_search")
    if not wanted:
        fields.refuse("length_penalty", "it needs use_beam_search: true", unless=(1, 1.0))
        fields.refuse("early_stopping", "it needs use_beam_search: true", unless=(False,))
        return None
    named = {name: getattr(sampling, name) != getattr(NEUTRAL, name) for name in CHANGES}
    for name, there in (named | others).items():
        if there:
            raise HttpRefusal(
                400,
                f"{name} does not go with use_beam_search",
                code="unsupported_parameter",
                param=name,
            )
    most = most_width(len(ends_of(engine, sampling)))
    if sampling.n > most:
        raise HttpRefusal(
            400, f"with use_beam_search n is the width, at most {most} here", param="n"
        )
    return BeamOptions(
        sampling.n,
        fields.number("length_penalty", 1.0, low=-100, high=100),
        fields.flag("early_stopping"),
    )

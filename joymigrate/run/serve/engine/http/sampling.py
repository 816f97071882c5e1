"""The fields of a request that say how tokens are chosen → `Sampling`."""

from __future__ import annotations

from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.http.defaults import Defaults
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.types import Sampling
from joymigrate.run.serve.web.errors import HttpRefusal

MAX_CHOICES = 128
MAX_STOPS = 64
MAX_SEED = 2**63
MAX_WHOLE = 2**31 - 1


def read(
    fields: Fields,
    defaults: Defaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    n: int,
) -> Sampling:
    """`Sampling` from the fields that chat and completions share, and for those that are absent
    from the defaults; raises `HttpRefusal`."""
    stops = fields.words("stop")
    if len(stops) > MAX_STOPS:
        raise HttpRefusal(400, f"stop has at most {MAX_STOPS} strings", param="stop")
    refuse_what_is_missing(fields)
    ignore_eos = fields.flag("ignore_eos")
    ends = () if ignore_eos else defaults.ends
    try:
        return Sampling(
            max_tokens=max_tokens,
            min_tokens=fields.whole("min_tokens", 0, low=0, high=MAX_WHOLE) or 0,
            temperature=fields.number("temperature", defaults.temperature),
            top_k=max(0, fields.whole("top_k", defaults.top_k, low=-1, high=MAX_WHOLE) or 0),
            top_p=fields.number("top_p", defaults.top_p, low=0, high=1) or tiny(),
            min_p=fields.number("min_p", defaults.min_p),
            repetition_penalty=fields.number("repetition_penalty", defaults.repetition_penalty),
            presence_penalty=fields.number("presence_penalty", defaults.presence_penalty),
            frequency_penalty=fields.number("frequency_penalty", defaults.frequency_penalty),
            seed=fields.whole("seed", low=-MAX_SEED, high=2**64 - 1),
            logit_bias=bias(fields.table_of("logit_bias")),
            logprobs=logprobs,
            prompt_logprobs=fields.whole("prompt_logprobs"),
            stop=stops,
            stop_token_ids=(*fields.wholes("stop_token_ids"), *ends),
            include_stop=fields.flag("include_stop_str_in_output"),
            ignore_eos=ignore_eos,
            skip_special=fields.flag("skip_special_tokens", True),
            n=n,
        )
    except JoyError as error:
        raise HttpRefusal(400, error.what, param=error.where) from None


def tiny() -> float:
    """`top_p: 0` means: only the most probable token."""
    return 1e-9


def refuse_what_is_missing(fields: Fields) -> None:
    """Other servers' fields that would change the answer, unless they say the usual thing."""
    fields.refuse("spaces_between_special_tokens", "text is decoded as one", unless=(True,))
    fields.refuse("allowed_token_ids", "use logit_bias or guided_choice", unless=([],))
    fields.refuse("bad_words", "use logit_bias with -100", unless=([],))
    fields.refuse("logits_processors", "code is not run", unless=([],))
    fields.refuse("kv_transfer_params", "prefill and decode run in one process", unless=({},))
    fields.refuse("return_tokens_as_token_ids", "use return_token_ids", unless=(False,))
    fields.refuse("thinking_token_budget", "output is not split", unless=())


def bias(table: dict[str, Any] | None) -> dict[int, float]:
    """`{"token id": bias}`, ids as JSON keys are strings."""
    found = {}
    for key, value in (table or {}).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not key.isascii() or not key.isdigit() or not number or not -100 <= value <= 100:
            raise HttpRefusal(
                400,
                f"logit_bias maps token ids to numbers from -100 to 100, got {key!r}: {value!r}",
                param="logit_bias",
            )
        found[int(key)] = float(value)
    return found


def count(fields: Fields) -> int:
    """`n`; `best_of` may only say the same."""
    n = fields.whole("n", 1, low=1, high=MAX_CHOICES) or 1
    fields.refuse("best_of", "ask for n choices and choose", unless=(n,))
    return n

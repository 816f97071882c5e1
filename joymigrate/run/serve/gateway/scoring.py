"""Teacher-forced scoring: how likely does the primary find what the standby said?

Two chips part at a near tie, and are both right; a standby that is wrong says what the primary
finds unlikely. One prefill tells (`prompt_logprobs`), also of token 5,000. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.web.apis import CHAT, TEXT

FAR_GAP = 1.0  # nats below the likeliest token, on average: a near tie is below 0.1
KEPT = ("model", "tools", "chat_template_kwargs", "reasoning_effort")


def scoring_body(call: GatewayCall, text: str) -> dict[str, Any] | None:
    """The request by which a server scores `text` as an answer; None: this API has none."""
    body = call.parsed or {}
    asked = {name: body[name] for name in KEPT if name in body}
    asked |= {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    if call.api is TEXT and isinstance(body.get("prompt"), str):
        return {**asked, "prompt": body["prompt"] + text}
    if call.api is CHAT and isinstance(body.get("messages"), list):
        said = {"role": "assistant", "content": text}
        more = {"add_generation_prompt": False, "continue_final_message": True}
        return {**asked, **more, "messages": [*body["messages"], said]}
    return None


def mean_gap(answer: Mapping[str, Any], length: int) -> float | None:
    """How far the tokens of the last `length` characters lie below the likeliest ones, in nats;
    None: the server did not say."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    rows = answer.get("prompt_logprobs")
    if rows is None and isinstance(first, dict):
        rows = first.get("prompt_logprobs")
    gaps: list[float] = []
    for row in reversed(rows if isinstance(rows, list) else []):
        if length <= 0 or not isinstance(row, dict) or not row:
            break
        tokens = [one for one in row.values() if isinstance(one, dict)]
        values = [one["logprob"] for one in tokens if isinstance(one.get("logprob"), int | float)]
        if not values or len(values) < len(tokens):
            return None
        rank = tokens[0].get("rank")  # the prompt's own token stands first
        best = max(values)
        if best == values[0] and isinstance(rank, int) and rank > 1:
            best = max(best, rest_of(best))  # the likeliest token was left out
        gaps.append(best - values[0])
        length -= len(str(tokens[0].get("decoded_token") or ""))
    return sum(gaps) / len(gaps) if gaps else None


def rest_of(logprob: float) -> float:
    """The most that another token may have beside one, as a logarithm."""
    return math.log1p(-math.exp(logprob)) if logprob < 0 else -math.inf

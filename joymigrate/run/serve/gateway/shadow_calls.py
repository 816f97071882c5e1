"""Which requests a shadow may repeat, and in which form."""

from __future__ import annotations

from dataclasses import replace

import orjson

from joymigrate.run.serve.evidence.accounts import AnswerFigures
from joymigrate.run.serve.gateway.account import echoed_in
from joymigrate.run.serve.gateway.calls import GatewayCall

# What makes several texts of a question, or names who asks. Some servers refuse a search's fields
# without the search.
CHOICES = frozenset(
    ("best_of", "n", "user", "prompt_logprobs", "use_beam_search", "return_token_ids",
     "length_penalty", "early_stopping")
)  # fmt: skip
SAMPLED = CHOICES | {"seed", "top_p", "top_k", "min_p"}


def expected_text(call: GatewayCall) -> str | None:
    """What a right answer contains, where the client says so: `metadata: {"expect": "42"}`."""
    metadata = (call.parsed or {}).get("metadata")
    found = metadata.get("expect") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) and found else None


def repeating(text: str, call: GatewayCall) -> AnswerFigures | None:
    """The account of a client's answer, of which the text alone was kept: whether it repeats the
    prompt. The standby's answer is compared without it, so this one has to be, too."""
    echoed = echoed_in(text, call.parsed or {})
    return AnswerFigures(fields=frozenset(("echo",)), echoed=echoed) if echoed else None


def keeps_its_answer(call: GatewayCall) -> bool:
    """Whether a server that stays the same says the same again. New weights of a ranking model
    come while it answers."""
    return call.api.answered_alike


def asks_for_json(call: GatewayCall) -> bool:
    """Whether the client wants JSON and nothing else."""
    form = call.asked.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else None
    return kind in ("json_object", "json_schema")


def plain(call: GatewayCall, *, sampled: bool = False) -> GatewayCall:
    """A greedy version of a question, as long as the client asked for and in a stream or not as it
    did: what is wrong behind token 50 is wrong. `sampled`: with its temperature and seed."""
    form = call.api.form
    if form is None or not form.speaks or call.parsed is None:
        return call
    dropped = CHOICES if sampled else SAMPLED
    body = {key: value for key, value in call.parsed.items() if key not in dropped}
    asked = [body.pop(name, None) for name in form.most]
    most = min((one for one in asked if type(one) is int and one > 0), default=None)
    body |= ({} if sampled else {"temperature": 0}) | ({form.most[0]: most} if most else {})
    least = body.get("min_tokens")
    if most and isinstance(least, int) and least > most:
        body["min_tokens"] = most  # some servers refuse more
    if sampled or (call.chat and "tools" in body and "tool_choice" not in body):
        body["stream"] = False  # calls come whole: they can be compared
        body.pop("stream_options", None)  # which servers refuse then
    return replace(call, parsed=body, body=orjson.dumps(body))

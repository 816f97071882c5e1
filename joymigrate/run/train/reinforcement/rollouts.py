"""Answers to learn from: written by the model itself, or by any OpenAI-compatible server.

N = prompts x group answers, at most T tokens each.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError

SECONDS = 600.0  # for one prompt's answers of a server
AT_ONCE = 16  # prompts that a server is asked at the same time


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One answer: its tokens, and their log-probabilities where who wrote them said so."""

    tokens: list[int]
    logs: list[float] | None = None


@torch.no_grad()
def write_answers(
    model: Any,
    prompts: Sequence[Sequence[int]],
    group: int,
    limit: int,
    temperature: float,
    ends: Sequence[int],
) -> list[list[SampledAnswer]]:
    """`group` sampled answers of the model to each prompt, an end sign included.

    Every process takes `limit` steps where there are several: a sharded model needs all of them.
    """
    import torch.distributed as dist

    device = next(model.parameters()).device
    rows = [list(prompt) for prompt in prompts for _ in range(group)]
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :] = torch.tensor(row)
        mask[number, longest - len(row) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    together = dist.is_initialized() and dist.get_world_size() > 1
    stop = torch.tensor(list(ends), device=device)
    done = torch.zeros(len(rows), dtype=torch.bool, device=device)
    written: list[Tensor] = []
    cache = None
    for _ in range(limit):
        made = model(
            input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        cache = made.past_key_values
        shares = (made.logits[:, -1].float() / temperature).softmax(-1)
        chosen = torch.multinomial(shares, 1).squeeze(1)
        written.append(chosen.masked_fill(done, -1))
        done = done | torch.isin(chosen, stop)
        if bool(done.all()) and not together:
            break
        ids, places = chosen[:, None], places[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
    answers = [[one for one in row if one >= 0] for row in torch.stack(written, 1).tolist()]
    return [
        [SampledAnswer(one) for one in answers[at : at + group]]
        for at in range(0, len(answers), group)
    ]


def ask_server(
    url: str,
    model: str,
    prompts: Sequence[Sequence[int]],
    group: int,
    limit: int,
    temperature: float,
    seed: int,
) -> list[list[SampledAnswer]]:
    """The same by POST {url}/v1/completions; tokens and log-probabilities come from the server.

    The server has to return token ids (`return_token_ids`, as vLLM and joymigrate do).
    """

    def ask(number: int) -> list[SampledAnswer]:
        body = {
            "model": model, "prompt": list(prompts[number]), "n": group, "max_tokens": limit,
            "temperature": temperature, "logprobs": 0, "return_token_ids": True,
            "seed": seed + number,
        }  # fmt: skip
        asked = urllib.request.Request(
            f"{url.rstrip('/')}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=SECONDS) as reply:
                choices = json.loads(reply.read())["choices"]
            found = [
                SampledAnswer(list(one["token_ids"]), list(one["logprobs"]["token_logprobs"]))
                for one in sorted(choices, key=lambda one: one["index"])
            ]
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:300]
            raise JoyError(f"the server refuses: {error.code} {text}", where=url) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JoyError(
                f"the server gave no answers: {type(error).__name__}: {error}",
                where=url,
                help="it needs /v1/completions with n, logprobs and return_token_ids",
            ) from None
        if len(found) != group or any(len(one.tokens) != len(one.logs or ()) for one in found):
            raise JoyError(f"the server gave other answers than {group} with their numbers",
                           where=url)  # fmt: skip
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, range(len(prompts))))

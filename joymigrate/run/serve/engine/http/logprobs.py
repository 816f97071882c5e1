"""Log-probabilities in the two forms of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.run.serve.engine.http.words import ModelTokens
from joymigrate.run.serve.engine.types import TokenLogprob

LOWEST = -9999.0  # JSON has no minus infinity


def finite(value: float) -> float:
    """A log-probability that JSON can say."""
    return max(value, LOWEST)


def chat(found: Sequence[TokenLogprob], words: ModelTokens) -> list[dict[str, Any]]:
    """`choices[].logprobs.content`."""
    rows = []
    for one in found:
        top = [token(words, id, logprob) for id, logprob in one.top]
        rows.append({**token(words, one.id, one.logprob), "top_logprobs": top})
    return rows


def token(words: ModelTokens, id: int, logprob: float) -> dict[str, Any]:
    """One token: its text, its bytes, its log-probability."""
    text, raw = words.show(id)
    return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}


def of_prompt(
    found: Sequence[TokenLogprob | None], words: ModelTokens
) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` in vLLM's form: a table of ids per token, null for the first one."""
    return [None if one is None else rank_tokens(one, words) for one in found]


def rank_tokens(one: TokenLogprob, words: ModelTokens) -> dict[str, Any]:
    """A token and the most probable ones in its place, by id."""
    rows = {id: (rank, logprob) for rank, (id, logprob) in enumerate(one.top, 1)}
    rows[one.id] = (one.rank, one.logprob)
    return {
        str(id): {"logprob": finite(logprob), "rank": rank, "decoded_token": words.show(id)[0]}
        for id, (rank, logprob) in rows.items()
    }


class Legacy:
    """`choices[].logprobs` of completions: four lists, offsets count characters of the text."""

    def __init__(self, words: ModelTokens, asked: int) -> None:
        self.words, self.asked = words, asked
        self.offset = 0

    def of(self, ids: Sequence[int], found: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """The lists for some tokens; None stands for a first token, which nothing precedes."""
        texts, numbers, tops, offsets = [], [], [], []
        for id, one in zip(ids, found, strict=True):
            text, _ = self.words.show(id)
            texts.append(text)
            offsets.append(self.offset)
            self.offset += len(text)
            numbers.append(None if one is None else finite(one.logprob))
            tops.append(None if one is None else self.best(one))
        return {
            "tokens": texts,
            "token_logprobs": numbers,
            "top_logprobs": tops if self.asked else None,
            "text_offset": offsets,
        }

    def best(self, one: TokenLogprob) -> dict[str, float]:
        """The most probable tokens, the chosen one among them."""
        rows = {self.words.show(id)[0]: finite(logprob) for id, logprob in one.top}
        rows.setdefault(self.words.show(one.id)[0], finite(one.logprob))
        return rows

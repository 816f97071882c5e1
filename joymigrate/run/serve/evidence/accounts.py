"""What two answers to one question say beside their texts, compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

FAR = 0.5  # mean difference of log probabilities that rounding and quantising do not explain
COSINE = 0.95  # two vectors of one text agree at least so much


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """What one answer says beside its text. A count of -1 was not said."""

    fields: frozenset[str] = frozenset()
    asked_model: str | None = None
    model: str | None = None
    prompt_tokens: int = -1
    answer_tokens: int = -1
    logprobs: tuple[tuple[str, float], ...] = ()  # of the first choice: token, natural logarithm
    vectors: tuple[tuple[float, ...], ...] = ()
    echoed: int = 0  # characters of the prompt at the beginning of the text


def lacks(theirs: AnswerFigures, ours: AnswerFigures) -> dict[str, bool]:
    """Of each field that the primary's answer has, whether the standby's lacks it."""
    return {name: name not in ours.fields for name in theirs.fields}


def names_another(theirs: AnswerFigures, ours: AnswerFigures) -> bool | None:
    """Whether the standby names another model than was asked for, or than the primary names.
    None: there is nothing to compare."""
    if theirs.model is None or ours.model is None or ours.asked_model is None:
        return None
    return ours.model not in (theirs.model, ours.asked_model)


def counts_otherwise(theirs: AnswerFigures, ours: AnswerFigures, *, same_text: bool) -> bool | None:
    """Whether the prompt, or an equal text, has another number of tokens."""
    if min(theirs.prompt_tokens, ours.prompt_tokens) < 0:
        return None
    other = same_text and theirs.answer_tokens != ours.answer_tokens
    return other or theirs.prompt_tokens != ours.prompt_tokens


def scores_otherwise(theirs: AnswerFigures, ours: AnswerFigures) -> bool | None:
    """Whether equal tokens from the beginning on have log probabilities that are far apart."""
    apart = []
    for (token, one), (other, two) in zip(theirs.logprobs, ours.logprobs, strict=False):
        if token != other:
            break
        apart.append(abs(one - two))
    return sum(apart) / len(apart) > FAR if apart else None


def points_elsewhere(theirs: AnswerFigures, ours: AnswerFigures) -> bool | None:
    """Whether vectors of the same texts differ in number, size or direction."""
    if not theirs.vectors:
        return None
    if [len(one) for one in theirs.vectors] != [len(one) for one in ours.vectors]:
        return True
    return any(
        one != two and not cosine(one, two) >= COSINE
        for one, two in zip(theirs.vectors, ours.vectors, strict=True)
    )


def cosine(one: Sequence[float], two: Sequence[float], none: float = math.nan) -> float:
    """Cosine of the angle between two vectors of one size; `none` where one has no direction."""
    lengths = math.hypot(*one) * math.hypot(*two)
    return math.fsum(map(mul, one, two)) / lengths if lengths else none

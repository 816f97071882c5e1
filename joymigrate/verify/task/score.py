"""One sample, one side → how right it is, from 0 to 1 (or the score that it carries)."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

from joymigrate.verify.task.normalise import same

# agreement: no reference; the baseline's own answer is what the target is compared with.
METRICS = ("exact", "accuracy", "f1", "macro-f1", "token", "score", "agreement")


def exact(prediction: Any, reference: Any) -> float:
    """1 where the answer is the reference."""
    return float(same(prediction, reference))


def accuracy(prediction: Any, reference: Any) -> float:
    """Share of right labels: of the one, or of a list's positions (a sequence of labels)."""
    if isinstance(prediction, list) and isinstance(reference, list):
        longest = max(len(prediction), len(reference))
        right = sum(map(same, prediction, reference))
        return right / longest if longest else 1.0
    return exact(prediction, reference)


def f1(prediction: Any, reference: Any) -> float:
    """Overlap of two bags: words of texts (single signs of scripts without spaces), or items."""
    mine, wanted = bag(prediction), bag(reference)
    if not mine or not wanted:
        return float(mine == wanted)
    common = sum((mine & wanted).values())
    return 2 * common / (sum(mine.values()) + sum(wanted.values()))


def bag(value: Any) -> Counter[str]:
    """What a value consists of."""
    if isinstance(value, list):
        return Counter(map(repr, value))
    if isinstance(value, dict):
        return Counter(f"{key}={item!r}" for key, item in value.items())
    return Counter(words(value)) if isinstance(value, str) else Counter([repr(value)])


def words(text: str) -> list[str]:
    """Words; every ideograph and syllable of Chinese, Japanese and Thai by itself."""
    spaced = "".join(f" {c} " if unicodedata.category(c) == "Lo" else c for c in text)
    return spaced.split()


def token(prediction: Any, reference: Any) -> float:
    """Share of positions with the same token; the longer one counts."""
    return accuracy(prediction, reference) if isinstance(reference, list) else 0.0


def prefix(a: list[Any], b: list[Any]) -> int:
    """Number of tokens before the first difference."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


RIGHTNESS: dict[str, Callable[[Any, Any], float]] = {
    "exact": exact,
    "accuracy": accuracy,
    "f1": f1,
    "macro-f1": exact,  # the figure itself is made from counts of labels
    "token": token,
}

"""The words of the live page, by key; those of a journey are the report's."""

from __future__ import annotations

from joymigrate.language import Words
from joymigrate.report import journey_words

WORDS = Words("live")


def say(key: str, **fields: object) -> str:
    """The words for `key`; those that only a journey's report has are taken from there."""
    return (WORDS if key in WORDS else journey_words.WORDS)(key, None, **fields)

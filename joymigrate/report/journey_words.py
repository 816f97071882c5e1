"""The words of a journey's report, by key."""

from __future__ import annotations

from joymigrate.language import Words

WORDS = Words("journey")
say = WORDS

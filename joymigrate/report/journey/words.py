"""The sentences of a journey's report, by key.

`{name}` stands for a figure, `{name_s}` for the plural's s beside it.
"""

from __future__ import annotations

from joymigrate.language import Words

WORDS = Words("sentences")

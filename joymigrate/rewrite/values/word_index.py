"""Which files of a project hold a word: noted once, when it is first asked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from joymigrate.rewrite.source import stands_alone
from joymigrate.rewrite.values.settings_files import is_settings

WORD = re.compile(r"[^\x00-/:-@\[-^`{-\x7f]+")  # of what `source.inside_word` says


class WordIndex:
    """The words of a project's Python files, each with the files that hold it.

    Settings files are searched for each word instead: one may hold more words than all programs.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._holding: dict[str, list[str]] = {}
        self._searched: list[str] = []
        self._found: dict[str, list[str]] = {}

    def files(self, word: str, sign: str = "") -> list[str]:
        """Files with a word that is no part of a longer one, and with `sign` behind it."""
        key = word + sign
        if key not in self._found:
            if not self._holding and not self._searched:
                self._read()
            part = max(WORD.findall(word), key=len, default="")
            found = self._holding.get(part, [])
            searched = self._searched if part == word else [*found, *self._searched]
            alone = [path for path in searched if stands_alone(word, self.texts[path])]
            found = [*found, *alone] if part == word else alone
            self._found[key] = [p for p in found if key in self.texts[p]] if sign else found
        return self._found[key]

    def _read(self) -> None:
        holding: dict[str, list[str]] = defaultdict(list)
        for path, text in self.texts.items():
            if is_settings(path):
                self._searched.append(path)
                continue
            for word in set(WORD.findall(text)):
                holding[word].append(path)
        self._holding = dict(holding)

"""Settings files (YAML, JSON, TOML, INI) as cells: what a key of the origin's word is read as.

Only entries of one line are read, `device: cuda:0` or `"device": "cuda"`: a key, and a value that
names a device or a backend. The value is a text like one of Python; it goes into the setting of the
key's name, which programs read as `cfg["device"]`, `cfg.get("device")` or `cfg.device`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from joymigrate.rewrite.source import SourceText
from joymigrate.rewrite.values.cells import FileValues, TextPlace

KINDS = ("json", "yaml", "toml", "ini")  # readers of settings
ENDINGS = (".yaml", ".yml", ".json", ".jsonc", ".json5", ".toml", ".ini", ".cfg", ".conf")
ENTRY = re.compile(
    r"""(?m)(?:^[ \t]*(?:-[ \t]+)?|[{,][ \t]*)["']?(?P<key>[A-Za-z_][\w.-]*)["']?[ \t]*[:=][ \t]*"""
    r"""(?P<quote>["']?)(?P<value>[A-Za-z][\w:,-]*)(?P=quote)[ \t]*(?=$|[,}#\r])"""
)
COMMENTS = ("#", ";")
KEPT_AS = "key"  # the kind of an edge between a key and its value


@dataclass(frozen=True, slots=True)
class SettingsEntry:
    """An entry of a settings file; `start` and `end` are the offsets of its value in the text."""

    key: str
    value: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The last part of the key, as programs read it."""
        return self.key.rpartition(".")[2]


def is_settings(path: str) -> bool:
    """Whether a path is that of a settings file, by its ending."""
    return PurePosixPath(path).suffix in ENDINGS


def find_entries(text: str, words: re.Pattern[str]) -> Iterator[SettingsEntry]:
    """Entries of a settings file whose values fit `words`, without those that are commented out."""
    for found in ENTRY.finditer(text):
        start, end = found.span("value")
        first = text.rfind("\n", 0, start) + 1
        if words.match(found["value"]) and text[first:start].lstrip()[:1] not in COMMENTS:
            yield SettingsEntry(found["key"], found["value"], start, end)


def read_naming(files: Iterable[tuple[str, Path]], words: re.Pattern[str]) -> dict[str, bytes]:
    """Contents of the settings files with an entry whose value fits `words`, by their names."""
    found = {}
    for name, path in files:
        try:
            data = path.read_bytes() if is_settings(name) else b""
        except OSError:
            continue  # named by the reader of its kind
        if next(find_entries(data.decode("utf-8", "replace"), words), None):
            found[name] = data
    return found


def keys_naming(contents: Mapping[str, bytes], words: re.Pattern[str]) -> frozenset[str]:
    """Keys of settings files whose value fits `words`, whole and by their last part."""
    texts = (data.decode("utf-8", "replace") for data in contents.values())
    entries = (each for text in texts for each in find_entries(text, words))
    return frozenset(key for each in entries for key in (each.key, each.name))


def read_settings(source: SourceText, path: str, words: re.Pattern[str]) -> FileValues:
    """The keys of a settings file whose values fit `words`, as settings of the same names."""
    values = FileValues(path, source.text)
    for each in find_entries(source.text, words):
        line = source.text.count("\n", 0, each.start) + 1
        cell = ("text", path, each.start)
        values.places[cell] = TextPlace(each.start, each.end, line, each.start, 0)
        values.join(("setting", each.name.replace("-", "_")), cell, line, KEPT_AS)
    return values

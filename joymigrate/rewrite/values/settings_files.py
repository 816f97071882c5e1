"""Settings files (YAML, JSON, TOML, INI) as cells: what a key of the origin's word is read as.

Only entries of one line are read, `device: cuda:0` or `"device": "cuda"`: a key, and a value that
names a device or a backend. The value is a text like one of Python; it goes into the setting of the
key's name, which programs read as `cfg["device"]`, `cfg.get("device")` or `cfg.device`.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from joymigrate.rewrite.source import SourceText
from joymigrate.rewrite.values.cells import FileValues, TextPlace

ENDINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
ENTRY = re.compile(
    r"""(?m)(?:^[ \t]*(?:-[ \t]+)?|[{,][ \t]*)["']?(?P<key>[A-Za-z_][\w.-]*)["']?[ \t]*[:=][ \t]*"""
    r"""(?P<quote>["']?)(?P<value>[A-Za-z][\w:,-]*)(?P=quote)[ \t]*(?=$|[,}#\r])"""
)
KEPT_AS = "key"  # the kind of an edge between a key and its value


def is_settings(path: str) -> bool:
    """Whether a path is that of a settings file, by its ending."""
    return PurePosixPath(path).suffix in ENDINGS


def read_settings(source: SourceText, path: str, words: re.Pattern[str]) -> FileValues:
    """The keys of a settings file whose values fit `words`, as settings of the same names."""
    values = FileValues(path, source.text)
    for found in ENTRY.finditer(source.text):
        start, end = found.span("value")
        first = source.text.rfind("\n", 0, start) + 1
        if not words.match(found["value"]) or source.text[first:].lstrip()[:1] in ("#", ";"):
            continue
        line = source.text.count("\n", 0, start) + 1
        cell = ("text", path, start)
        values.places[cell] = TextPlace(start, end, line, start, 0)
        name = found["key"].rpartition(".")[2].replace("-", "_")
        values.join(("setting", name), cell, line, KEPT_AS)
    return values

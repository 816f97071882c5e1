"""Files that a scan leaves out: Python that its files import or that imports them, and settings.

They are read as facts: what they hold stays, and so does what goes with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from joymigrate.model import Skipped
from joymigrate.rewrite.module_index import ModuleIndex
from joymigrate.rewrite.values.settings_files import find_entries, is_settings
from joymigrate.rewrite.vocabulary import Vocabulary

ABSOLUTE = re.compile(r"\n[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]*)")
RELATIVE = re.compile(r"^[ \t]*from[ \t]+(\.+)([\w.]*)[ \t]+import[ \t]+\(?([^\n#]*)", re.M)
STEPS = 3  # files that are left out and import each other
MOST = 200  # Python files of one folder that is left out; more are a library


def find_left_out(
    root: Path,
    texts: Mapping[str, str],
    tree: ModuleIndex,
    skipped: Iterable[Skipped],
    vocabulary: Vocabulary,
) -> dict[str, str]:
    """Texts of files that are left out, by their path from `root`.

    Of those that the settings exclude, Python with the origin's device and settings with a value of
    `vocabulary`; of those that no PATH names, the ones that are imported.
    """
    found: dict[str, str] = {}
    for path in find_excluded(root, skipped):
        text = read(root, path)
        if path in texts:
            continue
        entries = find_entries(text, vocabulary.values)
        if next(entries, None) if is_settings(path) else vocabulary.device in text:
            found[path] = text
    fresh: Mapping[str, str] = {**texts, **found}
    for _ in range(STEPS):
        wanted = {
            each for path, text in fresh.items() for each in find_imported(root, path, text, tree)
        }
        fresh = {path: read(root, path) for path in wanted - texts.keys() - found.keys()}
        found |= fresh
        if not fresh:
            break
    return found


def find_excluded(root: Path, skipped: Iterable[Skipped]) -> Iterator[str]:
    """Python and settings files among what was skipped because of a pattern."""
    for each in skipped:
        if "exclude" not in str(each.reason) or each.files > MOST or each.path.startswith(".."):
            continue
        if is_read(each.path):
            yield each.path
            continue
        for folder, _, names in os.walk(root / each.path):
            for name in names:
                if is_read(name):
                    yield (Path(folder) / name).relative_to(root).as_posix()


def is_read(path: str) -> bool:
    """Whether the graph of values knows such a file."""
    return path.endswith(".py") or is_settings(path)


def find_imported(root: Path, path: str, text: str, tree: ModuleIndex) -> Iterator[str]:
    """Files below `root` that a file imports and that the scan doesn't know."""
    folder = path.rpartition("/")[0]
    homes = {folder, ""}
    for dotted in tree.imports.get(path, ()) or ABSOLUTE.findall(f"\n{text}"):
        if tree.locate(path, dotted) is None:
            for home in homes:
                yield from on_disk(root, home, dotted.split("."))
    for dots, module, names in RELATIVE.findall(text) if "from ." in text else ():
        parts = folder.split("/") if folder else []
        up = len(dots) - 1
        if up > len(parts):
            continue
        home = "/".join(parts[: len(parts) - up])
        words = re.findall(r"\w+", names)
        for tail in ([module.split(".")] if module else []) + [
            [*filter(None, module.split(".")), word] for word in words
        ]:
            found = on_disk(root, home, tail)
            yield from (each for each in found if each not in tree.paths)


def on_disk(root: Path, home: str, parts: list[str]) -> Iterator[str]:
    """The file of a module below a folder."""
    top = "/".join(filter(None, (home, parts[0])))
    if not os.path.exists(root / f"{top}.py") and not os.path.exists(root / top):
        return
    for length in range(len(parts), 0, -1):
        stem = "/".join(filter(None, (home, *parts[:length])))
        for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
            if (root / candidate).is_file():
                yield candidate
                return


def read(root: Path, path: str) -> str:
    """Text of a file, empty where it can't be read."""
    try:
        return (root / path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""

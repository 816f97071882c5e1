"""Finds the codemods that a project's configuration names, and those that packages bring."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.model import Tier
from joymigrate.rewrite.rules import AREAS

if TYPE_CHECKING:
    from joymigrate.rewrite.codemod import Codemod

GROUP = "joymigrate.codemods"
RULE = re.compile(r"[A-Z]+[0-9]+")
HELP = "see docs/how-to/codemods.md"


def load(places: Iterable[str], base: Path) -> tuple[type[Codemod], ...]:
    """The codemods of Python files and folders, and of installed packages, in order of rule id.

    `places` count from `base`. Packages name classes or modules under the entry point
    `joymigrate.codemods`. Raises `JoyError` for a place that is not there, a file that can't be
    imported, a class without what it needs, and two codemods of one id.
    """
    found: dict[str, type[Codemod]] = {}
    for one in (*from_places(places, base), *from_packages()):
        check(one)
        known = found.setdefault(one.RULE, one)
        if known is not one:
            what = (
                f"two codemods are called {one.RULE}: {spell_place(known)} and {spell_place(one)}"
            )
            raise JoyError(what, help="give one of them another RULE")
    return tuple(found[rule] for rule in sorted(found))


def from_places(places: Iterable[str], base: Path) -> Iterator[type[Codemod]]:
    """Codemods of files and folders; a folder's files are those without a leading underscore."""
    for name in places:
        place = base / name
        if not place.exists():
            raise JoyError(f"no such file or folder: {name}", where="codemods", help=HELP)
        files = sorted(place.glob("*.py")) if place.is_dir() else [place]
        for file in files:
            if place.is_dir() and file.name.startswith("_"):
                continue
            yield from classes(import_file(file))


def import_file(file: Path) -> Any:
    """A Python file as a module of its own name, which no other file can take."""
    name = f"_joymigrate_codemods_{abs(hash(str(file.resolve())))}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise JoyError(f"not a Python file: {file}", where="codemods", help=HELP)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        what = f"a codemod could not be imported: {type(error).__name__}: {error}"
        raise JoyError(what, where=str(file), help=HELP) from error
    return module


def from_packages() -> Iterator[type[Codemod]]:
    """Codemods of installed packages."""
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            held = point.load()
        except Exception as error:
            what = f"the codemods of an installed package could not be imported: {error}"
            raise JoyError(what, where=point.value, help="update or remove the package") from error
        if is_codemod(held):
            yield held
        else:
            yield from classes(held)


def classes(module: Any) -> Iterator[type[Codemod]]:
    """The codemods that a module defines itself."""
    for _, one in inspect.getmembers(module, is_codemod):
        if one.__module__ == module.__name__ and hasattr(one, "RULE"):
            yield one


def is_codemod(one: object) -> bool:
    """Whether an object is a class of codemods."""
    from joymigrate.rewrite.codemod import Codemod  # which loads all of libcst

    return inspect.isclass(one) and issubclass(one, Codemod)


def check(kind: type[Codemod]) -> None:
    """Refuse a codemod that reports could not show."""
    where = spell_place(kind)
    missing = [name for name in ("RULE", "NAME", "MESSAGE", "WORDS") if not hasattr(kind, name)]
    if missing:
        raise JoyError(f"a codemod lacks {', '.join(missing)}", where=where, help=HELP)
    if not RULE.fullmatch(kind.RULE) or kind.RULE.startswith("JM"):
        what = f"RULE is '{kind.RULE}': capital letters, then digits, and not JM"
        raise JoyError(what, where=where, help="for example ACME001")
    words: object = kind.WORDS
    if not isinstance(words, (tuple, list)) or not words or not all(words):
        raise JoyError("WORDS must be a tuple of words that its files hold", where=where, help=HELP)
    if not isinstance(kind.TIER, Tier):
        raise JoyError(f"TIER is {kind.TIER!r}", where=where, help="Tier.SAFE, UNSAFE or REPORT")
    if kind.AREA not in AREAS:
        what = f"unknown AREA '{kind.AREA}'.{did_you_mean(kind.AREA, AREAS)}"
        raise JoyError(what, where=where, help=", ".join(AREAS))


def spell_place(kind: type[Codemod]) -> str:
    """Where a class stands, for people."""
    return f"{inspect.getfile(kind)} {kind.__qualname__}"

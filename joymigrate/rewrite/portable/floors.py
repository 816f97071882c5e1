"""The oldest torch that must run what is written: what a project asks for, and what bounds it.

A torch is bounded by what is built for it (`torchvision==0.15`), and by the oldest Python that a
project supports: each torch ends with some Python. The rows stand in `rules/common/portable.yaml`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from joymigrate.rewrite.context import Context, Floor
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.portable.table import table, version

BUILDS = re.compile(
    r"(?:requirements[\w./-]*\.txt|pyproject\.toml|setup\.(?:py|cfg)|env[\w-]*\.ya?ml)$"
)
IMAGES = re.compile(r"(?:^|[/.])Dockerfile[\w.-]*$|\.Dockerfile$", re.I)
CHECKS = re.compile(r"\.github/workflows/|\.travis\.yml$|\.circleci/|gitlab-ci|azure-pipelines")
TESTS = re.compile(r"\b(?:pytest|unittest|nosetests|tox|nox|setup\.py test)\b")
CODE = ("python", "notebook")  # kinds of files that need a torch
LIMIT = re.compile(r"([<>~!^=]*)\s*(\d+(?:\.\d+)*)")
# `torch>=1.7,<2`, `torch[opt] (>=1.7)`, conda's `torch=1.7`, an image's `torch:1.7`, poetry's
# `torch = {version = "^1.7"}`, a list `torch-version: [1.7, 2.6]`.
LIMITS = (
    r"[=:(<>~!^](?:\s*\{[^}\n]*\bversion)?[\s=:(\[\"']*"
    r"[<>~!^=]*\s*\d[\d.*]*(?:[\"']?\s*,\s*[\"']?[<>~!^=]*\s*\d[\d.*]*)*"
)
ABOVE = ("<", "<=", "!=")  # signs that say nothing of the oldest version
REQUIRES = re.compile(
    r"(?<![\w-])(?:requires[-_]python|python_requires|python)[\"']?\s*[=<>~^]+\s*([^\n]+)", re.I
)
RUNS = re.compile(
    r"(?<![\w-])python(?:[-_]version)?[\"']?[ \t]*[:=]([^\n]*(?:\n[ \t]*-[ \t]*[\"']?\d[^\n]*)*)",
    re.I,
)
PYTHON = re.compile(r"(?<![\d.])[23]\.\d+(?!\d)")
CHOOSES = re.compile(r"__version__|\bhasattr\(|\bTORCH_?VERSION", re.I)  # code for several torches


def find_floors(files: Iterable[File], texts: Mapping[str, str]) -> dict[str, Floor]:
    """The oldest torch that each folder of a project must do with, and where that is said.

    `.` is the root; a folder with no Python in it or below speaks for the one above it. `texts`
    are the Python files: what they use that a later torch has not bounds torch. Of Python only
    folders are asked that do not require a torch.
    """
    files = list(files)
    code = (PurePosixPath(each.relative) for each in files if each.kind in CODE)
    coded = {PurePosixPath(), *(above for path in code for above in path.parents)}
    found: dict[str, list[Floor]] = defaultdict(list)
    pythons: dict[str, list[Floor]] = defaultdict(list)
    required = set()
    for file in files:
        text = read(file)
        folder = next(at for at in PurePosixPath(file.relative).parents if at in coded).as_posix()
        limits = list(read_limits(file, text))
        found[folder] += [floor for _, floor in limits]
        if all(name for name, _ in limits):
            pythons[folder] += read_pythons(file, text)
        elif BUILDS.search(file.relative):
            required.add(folder)
    for folder in pythons.keys() - required:
        found[folder] += pythons[folder]
    found = {folder: several for folder, several in found.items() if several}
    for path, floor in find_uses(texts):
        above = (at.as_posix() for at in PurePosixPath(path).parents)
        near = next((at for at in above if at in found), ".")
        found.setdefault(near, []).append(floor)
    return {folder: min(several, key=age) for folder, several in found.items()}


def read(file: File) -> str:
    """A file that may say which torch or Python it is for, without comments; others are empty."""
    checks = CHECKS.search(file.relative)
    if not (checks or IMAGES.search(file.relative) or BUILDS.search(file.relative)):
        return ""
    text = Path(file.path).read_text(encoding="utf-8", errors="replace")
    text = re.sub(r"(?m)(?:^|(?<=\s))#.*", "", text)
    return "" if checks and not TESTS.search(text) else text


def read_limits(file: File, text: str) -> Iterator[tuple[str, Floor]]:
    """The torch that a file's limits allow, each with the distribution that they are on.

    Where torch's own oldest version is told that is the floor, with no name.
    """
    for match in requirement().finditer(text):
        name, limits = re.sub("_", "-", match[1].lower()), LIMIT.findall(match[2])
        number = text.count("\n", 0, match.start()) + 1
        place = f"{file.relative}:{number}"
        oldest = [told for sign, told in limits if sign not in ABOVE]
        last = newest(name, limits)
        if name in ("torch", "pytorch") and oldest:
            yield "", Floor(min(oldest, key=version), place)
        elif last is not None:
            called = table()["bounds"][name].get("called", name)
            yield name, Floor(last, f"{place} ({called})")


def read_pythons(file: File, text: str) -> Iterator[Floor]:
    """The last torch for each Python that a file names."""
    named = REQUIRES if BUILDS.search(file.relative) else RUNS
    for match in named.finditer(text):
        for told in PYTHON.findall(match[1]):
            last = rows("python").get(told)
            number = text.count("\n", 0, match.start()) + 1
            if last is not None:
                yield Floor(last, f"{file.relative}:{number} (Python {told})")


def find_uses(texts: Mapping[str, str]) -> Iterator[tuple[str, Floor]]:
    """Files that use what a later torch has not, and the last torch that has it.

    That is an import, as the file is loaded, of a package that is built for no newer torch or of
    a module that torch gave up; and a call of such a function where no version is asked for.
    """
    for name, last, pattern in find_removed():
        word = name.rpartition(".")[2]
        for path, text in texts.items():
            match = pattern.search(text) if word in text else None
            if match is None or (match[0].endswith("(") and CHOOSES.search(text)):
                continue
            number = text.count("\n", 0, match.start()) + 1
            yield path, Floor(last, f"{path}:{number} ({name})")


@cache
def find_removed() -> list[tuple[str, str, re.Pattern[str]]]:
    """What a later torch has not: its name, the last torch that has it, and how code uses it."""
    ended = {name: newest(name, ()) or "" for name, row in table()["bounds"].items()
             if row.get("ended")}  # fmt: skip
    removed = table()["removed"]
    found = []
    for name, last in (*ended.items(), *removed["modules"].items()):
        home, _, word = name.rpartition(".")
        beside = rf"|^from {re.escape(home)} import (?:[^\n#]*[ ,(])?{word}\b" if home else ""
        imported = rf"^(?:import|from) {re.escape(name)}\b{beside}"
        found.append((name, last, re.compile(imported, re.M)))
    for name, last in removed["functions"].items():
        called = rf"^[^#\n\"']*(?<![\w.]){re.escape(name)}\("
        found.append((name, last, re.compile(called, re.M)))
    return found


@cache
def requirement() -> re.Pattern[str]:
    """Limits on torch or on a distribution that bounds it; tags of NVIDIA's images are dates."""
    names = "|".join(re.sub("-", "[-_]", each) for each in table()["bounds"] if each != "python")
    name = rf"(?<![\w.-])(?<!nvidia/)({names})(?:[-_]version)?[\"']?"
    return re.compile(rf"{name}[ \t]*(?:\[[^\]\n]*\])?[ \t]*({LIMITS})", re.I)


def rows(name: str) -> Mapping[str, str]:
    """The torch that each release of a distribution is built for, oldest first."""
    found: Mapping[str, str] = table()["bounds"][name]["releases"]
    return found


def newest(name: str, limits: Iterable[tuple[str, str]]) -> str | None:
    """The newest torch for the releases of a distribution that limits admit.

    None where that is no bound: a release that is newer than the last row is admitted.
    """
    admitted = known = list(rows(name))
    for sign, told in limits:
        admitted = [each for each in admitted if admits(sign, version(each), version(told))]
        if not admitted:  # a release from before the first row is built for no newer torch
            return rows(name)[known[0]] if version(told) <= version(known[0]) else None
    if admitted[-1] == known[-1] and not table()["bounds"][name].get("ended"):
        return None
    return rows(name)[admitted[-1]]


def admits(sign: str, release: tuple[int, ...], told: tuple[int, ...]) -> bool:
    """Whether a limit admits some version of a minor release, as PEP 440 and poetry read signs."""
    at, patch = told[:2], told[2:]
    if sign == "<":
        return release < at or (release == at and patch > (0,))
    if sign == "<=":
        return release <= (*at, 0)[:2]
    if sign in (">=", ">", "!="):
        return True
    if (sign == "~=" and not patch) or (sign == "^" and at[0] > 0):
        return release >= at and release[0] == at[0]
    return release[: len(at)] == at  # `^0.15`, `~0.15` and `~=0.15.2` as well


def age(floor: Floor) -> tuple[int, ...]:
    """A floor's version, to be compared."""
    return version(floor.version)


def floor_of(context: Context, path: str) -> Floor | None:
    """The oldest torch that must run a file: what the nearest folder above it says.

    The version of the chip's package that was asked for goes with torch's own.
    """
    above = (at.as_posix() for at in PurePosixPath(path).parents)
    near = next((context.floors[at] for at in above if at in context.floors), None)
    asked = Floor(context.version, "--chip-version") if context.version else None
    return min(filter(None, (asked, near)), key=age, default=None)

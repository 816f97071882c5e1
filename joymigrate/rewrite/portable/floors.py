"""The oldest torch that must run what is written: what a project asks for, and what bounds it.

A torch is bounded by what is built for it (`torchvision==0.15`), and by the oldest Python that a
project supports: each torch ends with some Python. The rows stand in `rules/common/portable.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from joymigrate.rewrite.context import Context, Floor
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.portable.table import table, version

BUILDS = re.compile(
    r"(?:requirements[\w./-]*\.txt|pyproject\.toml|setup\.(?:py|cfg)|env\w*\.ya?ml)$"
)
IMAGES = re.compile(r"(?:^|[/.])Dockerfile[\w.-]*$|\.Dockerfile$", re.I)
CHECKS = re.compile(r"\.github/workflows/|\.travis\.yml$|\.circleci/|gitlab-ci|azure-pipelines")
TESTS = re.compile(r"\b(?:pytest|unittest|nosetests|tox|nox|setup\.py test)\b")
CODE = ("python", "notebook")  # kinds of files that need a torch
LIMITS = r"(?:,?\s*(?:[<>~!^]=?|={1,3})\s*[\d.*]+)+"
NEEDED = re.compile(
    r"(?<![\w-])(?:py)?torch[\"']?\s*(?:\[[^\]\n]*\])?\s*(?:>=|~=|={1,3}|:)\s*[\"']?\^?(\d+(?:\.\d+)*)",
    re.I,
)
REQUIRES = re.compile(
    r"(?<![\w-])(?:requires[-_]python|python_requires|python)[\"']?\s*[=<>~^]+\s*([^#\n]+)", re.I
)
RUNS = re.compile(
    r"(?<![\w-])python(?:[-_]version)?[\"']?[ \t]*[:=]([^#\n]*(?:\n[ \t]*-[ \t]*[\"']?\d[^\n]*)*)",
    re.I,
)
PYTHON = re.compile(r"(?<![\d.])[23]\.\d+(?!\d)")


def find_floors(files: Iterable[File], texts: Mapping[str, str]) -> dict[str, Floor]:
    """The oldest torch that each folder of a project must do with, and where that is said.

    `.` is the root; a folder with no Python in it or below speaks for the one above it. `texts`
    are the Python files: an import of a package that ended bounds torch as a requirement does.
    """
    files = list(files)
    code = (PurePosixPath(each.relative) for each in files if each.kind in CODE)
    coded = {PurePosixPath(), *(above for path in code for above in path.parents)}
    found: dict[str, list[Floor]] = {}
    for file in files:
        folder = next(at for at in PurePosixPath(file.relative).parents if at in coded).as_posix()
        for floor in read_floors(file):
            found.setdefault(folder, []).append(floor)
    for path, number, name in find_imports(texts):
        above = (at.as_posix() for at in PurePosixPath(path).parents)
        near = next((at for at in above if at in found), ".")
        last = newest(name, "") or ""
        found.setdefault(near, []).append(Floor(last, f"{path}:{number} ({name})"))
    return {folder: min(several, key=age) for folder, several in found.items()}


def read_floors(file: File) -> Iterator[Floor]:
    """What one file says of torch; of Python only where it does not say which torch it needs."""
    image, checks = IMAGES.search(file.relative), CHECKS.search(file.relative)
    if not (image or checks or BUILDS.search(file.relative)):
        return
    text = Path(file.path).read_text(encoding="utf-8", errors="replace")
    if checks and not TESTS.search(text):
        return
    needed = False
    for number, line in enumerate(text.splitlines(), 1):
        place, line = f"{file.relative}:{number}", line.split("#")[0]
        for match in NEEDED.finditer(line):
            needed = True
            yield Floor(match[1], place)
        for match in bounding().finditer(line):
            name = re.sub("_", "-", match[1].lower())
            last = newest(name, match[2] or "")
            if last is not None:
                yield Floor(last, f"{place} ({name})")
    pythons = (RUNS if image or checks else REQUIRES).finditer(text)
    for match in pythons if not needed else ():
        for told in PYTHON.findall(match[1]):
            last = rows("python").get(told)
            number = text.count("\n", 0, match.start()) + 1
            if last is not None:
                yield Floor(last, f"{file.relative}:{number} (Python {told})")


def find_imports(texts: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """Where code imports, as it is loaded, a package that is built for no newer torch."""
    for name in (name for name, row in table()["bounds"].items() if row.get("ended")):
        pattern = re.compile(rf"^(?:import|from) {name}\b", re.M)
        for path, text in texts.items():
            match = pattern.search(text) if name in text else None
            if match is not None:
                yield path, text.count("\n", 0, match.start()) + 1, name


@cache
def bounding() -> re.Pattern[str]:
    """A requirement of a distribution that bounds torch, or torch's own with no oldest version."""
    names = "|".join(re.sub("-", "[-_]", each) for each in table()["bounds"] if each != "python")
    return re.compile(rf"(?<![\w.-])({names})(?![\w-])\s*(?:=\s*)?[\"']?({LIMITS})?", re.I)


def rows(name: str) -> Mapping[str, str]:
    """The torch that each release of a distribution is built for, oldest first."""
    found: Mapping[str, str] = table()["bounds"][name]["releases"]
    return found


def newest(name: str, limits: str) -> str | None:
    """The newest torch for the releases of a distribution that a requirement admits.

    None where that is no bound: a release that is newer than the last row is admitted.
    """
    admitted = list(rows(name))
    for sign, told in re.findall(r"([<>~!^]=?|={1,3})\s*([\d.*]+)", limits):
        at, exact = version(told)[:2], len(version(told)) > 2
        admitted = [each for each in admitted if admits(sign, version(each), at, exact)]
    if not admitted or (
        admitted[-1] == list(rows(name))[-1] and not table()["bounds"][name].get("ended")
    ):
        return None
    return rows(name)[admitted[-1]]


def admits(sign: str, release: tuple[int, ...], at: tuple[int, ...], exact: bool) -> bool:
    """Whether a sign admits some version of a minor release; `exact`: patches are told as well."""
    if sign in ("=", "==", "==="):
        return release[: len(at)] == at
    if sign == "<":
        return release < at or (exact and release == at)
    if sign == "<=":
        return release <= at
    if sign in ("~=", "^"):
        return release == at if exact and sign == "~=" else release[0] == at[0] and release >= at
    return True


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

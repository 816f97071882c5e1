"""With the base packages alone the commands that need no more work, and the others name an extra.

The lines of scripts/clean_machine, which `.ci/run` tries in an environment that really has nothing
else. Here one process sees no package outside the base and what that needs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from scripts.clean_machine import workplace
from scripts.clean_machine.__main__ import has_place
from scripts.clean_machine.attempt import judged, refusal
from scripts.clean_machine.exercises import EXERCISES, Exercise

ROOT = Path(__file__).parents[1]
# Each Python below looks for modules where it always does, but sees none of the refused.
HIDE = """
import json, os, sys
from importlib.machinery import PathFinder

REFUSED = frozenset(json.loads(os.environ["REFUSED"]))
BASE = frozenset(json.loads(os.environ["BASE"]))

class Base(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            return None
        return PathFinder.find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *args, **kwargs):
        for found in PathFinder.find_distributions(*args, **kwargs):
            if found.name.lower().replace("_", "-").replace(".", "-") in BASE:
                yield found

sys.meta_path[sys.meta_path.index(PathFinder)] = Base
"""
PROGRAM = """
import contextlib, io, json, shlex, sys
from joymigrate.cli._main import run

answers = []
for line in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run(shlex.split(line)[1:])
    answers.append([int(code), said.getvalue()])
print(json.dumps(answers))
"""


def base_packages() -> set[str]:
    """Canonical names of the base's distributions, and of what they need."""
    found: set[str] = set()
    waiting = ["joymigrate"]
    while waiting:
        name = canonical(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another Python or system
        waiting += [
            re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra" not in line
        ]
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def refused() -> list[str]:
    """Import names of everything else that is installed."""
    base = base_packages()
    return [
        module
        for module, names in metadata.packages_distributions().items()
        if not base & set(map(canonical, names))
    ]


TRIED = [one for one in EXERCISES if has_place(one, None) and not one.only]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of each line, in the order of the list."""
    room = tmp_path_factory.mktemp("base")
    (room / "hide").mkdir()
    (room / "hide" / "sitecustomize.py").write_text(HIDE, encoding="utf-8")
    workplace.filled(room / "work", ROOT / "examples" / "gpt")
    lines = [one.line for one in TRIED]
    hidden = {"REFUSED": json.dumps(refused()), "BASE": json.dumps(sorted(base_packages()))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(lines),
        cwd=room / "work",
        env={**os.environ, "PYTHONPATH": str(room / "hide"), **hidden},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {line: (code, text) for line, (code, text) in zip(lines, found, strict=True)}


def test_what_is_hidden_is_what_the_extras_bring() -> None:
    hidden = set(refused())
    assert {"torch", "transformers", "safetensors", "aiohttp", "ray", "pyarrow"} <= hidden
    assert not hidden & {"typer", "rich", "yaml", "libcst", "packaging", "pathspec", "pandas"}


@pytest.mark.parametrize("exercise", TRIED, ids=lambda exercise: exercise.line)
def test_a_line_works_with_the_base_alone_or_names_its_extra(
    exercise: Exercise, answers: dict[str, tuple[int, str]]
) -> None:
    code, text = answers[exercise.line]
    fault = refusal(exercise, code, text) if exercise.extras else judged(exercise, code, text)
    assert fault is None, fault

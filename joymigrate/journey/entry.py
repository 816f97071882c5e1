"""The words that start a program, out of what the user wrote behind `--entry`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.launching import PYTHON, resolve

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
OPERATORS = frozenset("|&;<>()")
SHELL = "put it into a script and name that: --entry 'bash run.sh'"
WITH_VALUE = ("-W", "-X", "-c", "-m")  # options of python that take the next word


def read_entry(text: str, project: Path) -> tuple[str, ...]:
    """The command's words; `FOO=1 python …` becomes `env FOO=1 python …`. Empty for no entry.

    What only a shell understands, and a script that is not in `project`, raise `JoyError`.
    """
    if not text.strip():
        return ()
    refuse_shell(text)
    words = split(text)
    if ASSIGNMENT.match(words[0]):
        words.insert(0, "env")
    if words == ["env", *(word for word in words[1:] if ASSIGNMENT.match(word))]:
        raise JoyError("the entry sets variables and starts no program", where=f"--entry {text!r}")
    script = script_of(words)
    if script is not None and not (project / script).is_file():
        raise JoyError(
            f"there is no file '{script}' in the project.{nearest(script, project)}",
            where=str(project),
            help="--entry is started in the project's folder: name its files from there",
        )
    if script is None or script != words[0]:
        first = next((w for w in words if w != "env" and not ASSIGNMENT.match(w)), "env")
        resolve([first], project)
    return tuple(words)


def split(text: str) -> list[str]:
    """Words as a shell splits them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise JoyError(
            f"the entry can't be read: {str(error).lower()}",
            where=f"--entry {text!r}",
            help="close every quotation mark",
        ) from None


def refuse_shell(text: str) -> None:
    """Pipes, lists, redirections and substitutions need a shell, and no shell is started."""
    lexer = shlex.shlex(text, posix=False, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:
        return  # an open quotation mark: `split` says so
    for token in tokens:
        if token and set(token) <= OPERATORS:
            raise JoyError(
                f"the entry is one program, and '{token}' is for a shell",
                where=f"--entry {text!r}",
                help=SHELL,
            )
        if token[0] != "'" and re.search(r"\$[\w({]|`", token):
            raise JoyError(
                f"'{token}' is filled in by a shell, and none is started",
                where=f"--entry {text!r}",
                help=f"write the value itself, or {SHELL}",
            )


def script_of(words: list[str]) -> str | None:
    """The file that a command starts, where that can be told: python, bash or the file itself."""
    rest = [word for word in words if word != "env"]
    while rest and ASSIGNMENT.match(rest[0]):
        rest.pop(0)
    if not rest:
        return None
    first, *rest = rest
    name = Path(first).name
    if first.endswith((".py", ".sh")) or first.startswith("./"):
        return first
    if not (PYTHON.match(name) or name in ("bash", "sh", "zsh")):
        return None
    for word in rest:
        if word in WITH_VALUE:
            return None
        if not word.startswith("-"):
            return word
    return None


def nearest(script: str, project: Path) -> str:
    """The script of the project whose name is nearest."""
    suffix = Path(script).suffix or ".py"
    found = [path for path in project.rglob(f"*{suffix}") if ".joymigrate" not in path.parts]
    names = [path.relative_to(project).as_posix() for path in found[:2000]]
    same = [name for name in names if Path(name).name == Path(script).name]
    return f" Did you mean '{same[0]}'?" if same else did_you_mean(script, names)

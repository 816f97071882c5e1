"""Programs that a project says how to start: in its README, Makefile, scripts, launch files.

Each is proposed with small settings where its options have them: few steps, one epoch, small
batches. Nothing is run here, and nobody is asked.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.journey.entry import read_entry, script_of
from joymigrate.journey.tree import LARGEST, SKIPPED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST = 8  # candidates that are offered
STARTERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "bash", "sh")
STARTS = re.compile(r"^(?:[$>%!]\s*)?((?:[A-Z_][A-Z0-9_]*=\S+\s+)*(?:\S*/)?([\w.]+)\s.*)$")
# What a project starts besides the program that is to be migrated.
OTHER = re.compile(
    r"\b(?:pip|setup\.py|pytest|unittest|venv|http\.server|download|preprocess|prepare|convert"
    r"|export|tensorboard|black|ruff|sphinx|build)\b|download_|prepare_|preprocess_|_data\.py"
)
TRAINS = re.compile(r"train|main|finetune|fit|pretrain|run", re.IGNORECASE)
LATER = re.compile(r"eval|test|infer|predict|demo|sample|generate|benchmark", re.IGNORECASE)
# Options that bound a run, with what is asked for; the first of a kind that a program has is taken.
SMALL = (
    (3, ("max_steps", "max_train_steps", "num_train_steps", "train_steps", "total_steps",
         "num_steps", "n_steps", "steps", "max_iters", "num_iters", "n_iters", "iters",
         "iterations", "max_iterations", "num_iterations")),
    (1, ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "epoch")),
    (4, ("batch_size", "train_batch_size", "per_device_train_batch_size", "bs")),
)  # fmt: skip
DECLARED = re.compile(r"import [\w.]+ as m; m\.\w+\(\)")  # that a package declares
STARTS_ITSELF = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
TRAINER = re.compile(r"HfArgumentParser|TrainingArguments\b")  # its options are not in the file


@dataclass(frozen=True, slots=True)
class EntryCandidate:
    """A command that starts a program, where it was found, and the settings that were made small:
    `--epochs 1 (10)`, with what it said before."""

    command: str
    source: str
    settings: tuple[str, ...] = ()


def find_entries(project: Path) -> list[EntryCandidate]:
    """The programs that a project says how to start, the most likely first."""
    found: dict[str, EntryCandidate] = {}
    for source, line in start_lines(project):
        words = program_words(line, project)
        if words is None:
            continue
        command, settings = small(words, project)
        found.setdefault(command, EntryCandidate(command, source, settings))
    ranked = sorted(found.values(), key=rank)  # stable: what was found first stays first
    return ranked[:MOST]


def rank(one: EntryCandidate) -> int:
    """Training before the rest, evaluation last."""
    script = next((word for word in one.command.split() if word.endswith((".py", ".sh"))), "")
    if LATER.search(script):
        return 2
    return 0 if TRAINS.search(script) else 1


def start_lines(project: Path) -> Iterator[tuple[str, str]]:
    """(place, line) of every line that may start a program."""
    for path in files(project, ("README*", "readme*", "docs/*.md")):
        yield from number_lines(path, project, readme_lines(read(path)))
    for path in files(project, ("Makefile", "makefile")):
        rows = enumerate(read(path).splitlines(), 1)
        recipes = ((n, r.strip().lstrip("@-")) for n, r in rows if r[:1] == "\t")
        yield from number_lines(path, project, recipes)
    for path in files(project, ("*.sh", "scripts/*.sh", "*/*.sh")):
        name = path.relative_to(project).as_posix()
        if any(STARTS.match(line) for _, line in join_continuations(read(path))):
            yield name, f"bash {name}"
    for path in files(project, (".vscode/launch.json",)):
        yield from launch_lines(path, project)
    yield from read_declared(project)
    for path in files(project, ("*.ipynb", "*/*.ipynb")):
        yield from notebook_lines(path, project)
    for path in files(project, ("*.py", "*/*.py", "*/*/*.py")):
        text = read(path)
        if "torch" in text and (STARTS_ITSELF.search(text) or works_when_loaded(text)):
            name = path.relative_to(project).as_posix()
            yield name, f"python {name}"


def works_when_loaded(text: str) -> bool:
    """Whether a file computes in a loop as it is loaded, as an exported notebook does."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.For | ast.While | ast.With) for node in body)


def files(project: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """Files of the project by name, none that others put there."""
    for pattern in patterns:
        for path in sorted(project.glob(pattern)):
            foreign = SKIPPED & set(path.relative_to(project).parts)
            if path.is_file() and not foreign and path.stat().st_size <= LARGEST:
                yield path


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def number_lines(
    path: Path, project: Path, lines: Iterable[tuple[int, str]]
) -> Iterator[tuple[str, str]]:
    """Lines with their place."""
    for number, line in lines:
        yield f"{path.relative_to(project).as_posix()}:{number}", line


def join_continuations(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a shell with their continuations, counted from 1."""
    start, parts = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        parts += line.rstrip().removesuffix("\\").strip() + " "
        if not line.rstrip().endswith("\\"):
            yield start, parts.strip()
            start, parts = 0, ""


def readme_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of code blocks, and those that begin with a prompt or stand alone in backticks."""
    inside = False
    for number, line in join_continuations(text):
        if line.startswith(("```", "~~~")):
            inside = not inside
        elif inside or line.startswith(("$ ", "> ")):
            yield number, line
        else:
            for one in re.findall(r"`([^`]+)`", line):
                yield number, one


def launch_lines(path: Path, project: Path) -> Iterator[tuple[str, str]]:
    """The programs of an editor's launch file."""
    try:
        found = json.loads(re.sub(r"^\s*//.*$", "", read(path), flags=re.M))
        rows = found["configurations"]
    except (ValueError, KeyError, TypeError):
        return
    for row in rows:
        program = str(row.get("program", "")).replace("${workspaceFolder}/", "")
        if program.endswith(".py") and "${" not in program:
            words = ["python", program, *map(str, row.get("args", ()))]
            yield path.relative_to(project).as_posix(), shlex.join(words)


def read_declared(project: Path) -> Iterator[tuple[str, str]]:
    """The programs that a package declares: its module where that starts by itself, else the
    function that is named."""
    roots = find_roots(project)
    for place, name, target in declared_programs(project):
        module, _, function = target.partition(":")
        below = next((p for p in roots if source_of(project / p, module)), None)
        if below is None or not function.isidentifier():
            continue
        first = f"PYTHONPATH={below} " if below else ""
        source = source_of(project / below, module)
        start = f"-c 'import {module} as m; m.{function}()'"
        if source is not None and STARTS_ITSELF.search(read(source)):
            start = f"-m {module}"
        yield f"{place} ({name})", f"{first}python {start}"


def declared_programs(project: Path) -> Iterator[tuple[str, str, str]]:
    """(file, name, `module:function`) of the commands that installing the project makes."""
    found = read_pyproject(project)
    for place in (("project",), ("tool", "poetry")):
        for name, target in table_of(found, *place, "scripts").items():
            yield "pyproject.toml", name, str(target)
    rows = read_setup(project).get("options.entry_points", "console_scripts", fallback="")
    for row in rows.splitlines():
        name, _, target = (part.strip() for part in row.partition("="))
        if target:
            yield "setup.cfg", name, target.partition(" ")[0]


def find_roots(project: Path) -> list[str]:
    """The folders of a project that its modules are imported from, those that it names first."""
    named = dict(table_of(read_pyproject(project), "tool", "setuptools", "package-dir"))
    rows = read_setup(project).get("options", "package_dir", fallback="").splitlines()
    named |= {
        key.strip(): to.strip() for key, equals, to in (r.partition("=") for r in rows) if equals
    }
    found = []
    for package, folder in named.items():
        own = [part for part in package.split(".") if part]
        parts = list(PurePosixPath(str(folder)).parts)
        if parts[len(parts) - len(own) :] == own:  # else the package has another name there
            found.append("/".join(parts[: len(parts) - len(own)]))
    return list(dict.fromkeys([*found, "", "src"]))


def read_pyproject(project: Path) -> dict[str, Any]:
    """A project's pyproject.toml; empty where there is none that can be read."""
    try:
        return tomllib.loads(read(project / "pyproject.toml"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def table_of(found: Any, *names: str) -> dict[str, Any]:
    """A table of a file by the names that lead to it; empty where something else stands there."""
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def read_setup(project: Path) -> configparser.ConfigParser:
    """A project's setup.cfg; empty where there is none that can be read."""
    found = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(OSError, configparser.Error):
        found.read_string(read(project / "setup.cfg"))
    return found


def source_of(folder: Path, module: str) -> Path | None:
    """The file of a module below a folder."""
    base = folder.joinpath(*module.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def notebook_lines(path: Path, project: Path) -> Iterator[tuple[str, str]]:
    """The commands that a notebook's cells start."""
    try:
        cells = json.loads(read(path))["cells"]
    except (ValueError, KeyError, TypeError):
        return
    for number, cell in enumerate(cells, 1):
        source = "".join(cell.get("source", ()))
        for _, line in join_continuations(source):
            if line.startswith("!"):
                yield f"{path.relative_to(project).as_posix()} cell {number}", line


def program_words(line: str, project: Path) -> tuple[str, ...] | None:
    """The words of a line that starts a program of the project; None for other lines."""
    found = STARTS.match(line)
    if found is None or found[2] not in STARTERS or OTHER.search(line):
        return None
    try:
        words = read_entry(found[1].split(" #")[0].rstrip(), project)
    except JoyError:
        return None  # for a shell, with places to fill in, or not in the project
    if any(re.search(r"[<>{}\[\]…]|\.\.\.|/path/to", word) for word in words):
        return None
    return words if of_project(words, project) else None


def of_project(words: tuple[str, ...], project: Path) -> bool:
    """Whether a command starts a file or a module of the project."""
    if any((project / word).is_file() for word in words if word.endswith((".py", ".sh"))):
        return True
    if any(DECLARED.fullmatch(word) for word in words):
        return True  # its module was looked for
    return module_file(words, project) is not None


def module_file(words: tuple[str, ...], project: Path) -> Path | None:
    """The file of the project's module that a command starts with `-m`."""
    if "-m" not in words[:-1]:
        return None
    name = words[words.index("-m") + 1].split(".")
    modules = [project.joinpath(root, *name) for root in find_roots(project)]
    found = (p for m in modules for p in (m.with_suffix(".py"), m / "__main__.py"))
    return next((path for path in found if path.is_file()), None)


def small(words: tuple[str, ...], project: Path) -> tuple[str, tuple[str, ...]]:
    """The command with small settings, and what was made small."""
    options = options_of(words, project)
    made, told = list(words), []
    for value, names in SMALL:
        name = next((one for one in names if one in options), None)
        if name is None:
            continue
        spelled, default = options[name]
        before = option_value(made, spelled)
        known = before if before is not None else default
        if known is not None and known.isdigit() and int(known) <= value:
            continue
        if before is None:
            made += [spelled, str(value)]
        else:
            replace_value(made, spelled, str(value))
        told.append(f"{spelled} {value}" + (f" ({known})" if known else ""))
    return shlex.join(made), tuple(told)


def options_of(words: tuple[str, ...], project: Path) -> dict[str, tuple[str, str | None]]:
    """The options of a Python program by plain name: as they are spelled, and their default."""
    script = script_of(list(words)) or next((w for w in words if w.endswith(".py")), "")
    file = project / script if script else module_file(words, project)
    if file is None or file.suffix != ".py" or not file.is_file():
        return {}
    text = read(file)
    found: dict[str, tuple[str, str | None]] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and callee(node) in ("add_argument", "option", "Option"):
            names = [a.value for a in node.args if isinstance(a, ast.Constant)]
            spelled = next((n for n in names if isinstance(n, str) and n.startswith("--")), None)
            if spelled:
                found[spelled[2:].replace("-", "_")] = (spelled, default_of(node))
    if TRAINER.search(text) and "HfArgumentParser" in text:
        found |= {
            name: (f"--{name}", None) for name in ("max_steps", "per_device_train_batch_size")
        }
    return found


def callee(node: ast.Call) -> str:
    """The last name of what is called."""
    function: Any = node.func
    return getattr(function, "attr", "") or getattr(function, "id", "")


def default_of(node: ast.Call) -> str | None:
    """The default of an option, where it is written as a number."""
    for one in node.keywords:
        if one.arg == "default" and isinstance(one.value, ast.Constant):
            return str(one.value.value)
    return None


def option_value(words: list[str], option: str) -> str | None:
    """What a command says for an option."""
    for number, word in enumerate(words):
        if word == option and number + 1 < len(words):
            return words[number + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def replace_value(words: list[str], option: str, value: str) -> None:
    """Give an option of a command another value."""
    for number, word in enumerate(words):
        if word == option and number + 1 < len(words):
            words[number + 1] = value
        elif word.startswith(f"{option}="):
            words[number] = f"{option}={value}"

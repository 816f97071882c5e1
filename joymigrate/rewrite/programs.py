"""Which programs a script of a project runs, and whether these are programs of torch.

Programs are found by name: `python a/b.py`, `-m pkg.mod`, `torchrun`, names that `pyproject.toml`,
`setup.cfg` or `setup.py` install, and other scripts of the project. Nothing is run; a program whose
name is put together at run time is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePosixPath

from joymigrate.rewrite.files_together import ReachableFiles
from joymigrate.rewrite.readers import _commands
from joymigrate.rewrite.readers._words import ASSIGNMENT, EXPANDED, Command, Script
from joymigrate.rewrite.source import read_text

# Libraries whose users run torch, whether or not they import it themselves.
TORCH = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:[\w.]+,[ \t]*)*(?:torch\w*|pytorch_lightning"
    r"|lightning\w*|transformers|accelerate|diffusers|peft|trl|deepspeed|timm|fairseq\w*|mmcv|mmengine|monai|sentence_transformers)\b",
    re.M,
)
OTHER = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:[\w.]+,[ \t]*)*(?:tensorflow|tf_keras|keras|jax|flax"
    r"|paddle|mxnet)\b",
    re.M,
)
LAUNCHERS = re.compile(
    r"(?:python|pypy|ipython|pytest|py\.test|torchrun|accelerate|deepspeed|colossalai|coverage"
    r"|kernprof|streamlit|gunicorn|uvicorn)[\d.]*"
)
SHELLS = re.compile(r"(?:ba|z|k|da)?sh|source|\.")
# Commands that run what stands behind them, with options and numbers of their own between.
WRAPPERS = frozenset(
    (
        *("sudo", "env", "nohup", "exec", "time", "timeout", "nice", "numactl", "taskset"),
        *("stdbuf", "xargs", "srun", "sbatch", "salloc", "bsub", "mpirun", "mpiexec", "horovodrun"),
        *("uv", "poetry", "pdm", "run", "command", "unbuffer", "xvfb-run", "eval", "conda"),
        *("micromamba", "catchsegv", "singularity", "apptainer"),
    )
)
STARTER = re.compile(rf"(?:.*/)?(?:{LAUNCHERS.pattern}|{SHELLS.pattern})")
STARTED = re.compile(rf"{STARTER.pattern}|(?:.*/)?[\w.-]+\.(?:py|sh|bash)")
PYTHON_FILE = re.compile(r"[\w./-]+\.py\b")
# Modules that start another program, named behind them.
STARTERS = re.compile(r"torch\.distributed\.(?:launch|run)|accelerate\.commands\.\w+|pdb|coverage"
                      r"|cProfile|debugpy|deepspeed\S*|pytest|fire|kernprof")  # fmt: skip
INSTALLED = re.compile(r"([\w.-]+)[\"']?\s*=\s*[\"']?([A-Za-z_][\w.]*):[\w.]+")
PROJECT_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
DEEPEST = 4  # scripts that run scripts


class Programs:
    """The programs of one project, as its scripts run them."""

    def __init__(self, reached: ReachableFiles, texts: Mapping[str, str]) -> None:
        self.files, self.texts, self.tree = reached.files, texts, reached.tree
        self.reached = reached
        self._torch: dict[str, bool] = {}
        self._scripts: dict[str, Script] = {}
        self._below: dict[str, list[str]] = {}

    @cached_property
    def plain(self) -> bool:
        """Whether the project is torch's alone: what it runs by a name made up is so, too."""
        texts = self.texts.values()
        return any(map(TORCH.search, texts)) and not any(map(OTHER.search, texts))

    @cached_property
    def installed(self) -> dict[str, str]:
        """Commands that the project installs, and the file of each."""
        found = {}
        for path, file in self.files.items():
            if path.rpartition("/")[2] in PROJECT_FILES:
                for name, dotted in INSTALLED.findall(read_text(file.path)):
                    place = self.tree.locate(path, dotted)
                    if place is not None:
                        found[name] = place[0]
        return found

    @cached_property
    def by_name(self) -> dict[str, list[str]]:
        """Python files and scripts by their last name."""
        found: dict[str, list[str]] = {}
        for path, file in self.files.items():
            if file.kind in ("python", "shell"):
                found.setdefault(path.rpartition("/")[2], []).append(path)
        return found

    @cached_property
    def scripts(self) -> dict[str, str]:
        """The texts of the project's scripts."""
        found = ((path, file) for path, file in self.files.items() if file.kind == "shell")
        return {path: read_text(file.path) for path, file in found}

    def below(self, path: str) -> list[str]:
        """A Python file and all that it imports of the project."""
        if path not in self._below:
            self._below[path] = sorted(self.reached.below(path))
        return self._below[path]

    def script(self, path: str) -> Script:
        """The commands of a script of the project."""
        if path not in self._scripts:
            self._scripts[path] = _commands.read(self.scripts[path])
        return self._scripts[path]

    def is_torch(self, path: str) -> bool:
        """Whether a Python file uses torch, by itself or by what it imports of the project."""
        if path not in self._torch:
            self._torch[path] = self._find_torch(path)
        return self._torch[path]

    def _find_torch(self, path: str) -> bool:
        own = self.texts.get(path, "")
        if TORCH.search(own) or OTHER.search(own):
            return TORCH.search(own) is not None
        seen, waiting = {path}, [path]
        while waiting:
            for other in sorted(self.reached.imported(waiting.pop(0)) - seen):
                if TORCH.search(self.texts.get(other, "")):
                    return True
                seen.add(other)
                waiting.append(other)
        return False

    def of(self, script: str, command: Command, depth: int = 0) -> tuple[list[str], bool | None]:
        """Files of the programs that a command runs, and whether it runs torch; None: not known."""
        paths, answer = self._of(script, command, depth)
        if answer is None and not paths:
            paths = self._held(script, command)
            answer = any(map(self.is_torch, paths)) if paths else None
        return paths, answer

    def _held(self, script: str, command: Command) -> list[str]:
        """Programs that a script keeps in variables of a command: `CMD="python a/train.py"`."""
        names = {each.name for word in command.words for each in word.expansions}
        found = []
        for word in (word for one in self.script(script).commands for word in one.words):
            given = ASSIGNMENT.match(word.value)
            if given and given[1] in names:
                for path in PYTHON_FILE.findall(word.value[given.end() :]):
                    found += self.named(script, path)[:1]
        return found

    def _of(self, script: str, command: Command, depth: int) -> tuple[list[str], bool | None]:
        words = [word for word in command.words if not ASSIGNMENT.match(word.value)]
        if command.kind != "command":
            return [], False
        at = 0
        while at < len(words) and passes(words[at].value, not at):
            at += 1
        if at:  # the values of a wrapper's options stand between: `srun --prolog a.sh python …`
            behind = [n for n in range(at, len(words)) if STARTED.fullmatch(words[n].value)]
            near = next(iter(behind), at)
            option = words[near - 1].value
            starters = (n for n in behind if STARTER.fullmatch(words[n].value))
            at = next(starters, near) if option[:1] == "-" and "=" not in option else near
        if at == len(words):
            return [], False
        first = words[at].value
        name = first.rpartition("/")[2]
        rest = [word.value for word in words[at + 1 :]]
        if name in self.installed:
            return [self.installed[name]], self.is_torch(self.installed[name])
        if SHELLS.fullmatch(name) or name.endswith((".sh", ".bash")):
            named = rest if SHELLS.fullmatch(name) else [first]
            inner = [p for word in named for p in self.named(script, word) if p in self.files]
            inner = [path for path in inner if self.files[path].kind == "shell"][:1]
            return self.of_script(inner[0], depth + 1) if inner else ([], None)
        if name.endswith(".py"):
            rest = [first, *rest]
        elif EXPANDED in name:
            return self._python(script, rest) if any(map(is_program, rest)) else ([], None)
        elif not LAUNCHERS.fullmatch(name):
            return [], False
        if name.startswith(("pytest", "py.test")) and not any(map(is_program, rest)):
            return [], None
        return self._python(script, rest)

    def _python(self, script: str, rest: list[str]) -> tuple[list[str], bool | None]:
        """The program behind an interpreter or a launcher."""
        for before, word in zip(["", *rest], rest, strict=False):
            if before == "-c":
                return [], TORCH.search(word) is not None or bool(re.search(r"\btorch\b", word))
            if before == "-m" or (before == "--module"):
                if STARTERS.fullmatch(word):
                    continue
                place = self.tree.locate(script, word) or self.tree.locate("", word)
                if EXPANDED in word:
                    return [], None
                return ([place[0]], self.is_torch(place[0])) if place else ([], False)
            if word.endswith(".py"):
                found = self.named(script, word)
                if not found:
                    return [], None
                return found[:1], self.is_torch(found[0])
            if word.rpartition("/")[2] in self.installed:
                path = self.installed[word.rpartition("/")[2]]
                return [path], self.is_torch(path)
        return [], None

    def named(self, script: str, word: str) -> list[str]:
        """Files of the project that a path in a script may mean, the nearest first."""
        name = word.rpartition("/")[2]
        if EXPANDED in name or not name:
            return []
        folder = PurePosixPath(script).parent.parts
        tail = [
            part for part in word.split("/") if part not in (".", "..") and EXPANDED not in part
        ]

        def far(path: str) -> tuple[int, int, str]:
            parts = path.split("/")
            same = next((n for n, (a, b) in enumerate(zip(parts[::-1], tail[::-1], strict=False))
                         if a != b), min(len(parts), len(tail)))  # fmt: skip
            near = sum(1 for a, b in zip(parts, folder, strict=False) if a == b)
            return -same, -near, path

        return sorted(self.by_name.get(name, ()), key=far)

    def of_script(self, script: str, depth: int = 0) -> tuple[list[str], bool | None]:
        """The same for all commands of a script."""
        if depth > DEEPEST:
            return [], None
        found: list[str] = []
        answers: set[bool | None] = set()
        for command in self.script(script).commands:
            paths, answer = self.of(script, command, depth)
            found += paths
            answers |= {answer} if paths or answer is not False else set()
        answer = True if True in answers else None if None in answers else False
        return list(dict.fromkeys(found)), answer

    def given(self, name: str) -> list[str]:
        """Programs that a script of the project gives a file of this name to."""
        found = []
        for path, text in self.scripts.items():
            if name in text:
                for command in self.script(path).commands:
                    if any(word.value.endswith(name) for word in command.words):
                        found += self.of(path, command)[0]
        return list(dict.fromkeys(found))

    def callers(self, script: str) -> list[str]:
        """Scripts of the project that run or read a script."""
        return [path for path, called in self.calls.items() if script in called]

    @cached_property
    def calls(self) -> dict[str, set[str]]:
        """The other scripts that each script names, the nearest one of that name."""
        found: dict[str, set[str]] = {}
        known = {path.rpartition("/")[2] for path in self.scripts}
        for path in self.scripts:
            words = (word.value for one in self.script(path).commands for word in one.words)
            named = {word for word in words if word.rpartition("/")[2] in known}
            found[path] = {near for word in named for near in self.named(path, word)[:1]} - {path}
        return found


def passes(value: str, first: bool) -> bool:
    """Whether a command's word is a wrapper, or an option or number of one before it."""
    if value.rpartition("/")[2] in WRAPPERS:
        return True
    return not first and re.fullmatch(r"-.*|[\d.]+[smhd]?", value) is not None


def is_program(word: str) -> bool:
    """Whether a word names a Python program."""
    return word.endswith(".py") or word == "-m"

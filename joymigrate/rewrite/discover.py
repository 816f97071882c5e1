"""Which files of a project are read, and which are not and why.

Folders are walked in the order of names. Left out: what `.gitignore` files say (nested ones and
negations too, with or without git), version control, environments, caches and build folders.
Symbolic links met on the way are not followed, so there are no loops and nothing outside the
project is touched. A PATH that the user names is always entered, whatever is ignored.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pathspec

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.model import Skipped
from joymigrate.rewrite import readers
from joymigrate.rewrite.git import is_tracked, tracked_though_ignored
from joymigrate.rewrite.values.settings_files import KINDS, find_entries

if TYPE_CHECKING:
    from joymigrate.rewrite.vocabulary import Vocabulary

PYTHON = (".py", ".pyi", ".pyw")
NOT_SOURCE = (
    *(".git", ".hg", ".svn", ".jj", ".bzr", "CVS"),
    *(".venv", "venv", "node_modules", "site-packages", "__pypackages__", ".direnv"),
    *("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"),
    *(".eggs", "*.egg-info", "cmake-build-*", ".ipynb_checkpoints"),
    *(".joymigrate", ".idea", ".vscode", ".terraform"),
)
# Written by builds, unless they are sources: tracked by git, or packages.
BUILT = ("build", "_build", "dist")
# Folders of programs for themselves: nothing in them is anybody's source.
SILENT = (
    *(".git", ".hg", ".svn", ".jj", ".bzr", "CVS", "__pycache__", ".joymigrate", ".idea"),
    *(".vscode", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
)
COUNTED = 10_000  # files of a folder that was left out are counted up to here
# A folder that holds one of these is a Python environment, whatever it is called.
ENVIRONMENT_MARKS = frozenset(("pyvenv.cfg", "conda-meta"))
MB = 1024 * 1024
LIMIT = 50 * MB
# Code that no reader reads. Where it names the device it is listed: nobody is to believe it seen.
FOREIGN = (
    *(".pyx", ".pxd", ".pxi", ".j2", ".jinja", ".jinja2", ".tmpl", ".tpl", ".template", ".mako"),
    *(".rs", ".go", ".java", ".scala", ".kt", ".lua", ".jl", ".r", ".m", ".mm", ".swift", ".js"),
    *(".ts", ".cs", ".bat", ".cmd", ".ps1", ".bzl", ".bazel", ".gradle", ".groovy", ".nix", ".tf"),
    *(".pth", ".pyt", ".slurm", ".sbatch", ".pbs", ".lsf", ".sub", ".ipy", ".in", ".bak", ".orig"),
)
PYTHON_LIMIT = 5 * MB
DATA_LIMIT = 1 * MB
# Written by programs, for programs; a device never stands in them.
DATA_FILES = (
    *(
        "package-lock.json",
        "npm-shrinkwrap.json",
        "pipfile.lock",
        "composer.lock",
        "pnpm-lock.yaml",
    ),
    *("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json"),
    *("*.index.json", "*.min.json", "*.geojson", "*.lock.json", "conda-lock.yml"),
)


@dataclass(frozen=True, slots=True)
class File:
    """One file to read. `kind` is `python` or the name of a reader; `relative` is POSIX."""

    path: Path
    relative: str
    kind: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """The patterns of one `.gitignore`: they hold below `folder` (absolute, ends in a slash)."""

    folder: str
    spec: pathspec.GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """True: ignored; False: taken back in by a negation; None: not mentioned."""
        if not path.startswith(self.folder):
            return None
        return self.spec.check_file(path[len(self.folder) :]).include


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What the settings or the command line leave out.

    `patterns` are written as in `.gitignore` and count from `folder`, which is the settings' own;
    those of a command line (`folder` is relative) count from where it was typed and from the
    folder that is scanned. Unless `force`, a PATH that the user names is read all the same.
    """

    patterns: tuple[str, ...] = ()
    folder: Path = Path()
    force: bool = True

    def ignored(self, root: Path) -> list[Ignored]:
        """The patterns as they hold in a scan of `root`."""
        if not self.patterns:
            return []
        spec = pathspec.GitIgnoreSpec.from_lines(self.patterns)
        folders = [self.folder.resolve()]
        if not (self.folder.is_absolute() and root.is_relative_to(folders[0])):
            folders.append(root)
        return [Ignored(f"{each}/".replace("//", "/"), spec) for each in dict.fromkeys(folders)]


def files(
    paths: Iterable[Path],
    root: Path,
    exclude: Exclusion | None = None,
    vocabulary: Vocabulary | None = None,
) -> tuple[list[File], list[Skipped]]:
    """The files below `paths` in stable order, each once, and what was left out with a reason.

    `vocabulary` says what is looked for: code of a kind that no reader reads is listed where one of
    its words stands in it, and a settings file that is left out where a value is one of its values.
    A PATH that does not exist raises `JoyError`.
    """
    walk = FileWalk(root.resolve(), exclude or Exclusion(), vocabulary)
    for path in paths:
        walk.enter(path)
    return walk.found, walk.skipped


class FileWalk:
    """One walk over the PATHs of a command."""

    def __init__(self, root: Path, exclude: Exclusion, vocabulary: Vocabulary | None) -> None:
        self.root = root
        self._vocabulary = vocabulary
        self._sources: dict[str, frozenset[str]] = {}  # top of a repository → what git tracks
        self.found: list[File] = []
        self.skipped: list[Skipped] = []
        self._seen: set[str] = set()
        self._named: set[str] = set()
        self._force = exclude.force
        self._exclude = exclude.ignored(root)

    def enter(self, path: Path) -> None:
        """Take one PATH: a file as it is, a folder with everything below it."""
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise JoyError(
                f"cannot read {path}: {error.strerror}", help="name a file or a folder that exists"
            ) from None
        real = os.path.realpath(path)
        folder = stat.S_ISDIR(mode)
        excluded = is_ignored(f"{real}/" if folder else real, self._exclude)
        if excluded and self._force:
            self._skip(real, "left out by `exclude`; --no-force-exclude reads it all the same")
            return
        if folder:
            self._named.add(real)
            self._folder(real, [*([] if excluded else self._exclude), *ignores_above(real)])
            return
        if not stat.S_ISREG(mode):
            self._skip(real, "not a regular file")
            return
        kind = kind_of(real)
        if kind is None:
            self._skip(real, "no reader for this kind of file")
            return
        self._take(real, kind)

    def _folder(self, folder: str, ignored: list[Ignored]) -> None:
        """Everything below `folder`, without recursion so that depth is no limit."""
        stack = [(folder, ignored)]
        while stack:
            folder, ignored = stack.pop()
            if folder in self._seen:
                continue
            self._seen.add(folder)
            try:
                with os.scandir(folder) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
            except OSError as error:
                reason = Text("cannot list this folder: {problem}", problem=error.strerror)
                self.skipped.append(Skipped(self._relative(folder), reason))
                continue
            names = {entry.name for entry in entries}
            if names & ENVIRONMENT_MARKS and folder not in self._named:
                self._left_out(folder, "a Python environment")
                continue
            if ".gitignore" in names:
                ignored = [*ignored, *read_ignore(f"{folder}/.gitignore", folder)]
            below: list[tuple[str, list[Ignored]]] = []
            for entry in entries:
                if self._entry(entry, ignored):
                    below.append((entry.path, ignored))
            stack.extend(reversed(below))

    def _entry(self, entry: os.DirEntry[str], ignored: list[Ignored]) -> bool:
        """Take or skip one entry of a folder; True for a folder to walk into."""
        if entry.is_dir(follow_symlinks=False):
            if not_source(entry.name):
                self._left_out(entry.path, "no sources by its name")
                return False
            if entry.name in BUILT and not has_sources(entry.path):
                self._left_out(entry.path, "a folder of build results, not tracked by git")
                return False
            if self._ignored(f"{entry.path}/", ignored):
                self._left_out(entry.path, "left out by .gitignore or --exclude")
                return False
            return True
        if entry.is_symlink():
            if kind_of_link(entry) and not self._ignored(entry.path, ignored):
                target = os.path.relpath(os.path.realpath(entry.path), self.root)
                self._skip(entry.path, Text("a symbolic link (to {target})", target=target))
            return False
        regular = entry.is_file(follow_symlinks=False)
        kind = kind_of(entry.path, look_inside=regular)
        if kind is None:
            if regular and not self._ignored(entry.path, ignored):
                self._pass_over(entry)
            return False
        if self._ignored(entry.path, ignored):
            if kind == "python" or (regular and kind in KINDS and self._holds_value(entry)):
                self._skip(entry.path, "left out by .gitignore or --exclude")
            return False
        if regular:
            self._take(entry.path, kind)
        else:
            self._skip(entry.path, "not a regular file")
        return False

    def _ignored(self, path: str, ignored: list[Ignored]) -> bool:
        """What the patterns say, but for files that git tracks all the same: they are sources."""
        if not is_ignored(path, ignored):
            return False
        if self._exclude and is_ignored(path, self._exclude):
            return True
        bare = path.rstrip("/")
        top = next((up for up in Path(bare).parents if os.path.exists(f"{up}/.git")), None)
        if top is None:
            return True
        if str(top) not in self._sources:
            self._sources[str(top)] = tracked_though_ignored(top)
        return bare not in self._sources[str(top)]

    def _pass_over(self, entry: os.DirEntry[str]) -> None:
        """List code of a kind that no reader reads, where it names the device."""
        lower = entry.name.lower()
        if self._vocabulary is None or not lower.endswith((*FOREIGN, *PYTHON)):
            return
        text = read_below(entry, DATA_LIMIT).lower()
        word = next((word for word in self._vocabulary.words if word in text), None)
        if word is not None:
            reason = Text("no reader for this kind of file; it names `{word}`", word=word)
            self._skip(entry.path, reason)

    def _holds_value(self, entry: os.DirEntry[str]) -> bool:
        """Whether a settings file holds a value of the vocabulary and is not as large as data."""
        if self._vocabulary is None:
            return False
        text = read_below(entry, DATA_LIMIT)
        return next(find_entries(text, self._vocabulary.values), None) is not None

    def _take(self, path: str, kind: str) -> None:
        """Add one file unless it is too large, unreadable, or there already."""
        if path in self._seen:
            return
        self._seen.add(path)
        reason = unfit(path, kind)
        if reason:
            self.skipped.append(Skipped(self._relative(path), reason))
            return
        self.found.append(File(Path(path), self._relative(path), kind))

    def _left_out(self, folder: str, why: str) -> None:
        """Say that a folder was not read, with the number of Python files in it, if any."""
        if os.path.basename(folder) in SILENT or folder in self._seen:
            return
        number = python_files(folder)
        if number:
            self._seen.add(folder)
            files = f"{number}" if number < COUNTED else f"{COUNTED} or more"
            reason = Text("{why}; Python files inside: {files}", why=Text(why), files=files)
            self.skipped.append(Skipped(self._relative(folder), reason, number))

    def _skip(self, path: str, reason: str) -> None:
        if path not in self._seen:
            self._seen.add(path)
            self.skipped.append(Skipped(self._relative(path), reason))

    def _relative(self, path: str) -> str:
        """POSIX path from the root; with `..` for a PATH outside of it."""
        return relative(path, self.root)


def read_below(entry: os.DirEntry[str], limit: int) -> str:
    """Text of a file; empty above `limit` bytes and where it can't be read."""
    try:
        if entry.stat().st_size > limit:
            return ""
        with open(entry.path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def has_sources(folder: str) -> bool:
    """Whether a folder with the name of a build folder holds sources."""
    if os.path.exists(f"{folder}/__init__.py"):
        return True
    top = next((up for up in Path(folder).parents if (up / ".git").exists()), None)
    return top is not None and is_tracked(top, Path(folder).relative_to(top).as_posix())


def python_files(folder: str) -> int:
    """Number of Python files below a folder, up to a limit."""
    number = 0
    for _, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in SILENT]
        number += sum(1 for name in files if name.endswith(PYTHON))
        if number >= COUNTED:
            return COUNTED
    return number


def relative(path: str | Path, root: Path) -> str:
    """POSIX path of `path` from `root`."""
    text, base = str(path), str(root)
    if text.startswith(base + os.sep):
        return text[len(base) + 1 :].replace(os.sep, "/")
    return os.path.relpath(text, base).replace(os.sep, "/")


def kind_of(path: str, *, look_inside: bool = True) -> str | None:
    """`python`, the name of a reader, or None for a file that is none of our business."""
    folder, _, name = path.replace(os.sep, "/").rpartition("/")
    if name.endswith(PYTHON):
        return "python"
    kind = readers.kind_of_name(name, folder)
    if kind is None and look_inside and "." not in name.lstrip("."):
        try:
            with open(path, "rb") as file:
                return readers.kind_of_head(file.read(80))
        except OSError:
            return None
    return kind


def kind_of_link(entry: os.DirEntry[str]) -> bool:
    """Whether a symbolic link leads to something that would be read: a folder or a known kind."""
    try:
        return entry.is_dir() or kind_of(entry.path, look_inside=False) is not None
    except OSError:
        return True  # a loop


def unfit(path: str, kind: str) -> str | None:
    """Why a file is not read, from its size, rights and name alone."""
    try:
        size = os.stat(path).st_size
    except OSError as error:
        return Text("cannot read: {problem}", problem=error.strerror)
    if size > LIMIT:
        return Text(
            "{size} MB, over the limit of {limit} MB", size=f"{size / MB:.0f}", limit=LIMIT // MB
        )
    if kind == "python" and size > PYTHON_LIMIT:
        limit = PYTHON_LIMIT // MB
        return Text(
            "{size} MB of Python, taken for generated code (limit {limit} MB)",
            size=f"{size / MB:.0f}",
            limit=limit,
        )
    name = os.path.basename(path).lower()
    if kind in KINDS:
        if data_file(name):
            return "data written by a program, not configuration"
        if size > DATA_LIMIT:
            return Text(
                "{size} MB, taken for data (limit {limit} MB)",
                size=f"{size / MB:.1f}",
                limit=DATA_LIMIT // MB,
            )
    if not os.access(path, os.R_OK):
        return "cannot read: Permission denied"
    return None


@functools.cache
def one_of(globs: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for several globs."""
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))


def not_source(name: str) -> bool:
    """Whether a folder of this name never holds the project's own sources."""
    return bool(one_of(NOT_SOURCE).match(name))


def data_file(name: str) -> bool:
    """Whether a file of this name is written by a program."""
    return bool(one_of(DATA_FILES).match(name))


def is_ignored(path: str, ignored: list[Ignored]) -> bool:
    """What the patterns say together: the one nearest to the file that mentions it decides."""
    for each in reversed(ignored):
        verdict = each.verdict(path)
        if verdict is not None:
            return verdict
    return False


def read_ignore(file: str, folder: str) -> Iterator[Ignored]:
    """The patterns of one ignore file, none if it can't be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as handle:
            spec = pathspec.GitIgnoreSpec.from_lines(handle)
    except (OSError, ValueError):
        return
    yield Ignored(folder.rstrip("/") + "/", spec)


def ignores_above(folder: str) -> list[Ignored]:
    """Ignore files above `folder`, up to the top of its git repository.

    None when they ignore `folder` itself: the user named it.
    """
    top = next(
        (up for up in (folder, *map(str, Path(folder).parents)) if os.path.exists(f"{up}/.git")),
        None,
    )
    if top is None:
        return []
    found = list(read_ignore(f"{top}/.git/info/exclude", top))
    at = top
    if folder != top:
        for part in ["", *folder[len(top) :].strip("/").split("/")[:-1]]:
            at = f"{at}/{part}" if part else at
            found += read_ignore(f"{at}/.gitignore", at)
    ups = [folder, *(str(up) for up in Path(folder).parents if len(str(up)) > len(top))]
    if folder != top and any(is_ignored(f"{up}/", found_above(found, up)) for up in ups):
        return []
    return found


def found_above(found: list[Ignored], path: str) -> list[Ignored]:
    """Those patterns that lie above `path`."""
    return [
        each for each in found if f"{path}/".startswith(each.folder) and each.folder != f"{path}/"
    ]

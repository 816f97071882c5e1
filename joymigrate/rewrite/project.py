"""The scan of a whole project: files side by side, then the questions between them."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.model import Finding, Scan, Style, Tier
from joymigrate.rewrite import analyse, discover, module_index, native
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.entries import GUARD, entries
from joymigrate.rewrite.readers import kernels

if TYPE_CHECKING:
    from joymigrate.rewrite.codemod import Codemod

Progress = Callable[[int, int], None]
# Below this many bytes a second process costs more than it saves.
PARALLEL_BYTES = 1_500_000
STEPS = 8  # files that a value is followed through on its way to a comparison
WORD = re.compile(r"\w+")


def scan(
    paths: Sequence[Path],
    *,
    chip: Chip,
    origin: Chip,
    style: Style = Style.DIRECT,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    exclude: Sequence[str] = (),
    follow_imports: Sequence[str] = (),
    jobs: int = 0,
    chip_version: str | None = None,
    want_kept: bool = False,
    codemods: tuple[type[Codemod], ...] = (),
    on_progress: Progress | None = None,
) -> Scan:
    """Find every site of the projects at `paths` for a move from `origin` to `chip`.

    `select` and `ignore` are rule ids, beginnings of ids, or rule names. `jobs` is the number of
    processes, 0 for one per core. `codemods` are those of the project or of packages.
    Paths of findings are relative to the common root of `paths`.
    """
    began = time.perf_counter()
    if style is Style.SHIM and not chip.shim.get("line"):
        raise JoyError(
            f"no run-time shim is known for {chip.name}", help="use --style direct or agnostic"
        )
    context = Context.between(chip, origin, style, chip_version, codemods)
    root = common_root(paths)
    files, skipped = discover.files(paths, root, exclude)
    dependencies = [f for name in follow_imports for f in installed(name, root)]
    texts = {f.relative: read_text(f.path) for f in [*files, *dependencies] if f.kind == "python"}
    tree = index_of(texts)
    job = analyse.Job(
        context=context,
        tree=tree,
        own_methods=own_methods(texts, origin.tensor["cuda"]),
        active=selection(context, select, ignore),
        want_kept=want_kept,
        entries=entries(texts, tree) if style is Style.SHIM else frozenset(),
    )
    del texts
    global _JOB  # handed to forked workers without pickling
    _JOB = job
    with searches_paused():
        results = list(run([*files, *dependencies], jobs, on_progress))
        results = settle(results, {f.relative: f for f in [*files, *dependencies]}, job)
    outside = {f.relative for f in dependencies}
    findings = [
        dependency(finding) if result.path in outside else finding
        for result in results
        for finding in (*result.findings, *(item.no for item in result.open))
        if job.active(finding.rule) or finding.rule == "JM001"
    ]
    findings = native.leave(with_callers(findings, files), chip, root)
    findings.sort(key=lambda f: (f.path, f.cell or 0, f.line, f.column, f.rule))
    return Scan(
        root=root,
        to=chip.name,
        origin=origin.name,
        style=style,
        findings=tuple(findings),
        scanned=len(results),
        skipped=tuple(skipped),
        kept=tuple(k for r in results for k in r.kept),
        unused_ignores=tuple(u for r in results for u in r.unused),
        suppressed=sum(r.suppressed for r in results),
        lines=sum(r.lines for r in results),
        seconds=time.perf_counter() - began,
        digests={r.path: r.digest for r in results},
        rules=tuple(one.rule() for one in codemods),
    )


_JOB: analyse.Job | None = None


def with_callers(findings: list[Finding], files: Iterable[File]) -> list[Finding]:
    """Add to operators that CUDA sources bind which Python files call them."""
    if not any(kernels.is_bound(finding) for finding in findings):
        return findings
    python = {f.relative: read_text(f.path) for f in files if f.kind == "python"}
    return kernels.relate(findings, python)


def common_root(paths: Sequence[Path]) -> Path:
    """The folder that findings are relative to: the nearest one above all PATHs."""
    if not paths:
        raise JoyError("no PATH was given", help="joymigrate scan .")
    folders = []
    for path in paths:
        if not path.exists():
            raise JoyError(f"no such file or folder: {path}", help="name an existing PATH")
        folders.append(path.resolve() if path.is_dir() else path.resolve().parent)
    return Path(os.path.commonpath(folders))


def tree_of(files: Iterable[File]) -> module_index.ModuleIndex:
    """The project's Python files, with what each imports and how programs are started."""
    texts = {file.relative: read_text(file.path) for file in files if file.kind == "python"}
    return index_of(texts)


def index_of(texts: Mapping[str, str]) -> module_index.ModuleIndex:
    """The index of a project from the texts of its Python files."""
    tree = module_index.ModuleIndex.of(list(texts))
    imports = {path: frozenset(ABSOLUTE.findall(text)) for path, text in texts.items()}
    tree = replace(tree, imports=imports, scripted=scripted(texts, imports, tree))
    loose = {path.split("/")[0] for path in texts if "/" in path}
    candidates = loose - set(tree.packages)
    if not candidates:
        return tree
    pattern = re.compile(
        rf"^[ \t]*(?:from|import)[ \t]+({'|'.join(map(re.escape, sorted(candidates)))})\.", re.M
    )
    roots: dict[str, str] = {}
    for path, text in texts.items():
        if {name.partition(".")[0] for name in imports[path]} & candidates:
            roots.update((name, name) for name in pattern.findall(text))
    return replace(tree, imported_roots=roots)


ABSOLUTE = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]*)", re.M)
RELATIVE = re.compile(r"^[ \t]*from[ \t]+\.", re.M)


def scripted(
    texts: Mapping[str, str],
    imports: Mapping[str, frozenset[str]],
    tree: module_index.ModuleIndex,
) -> frozenset[str]:
    """Folders of packages in which programs are started, where no `pkg` can be imported.

    Their files import what lies beside them by its bare name (`cd pkg; python train.py`), or one
    of them has a `__main__` guard and imports nothing of its package (`python pkg/train.py`).
    """
    found = set()
    for path, text in texts.items():
        folder = str(PurePosixPath(path).parent)
        package = tree.package(path)
        if not package or folder in found:
            continue
        names = {name.partition(".")[0] for name in imports[path]}
        guarded = "__main__" in text and GUARD.search(text)
        if guarded and not RELATIVE.search(text) and not names & {package[0], *tops_of(tree)}:
            found.add(folder)  # `python tools/train.py`, as far as this file can tell
            continue
        for name in names - {PurePosixPath(path).stem}:  # `deepspeed.py` imports the package
            beside = f"{folder}/{name}.py" in tree.paths or f"{folder}/{name}" in tree.folders
            above = f"{name}.py" in tree.paths or name in tree.folders
            if beside and not above and name not in sys.stdlib_module_names:
                found.add(folder)
    return frozenset(found)


def tops_of(tree: module_index.ModuleIndex) -> set[str]:
    """Names of the packages at the project's top."""
    return {folder.rpartition("/")[2] for folder in tree.packages}


def read_text(path: Path) -> str:
    """Text of a file for word searches; undecodable bytes don't matter here."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def own_methods(texts: Mapping[str, str], method: str) -> frozenset[str]:
    """Files whose classes define the origin's device method themselves."""
    wanted = re.compile(rf"^[ \t]+(?:async )?def {re.escape(method)}\b", re.M)
    word = f"def {method}"
    return frozenset(path for path, text in texts.items() if word in text and wanted.search(text))


def installed(package: str, root: Path) -> Iterator[File]:
    """Python files of an installed package, with paths that start with `site-packages/`."""
    try:
        spec = importlib.util.find_spec(package.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise JoyError(
            f"package '{package}' is not installed here",
            help="install it in this environment, or leave it out of --follow-imports",
        )
    places = [Path(p) for p in spec.submodule_search_locations or ()]
    if not places and spec.origin:
        yield File(Path(spec.origin), f"site-packages/{Path(spec.origin).name}", "python")
    for place in places:
        for path in sorted(place.rglob("*.py")):
            relative = path.relative_to(place.parent).as_posix()
            yield File(path, f"site-packages/{relative}", "python")


def dependency(finding: Finding) -> Finding:
    """A finding of an installed package: never rewritten in place."""
    reason = "in an installed package; `joymigrate run --follow-imports` rewrites it as it loads"
    if finding.tier is not Tier.SAFE:
        reason = finding.reason or "in an installed package"
    return replace(finding, tier=Tier.REPORT, after=None, edits=(), needs=None, reason=reason)


def selection(
    context: Context, select: Sequence[str], ignore: Sequence[str]
) -> Callable[[str], bool]:
    """Whether a rule is wanted. An id that fits no rule raises `JoyError`."""
    chosen = expand(context, select) if select else set(context.rules)
    chosen -= expand(context, ignore)
    return chosen.__contains__


def expand(context: Context, words: Sequence[str]) -> set[str]:
    """Rule ids for ids, beginnings of ids (`JM1`) and names (`device-string`)."""
    from joymigrate.errors import did_you_mean

    found: set[str] = set()
    for word in (part for item in words for part in item.split(",") if part):
        fits = {r.id for r in context.rules.values() if r.id.startswith(word) or r.name == word}
        if not fits:
            known = [*context.rules, *(r.name for r in context.rules.values())]
            raise JoyError(
                f"unknown rule '{word}'.{did_you_mean(word, known)}",
                help="joymigrate explain --list",
            )
        found |= fits
    return found


def run(files: list[File], jobs: int, on_progress: Progress | None) -> Iterator[analyse.Result]:
    """Analyse every file, in several processes when there is enough to do."""
    workers = jobs or os.cpu_count() or 1
    size = sum(size_of(file.path) for file in files)
    if (
        workers == 1
        or size < PARALLEL_BYTES
        or "fork" not in multiprocessing.get_all_start_methods()
    ):
        for number, file in enumerate(files, 1):
            yield _work(file)
            if on_progress is not None:
                on_progress(number, len(files))
        return
    # Big files first, so that no worker is left with one at the end.
    order = sorted(files, key=lambda file: -size_of(file.path))
    with interrupts_held():
        pool = multiprocessing.get_context("fork").Pool(workers, begin_worker, (os.getpid(),))
    with pool:
        for number, result in enumerate(pool.imap_unordered(_work, order, chunksize=4), 1):
            yield result
            if on_progress is not None:
                on_progress(number, len(files))


@contextmanager
def searches_paused() -> Iterator[None]:
    """No search for circular garbage while syntax trees come and go: they leave none.

    With it the parsing of a large project takes three to four times as long.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C back for a moment: a worker inherits this until it can ignore the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(parent: int) -> None:
    """Ctrl-C reaches every process of a terminal; the first one ends the workers.

    A worker whose parent died without a word ends by itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()


def end_with(parent: int) -> None:
    """End this process when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def size_of(path: Path) -> int:
    """Size in bytes, 0 for what can't be asked."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _work(file: File) -> analyse.Result:
    assert _JOB is not None
    try:
        return analyse.analyse(file, _JOB)
    except Exception as error:
        error.add_note(f"while scanning {file.path}") if hasattr(error, "add_note") else None
        raise


def settle(
    results: list[analyse.Result], files: dict[str, File], job: analyse.Job
) -> list[analyse.Result]:
    """Decide the open sites by following their keys through the other files."""
    waiting = [result for result in results if result.open]
    asked = Questions(files, job)
    asked.explore({key for r in waiting for item in r.open for key in owned(item.keys, r.path)})
    decided: dict[str, analyse.Result] = {}
    answers: dict[str, dict[str, bool]] = {}
    for result in waiting:
        answers[result.path] = {
            analyse.place(item): asked.reaches(owned(item.keys, result.path), item.kind)
            for item in result.open
        }
        decided[result.path] = analyse.settled(files[result.path], job, answers[result.path])
    results = [decided.get(result.path, result) for result in results]
    # A rewritten value moves the comparisons that see it in other files.
    sent: dict[str, set[str]] = defaultdict(set)
    for result in results:
        for kind, key in result.sent:
            sent[kind].add(key)
    for number, result in enumerate(results):
        moved = {
            analyse.place(item): True
            for item in result.watched
            if asked.comes_from(owned(item.sources, result.path), sent[item.kind])
        }
        if moved:
            answers[result.path] = answers.get(result.path, {}) | moved
            results[number] = analyse.settled(files[result.path], job, answers[result.path])
    return launched(hold(results, files, job, answers), files, job)


def hold(
    results: list[analyse.Result],
    files: dict[str, File],
    job: analyse.Job,
    answers: Mapping[str, Mapping[str, bool]],
) -> list[analyse.Result]:
    """Leave conditions of the project as they are where code behind them can't move.

    `if is_cuda_available(): torch.cuda.only_there()`: the function stays, and with it all that
    other files do behind it. What stays then may hold further conditions.
    """
    asking = Conditions(files, job)
    for _ in range(STEPS):
        fresh = {
            each: reason_in(result.path, reason)
            for result in results
            for key, reason in result.holding
            for each in asking.chain(key)
            if each not in job.held
        }
        if not fresh:
            break
        job = replace(job, held={**job.held, **fresh})
        owners = {key.partition("::")[0] for key in fresh}
        names = {last_word(key) for key in fresh}
        for number, result in enumerate(results):
            used = {key for key in result.guarding if last_word(key) in names}
            if result.path in owners or any(asking.chain(key) & fresh.keys() for key in used):
                aliases = {
                    k: next(iter(fresh.values())) for k in used if asking.chain(k) & fresh.keys()
                }
                own = replace(job, held={**job.held, **aliases})
                known = answers.get(result.path, {})
                results[number] = analyse.settled(files[result.path], own, known)
    return results


def reason_in(path: str, reason: str) -> str:
    """A reason with the file that it speaks of."""
    return Text("{reason}, in {path}", reason=reason, path=path)


def last_word(key: str) -> str:
    """The name at the end of a key."""
    return key.strip("#()").rpartition("::")[2].strip("#()")


class Conditions:
    """Which conditions of a project ask for the origin's device, by themselves or by others."""

    def __init__(self, files: dict[str, File], job: analyse.Job) -> None:
        self.files = {path: file for path, file in files.items() if file.kind == "python"}
        self.job = job
        self._asks: dict[str, tuple[bool, set[str]]] = {}
        self._chains: dict[str, frozenset[str]] = {}

    def chain(self, key: str) -> frozenset[str]:
        """The key and those that it asks, down to the question; empty where there is none."""
        if key not in self._chains:
            self._chains[key] = frozenset(self._followed(key, STEPS) or ())
        return self._chains[key]

    def _followed(self, key: str, steps: int) -> set[str]:
        owner = key.partition("::")[0]
        if owner not in self.files or not steps:
            return set()
        if key not in self._asks:
            self._asks[key] = analyse.condition(self.files[owner], self.job, key)
        asks, further = self._asks[key]
        below = {each for other in further for each in self._followed(other, steps - 1)}
        return {key, *below} if asks or below else set()


def launched(
    results: list[analyse.Result], files: dict[str, File], job: analyse.Job
) -> list[analyse.Result]:
    """Read launch lines again that give values to options whose values were rewritten.

    `run.sh: --place cuda` goes with `add_argument("--place", choices=["cuda", "cpu"])`.
    """
    options = dict(each for result in results for each in result.options)
    if not options:
        return results
    words = "|".join(re.escape(name).replace("_", "[-_]") for name in sorted(options))
    given = re.compile(rf"--(?:{words})\b")
    job = replace(job, context=replace(job.context, options=tuple(sorted(options.items()))))
    return [
        analyse.analyse(files[result.path], job)
        if files[result.path].kind != "python" and given.search(read_text(files[result.path].path))
        else result
        for result in results
    ]


def owned(keys: Iterable[str], path: str) -> set[str]:
    """Keys with the file they belong to."""
    return {key if "::" in key or key.startswith(".") else f"{path}::{key}" for key in keys}


class Questions:
    """Follows keys from file to file, all of them at once, one round per step of the way."""

    def __init__(self, files: dict[str, File], job: analyse.Job) -> None:
        self.files = {path: file for path, file in files.items() if file.kind == "python"}
        self.job = job
        self.texts: dict[str, str] = {}
        self.kinds: dict[str, set[str]] = defaultdict(set)
        self.links: dict[str, set[str]] = defaultdict(set)
        self._origins: dict[str, set[str]] = {}  # key → where its values come from

    def explore(self, keys: set[str]) -> None:
        """Ask every file that could know one of `keys`, then for the keys they lead to."""
        seen: set[str] = set()
        while fresh := keys - seen:
            seen |= fresh
            by_file: dict[str, set[str]] = defaultdict(set)
            for key in fresh:
                for path in self.candidates(key):
                    by_file[path].add(key)
            for path, wanted in sorted(by_file.items()):
                found = analyse.answer(self.files[path], self.job, frozenset(wanted))
                for key, (kinds, further) in found.items():
                    self.kinds[key] |= kinds
                    self.links[key] |= further
            keys = {further for key in fresh for further in self.links[key]}

    def reaches(self, keys: set[str], kind: str) -> bool:
        """Whether a value under any of `keys` arrives at a sink of this kind."""
        seen, todo = set(keys), list(keys)
        while todo:
            key = todo.pop()
            if kind in self.kinds[key]:
                return True
            fresh = self.links[key] - seen
            seen |= fresh
            todo += fresh
        return False

    def comes_from(self, keys: set[str], values: set[str]) -> bool:
        """Whether a value under any of `keys` may be one of `values`, through other files."""
        seen: set[str] = set()
        fresh = set(keys) if values else set()
        for _ in range(STEPS):
            if fresh & values:
                return True
            seen |= fresh
            by_file: dict[str, set[str]] = defaultdict(set)
            for key in fresh:
                owner, _, local = key.partition("::")
                if local and owner in self.files and key not in self._origins:
                    by_file[owner].add(local)
            for path, wanted in sorted(by_file.items()):
                for local in wanted:
                    self._origins[f"{path}::{local}"] = analyse.origins(
                        self.files[path], self.job, frozenset((local,))
                    )
            fresh = {each for key in fresh for each in self._origins.get(key, ())} - seen
        return False

    def candidates(self, key: str) -> list[str]:
        """Files that could carry a key's value on: its own, and those that use its name."""
        owner, _, local = key.rpartition("::")
        found = [owner] if owner in self.files else []
        uses = self.use(owner, local)
        if uses is not None:
            name = local.strip(".#()").rpartition(".")[2]
            named = self.files_by_word.get(name, ())
            found += [p for p in named if p != owner and uses(self.text(p))]
        return sorted(found)

    @cached_property
    def files_by_word(self) -> dict[str, list[str]]:
        """Which files hold a word: a pattern is only searched where its name stands."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in self.files:
            for word in set(WORD.findall(self.text(path))):
                found[word].append(path)
        return found

    def use(self, owner: str, local: str) -> Callable[[str], bool] | None:
        """Whether another file's text could use a key; None for parameters, which only their file
        reads."""
        name = re.escape(local.strip(".#()").rpartition(".")[2])
        if not name or "@" in local or ("#" in local and not local.startswith("#")):
            return None
        if local.startswith("."):
            pattern = re.compile(rf"\.{name}\b|[\"']{name}[\"']")
        elif local.endswith("()"):
            pattern = re.compile(rf"\b{name}\s*\(")
        else:
            stem = PurePosixPath(owner).stem
            home = PurePosixPath(owner).parent.name if stem == "__init__" else stem
            return partial(
                imported, re.compile(rf"\b{name}\b"), re.compile(rf"\b{re.escape(home)}\.$")
            )
        return lambda text: pattern.search(text) is not None

    def text(self, path: str) -> str:
        """Text of a file, kept while questions are asked."""
        if path not in self.texts:
            self.texts[path] = read_text(self.files[path].path)
        return self.texts[path]


def imported(name: re.Pattern[str], home: re.Pattern[str], text: str) -> bool:
    """Whether a text may import a name: behind `import`, alone on a line of its own inside of
    brackets, or as `home.name`."""
    for found in name.finditer(text):
        line = text.rfind("\n", 0, found.start()) + 1
        before = text[line : found.start()]
        if "import" in before or home.search(before):
            return True
        if before and before.isspace():
            end = text.find("\n", found.end())
            after = text[found.end() : end if end >= 0 else len(text)]
            if after.strip() in ("", ","):
                return True
    return False

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from joymigrate import processors
from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.model import Finding, Scan, Skipped, Style, Tier
from joymigrate.rewrite import (
    analyse,
    discover,
    flow_sinks,
    import_failures,
    module_index,
    native,
    own_classes,
    python,
    solve,
    third_party,
)
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.cross_file import settle
from joymigrate.rewrite.dead_definitions import doubt_unrunnable
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.distributions import find_built
from joymigrate.rewrite.entries import add_imports
from joymigrate.rewrite.files_together import ReachableFiles, leave_together
from joymigrate.rewrite.import_trees import Trees
from joymigrate.rewrite.kernel_callers import doubt_callers
from joymigrate.rewrite.module import HELPER
from joymigrate.rewrite.module_index import GUARD
from joymigrate.rewrite.object_files import ObjectFiles
from joymigrate.rewrite.outside_python import leave_unseen
from joymigrate.rewrite.packed_files import find_packed
from joymigrate.rewrite.portable.floors import find_floors
from joymigrate.rewrite.prefilter import clues
from joymigrate.rewrite.readers import kernels, notebook
from joymigrate.rewrite.source import SourceText, Unreadable, decode, read_text
from joymigrate.rewrite.test_replacements import leave_replaced
from joymigrate.rewrite.unused_imports import doubt_alone, doubt_unused
from joymigrate.rewrite.values import neighbour_files
from joymigrate.rewrite.values.graph import ValueGraph
from joymigrate.rewrite.values.settings_files import is_settings, keys_naming, read_naming
from joymigrate.rewrite.vocabulary import Vocabulary

if TYPE_CHECKING:
    from joymigrate.rewrite.codemod import Codemod

Progress = Callable[[int, int], None]
# Below this many bytes a second process costs more than it saves.
PARALLEL_BYTES = 1_500_000


def scan(
    paths: Sequence[Path],
    *,
    chip: Chip,
    origin: Chip,
    style: Style = Style.DIRECT,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    exclude: discover.Exclusion | None = None,
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
    words = Vocabulary.of(context)
    files, skipped = discover.files(paths, root, exclude, words)
    told = read_naming(((f.relative, f.path) for f in files), words.values)
    dependencies = [f for name in follow_imports for f in read_installed(name, root)]
    if style is Style.AGNOSTIC:
        context = replace(context, configured=keys_naming(told, words.exact_device))
    texts, exact = read_python([*files, *dependencies])
    if style is Style.ACCELERATOR:
        context = replace(context, floors=find_floors(files, texts))
    tree = index_of(texts, origin.device, root if style is Style.AGNOSTIC else None)
    named = {f.relative: f for f in files}
    reached = ReachableFiles(named, tree)
    method = origin.tensor["cuda"]
    own = own_classes.own_methods(texts, method)
    job = analyse.ScanContext(
        context=context,
        tree=tree,
        own_methods=own,
        own_near=ObjectFiles(reached).beside(own) if own and own <= named.keys() else None,
        own_names=own_classes.own_names(texts, own),
        own_placing=own_classes.own_placing(texts, method),
        own_plain=own_classes.own_plain(texts, method),
        own_flags=own_classes.own_flags(texts, origin.tensor["is_cuda"]),
        active=selection(context, select, ignore),
        want_kept=want_kept,
        texts=texts,
        packed=find_packed(root, files, texts) if style is Style.AGNOSTIC else {},
        exact=exact,
    )
    global _JOB  # handed to forked workers without pickling
    _JOB = job
    with searches_paused():
        results = list(run([*files, *dependencies], jobs, on_progress))
        everything = {f.relative: f for f in [*files, *dependencies]}
        outside = {f.relative for f in dependencies}
        mine = {name: text for name, text in texts.items() if name not in outside}
        joined = {r.path: r.joined for r in results if r.joined is not None}
        named_values = mine | {path: data.decode("utf-8", "replace") for path, data in told.items()}
        graph = graph_of(
            root, named_values, words, lambda p: job.content(everything[p]), skipped, tree, joined
        )
        results = settle(results, everything, job, graph)
        analyse.close_modules(job)
    findings = [
        dependency(finding) if result.path in outside else finding
        for result in results
        for finding in (*result.findings, *(item.no for item in result.open))
        if job.active(finding.rule) or finding.rule == "JM001"
    ]
    trees = Trees(mine, tree)
    if style is Style.SHIM:
        findings = add_imports(findings, results, reached, job, trees)
    findings = native.leave(with_callers(findings, mine), chip, root)
    findings = leave_together(findings, context.rules, reached)
    findings = leave_replaced(findings, words.module, texts, reached)
    bound = third_party.table_of(context).bound
    lacking = import_failures.find_lacking(trees, root, chip.device, bound)
    findings = import_failures.doubt(findings, lacking)
    findings = doubt_unrunnable(findings, trees, lacking, bound, chip.device)
    findings = doubt_unused(findings, mine)
    findings = doubt_callers(findings, trees, origin.device, chip.device)
    findings = leave_unseen(findings, results, reached, job, texts)
    ways: Mapping[solve.Site, solve.Way] = {}
    if chip.device != origin.device:
        staying = [(r.path, each) for r in results for each in r.holding]
        held = solve.hold(findings, graph, words, staying, by_shim=style is Style.SHIM)
        ways = solve.ways_of(findings, held)
        findings = solve.apply_decisions(findings, held)
    findings = findings if style is Style.SHIM else doubt_alone(findings)
    # An import that nothing needs any more is no site.
    findings = [each for each in findings if each.rule != "JM001" or each.edits]
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
        ways=ways,
    )


_JOB: analyse.ScanContext | None = None


def graph_of(
    root: Path,
    texts: Mapping[str, str],
    vocabulary: Vocabulary,
    content: Callable[[str], bytes],
    skipped: Iterable[Skipped],
    tree: module_index.ModuleIndex | None = None,
    notebooks: Mapping[str, analyse.JoinedCells] | None = None,
) -> ValueGraph:
    """The values of a project, with the files that the scan leaves out and its files know.

    `content` gives the bytes of a file of `texts`, Python and settings; `tree` is the index of its
    Python files where it is known.
    """
    python = {path: text for path, text in texts.items() if not is_settings(path)}
    tree = tree or index_of(python, vocabulary.device)
    left = neighbour_files.find_left_out(root, texts, tree, skipped, vocabulary)
    cells = {path: each.text for path, each in (notebooks or {}).items()}
    known: dict[str, SourceText | None] = {}
    known.update((path, notebook.virtual(path, text)) for path, text in cells.items())

    def load(path: str) -> SourceText | None:
        if path not in known:
            try:
                data = content(path) if path in texts else (root / path).read_bytes()
                known[path] = decode(path, data, python=not is_settings(path))
            except (OSError, Unreadable):
                known[path] = None
        return known[path]

    fresh = {path: text for path, text in left.items() if not is_settings(path)}
    if fresh:
        tree = index_of({**python, **fresh}, vocabulary.device)
    first = {path: each.first for path, each in (notebooks or {}).items()}
    sinks, moving = flow_sinks.load(vocabulary.device), vocabulary.relation.origin.tensor.values()
    common = sinks.everyday | sinks.names.keys() | sinks.methods.keys() | set(moving)
    every = {**texts, **left, **cells}
    return ValueGraph(
        every, tree, vocabulary.values, load, first, common=common, device=vocabulary.device
    )


def with_callers(findings: list[Finding], texts: Mapping[str, str]) -> list[Finding]:
    """Add to operators that CUDA sources bind which Python files (of `texts`) call them."""
    if not any(kernels.is_bound(finding) for finding in findings):
        return findings
    return kernels.relate(findings, texts)


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


def tree_of(files: Iterable[File], device: str, root: Path) -> module_index.ModuleIndex:
    """The Python files of the project at `root`, with what each imports and how programs start.

    `device` is the origin's.
    """
    texts = {file.relative: read_text(file.path) for file in files if file.kind == "python"}
    return index_of(texts, device, root)


def index_of(
    texts: Mapping[str, str], device: str = "", root: Path | None = None
) -> module_index.ModuleIndex:
    """The index of a project from the texts of its Python files.

    `device` is the origin's; without it every package counts as one that speaks of it. Below `root`
    is looked for what is built, which helpers depend on.
    """
    tree = module_index.ModuleIndex.of(list(texts))
    if root is not None:
        tree = replace(tree, built=find_built(root, tree.folders))
    tops = {*tree.packages, *(top for inner in tree.inner.values() for top in inner)}
    speaking = frozenset(p for p, text in texts.items() if device in text or HELPER in text)
    loud = {top for path in speaking for top in tops if path.startswith(f"{top}/")}
    hollow = frozenset(top for top in tops if "import" not in texts.get(f"{top}/__init__.py", ""))
    tree = replace(tree, quiet=frozenset(tops - loud), speaking=speaking, hollow=hollow)
    imports = {path: frozenset(ABSOLUTE.findall(f"\n{text}")) for path, text in texts.items()}
    loose = ((p, t) for p, t in texts.items() if not tree.package(p))
    eager = {path: frozenset(find_eager(f"\n{text}")) for path, text in loose}
    behind = (path for path in eager if "sys.path." in texts[path])
    late = frozenset(path for path in behind if not re.search(ON_PATH, texts[path], re.M))
    packages = ((path, text) for path, text in texts.items() if path.endswith("__init__.py"))
    aliases = {path: found for path, text in packages if (found := tree.called_by(path, text))}
    loaders = frozenset(
        str(PurePosixPath(path).parent)
        for path, text in texts.items()
        if any(word in text for word in module_index.LOADS)
    )
    tree = replace(tree, imports=imports, eager=eager, aliases=aliases, loaders=loaders, late=late)
    own = ROOT_PACKAGE.search(texts.get("setup.py", "")) if "__init__.py" in texts else None
    tree = replace(tree, root_name=own[1] if own else "")
    tree = replace(tree, imported_roots=imported_roots(texts, imports, tree))
    return replace(tree, scripted=find_scripted(texts, imports, tree))


def find_eager(text: str) -> Iterator[str]:
    """Modules that a file imports as it is loaded: outside of functions and classes."""
    for found in INDENTED.finditer(text):
        at, head = found.start(), ""
        while found[1] and at > 0 and (not head or head[0] in " \t#)]}"):
            before = text.rfind("\n", 0, at)
            head, at = text[before + 1 : at], before
        if not head.startswith(("def ", "class ", "async ", "@")):
            yield found[2]


def imported_roots(
    texts: Mapping[str, str],
    imports: Mapping[str, frozenset[str]],
    tree: module_index.ModuleIndex,
) -> dict[str, str]:
    """Top folders without `__init__.py` that files of the project import from."""
    loose = {path.split("/")[0] for path in texts if "/" in path}
    candidates = loose - set(tree.packages)
    if not candidates:
        return {}
    heads = (name.partition(".") for names in imports.values() for name in names)
    return {head: head for head, dot, _ in heads if dot and head in candidates}


# Looks for the ends of lines, which is faster than a search at every place.
ABSOLUTE = re.compile(r"\n[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]*)")
INDENTED = re.compile(r"\n([ \t]*)(?:from|import)[ \t]+([A-Za-z_][\w.]*)")
ROOT_PACKAGE = re.compile(r"""\bpackage_dir\s*=\s*\{\s*["'](\w+)["']\s*:\s*["'](?:\.|\./)?["']""")
RELATIVE = re.compile(r"^[ \t]*from[ \t]+\.", re.M)
ON_PATH = r"^sys\.path\.(?:append|insert)"


def find_scripted(
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
        package = tree.package(path) or tuple(
            root for root in path.split("/")[:1] if root in tree.imported_roots
        )
        if not package or folder in found:
            continue
        names = {name.partition(".")[0] for name in imports[path]}
        guarded = "__main__" in text and GUARD.search(text)
        if guarded and not RELATIVE.search(text) and not names & {package[0], *tops_of(tree)}:
            found.add(folder)  # `python tools/train.py`, as far as this file can tell
            continue
        for name in names - {PurePosixPath(path).stem}:  # `deepspeed.py` imports the package
            neighbour_files = (
                f"{folder}/{name}.py" in tree.paths or f"{folder}/{name}" in tree.folders
            )
            above = f"{name}.py" in tree.paths or name in tree.folders
            if neighbour_files and not above and name not in sys.stdlib_module_names:
                found.add(folder)
    return frozenset(found)


def tops_of(tree: module_index.ModuleIndex) -> set[str]:
    """Names of the packages at the project's top."""
    return {folder.rpartition("/")[2] for folder in tree.packages}


def read_installed(package: str, root: Path) -> Iterator[File]:
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
    return finding.leave(reason)


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


def read_python(files: Iterable[File]) -> tuple[dict[str, str], set[str]]:
    """Texts of the Python files for word searches, and which of them stand as they do in the file.

    Undecodable bytes and other ends of lines don't matter to a search; such a file is read again.
    """
    texts: dict[str, str] = {}
    exact = set()
    for file in files:
        if file.kind != "python":
            continue
        try:
            text = file.path.read_bytes().decode("utf-8", "replace")
        except OSError:
            texts[file.relative] = ""
            continue
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        elif "\ufffd" not in text:
            exact.add(file.relative)
        texts[file.relative] = text
    return texts, exact


def run(
    files: list[File], jobs: int, on_progress: Progress | None
) -> Iterator[analyse.FileAnalysis]:
    """Analyse every file, in several processes when there is enough to do."""
    workers = jobs or processors.available()
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
    prepare(_JOB)
    # Big files first, so that no worker is left with one at the end.
    order = sorted(files, key=lambda file: -size_of(file.path))
    with interrupts_held():
        pool = multiprocessing.get_context("fork").Pool(workers, begin_worker, (os.getpid(),))
    with pool:
        for number, result in enumerate(pool.imap_unordered(_work, order, chunksize=4), 1):
            yield result
            if on_progress is not None:
                on_progress(number, len(files))


def prepare(job: analyse.ScanContext | None) -> None:
    """Make once what every worker would make for itself: tables, codemods, readers."""
    if job is None:
        return
    device = job.context.origin.device
    text = f'import torch\nx = torch.zeros(1, device="{device}").cuda()\ntorch.load("x")\n'
    python.findings(SourceText("prepare.py", text.encode(), text), job.context)
    clues(job.context)


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


def _work(file: File) -> analyse.FileAnalysis:
    assert _JOB is not None
    try:
        return analyse.analyse(file, _JOB)
    except Exception as error:
        error.add_note(f"while scanning {file.path}") if hasattr(error, "add_note") else None
        raise

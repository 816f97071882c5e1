"""One file of a project under a scan: read it, find its sites, answer for other files.

Runs in worker processes: everything in and out is small and picklable.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from joymigrate.chips import all_chips
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.model import Finding, KeptMention, Style, Tier
from joymigrate.rewrite import (
    foreign,
    groups,
    helper_places,
    ignores,
    mentions,
    module_index,
    python,
    readers,
    under_shim,
)
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.exports import Exports
from joymigrate.rewrite.helper import MARK
from joymigrate.rewrite.module import Module, Pending, Project, StayingPlace
from joymigrate.rewrite.portable.judge import judge_all
from joymigrate.rewrite.prefilter import prefilter
from joymigrate.rewrite.readers import notebook
from joymigrate.rewrite.source import SourceText, Unreadable, decode

KEPT = 64  # modules that stay in memory while files are asked about each other
STRINGS = ("JM120", "JM121", "JM122", "JM130")  # rules of names for devices and backends
# Run-times of other vendors that folders of a project are called after.
RUNTIMES = ("metal", "vulkan", "opencl", "openvino", "xnnpack", "directml", "mlx", "sycl")
IMPORTED = re.compile(r"^(?:from|import)[ \t]+([\w.]+)", re.M)  # without a condition
OURS = re.compile(r"[\"']schema[\"']\s*:\s*[\"']joymigrate\.")


@dataclass(slots=True)
class ScanContext:
    """What all files of one scan share."""

    context: Context
    tree: module_index.ModuleIndex
    own_methods: frozenset[str] = frozenset()
    own_near: Set[str] | None = None  # files where objects of their classes may come; None: all
    own_names: frozenset[str] = frozenset()
    own_placing: bool = True
    own_plain: frozenset[str] = frozenset()
    own_flags: frozenset[str] = frozenset()
    active: Callable[[str], bool] = lambda rule: True
    want_kept: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)  # of the Python files
    packed: Mapping[str, str] = field(default_factory=dict)  # files that go without the project
    exact: Set[str] = frozenset()  # files whose text stands as it does in the file
    opened: dict[str, Module] = field(default_factory=dict)  # the last ones that were asked about
    exports: Exports = field(init=False)

    def __post_init__(self) -> None:
        self.exports = Exports(self.tree, self.texts)

    def content(self, file: File) -> bytes:
        """The bytes of a file, which is read once where its text holds them. Raises OSError."""
        if file.relative in self.exact:
            return self.texts[file.relative].encode()
        return file.path.read_bytes()


@dataclass(frozen=True, slots=True)
class JoinedCells:
    """The code of a notebook as one text, and the first line of each cell there by its index."""

    text: str
    first: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class FileAnalysis:
    """What one file gave. `open` are sites that other files decide."""

    path: str
    digest: str
    lines: int
    findings: tuple[Finding, ...]
    open: tuple[Pending, ...] = ()
    # Comparisons that move when a value they see is rewritten elsewhere.
    watched: tuple[Pending, ...] = ()
    options: tuple[tuple[str, str], ...] = ()  # options with rewritten values: name and kind
    joined: JoinedCells | None = None  # of a notebook
    holding: tuple[StayingPlace, ...] = ()  # what stays behind conditions, or asks as one
    suppressed: int = 0
    unused: tuple[tuple[str, int, str], ...] = ()
    kept: tuple[KeptMention, ...] = ()
    # Shim style only: code for the origin's device, and a question for it as it is imported.
    device_lines: tuple[int, ...] = ()
    loads_anywhere: bool = False
    asks_tensors: bool = False
    asks_early: bool = False


def project_of(job: ScanContext, path: str) -> Project:
    """What one module knows about its project."""
    near = job.own_near is None or path in job.own_near or path not in job.tree.paths
    return Project(
        text_of=lambda other: job.texts.get(other, ""),
        locate=lambda dotted: job.tree.locate(path, dotted),
        defines=lambda other, name: module_index.binds(job.texts.get(other, ""), name),
        same_as=lambda other, name: module_index.same_as(job.texts.get(other, ""), name),
        own_methods=job.own_methods if near else frozenset(),
        own_names=job.own_names,
        own_placing=job.own_placing,
        own_plain=job.own_plain,
        own_flags=job.own_flags,
        package=job.tree.package(path),
        entry=path.endswith(".ipynb"),
        speaks_of=lambda word, without="": any(
            word in text and not (without and without in text) for text in job.texts.values()
        ),
        twin=twin(job, path),
        foreign=other_back_end(job, path),
        imports=lambda other: IMPORTED.findall(job.texts.get(other, "")),
        reserved=reserve(job, path),
        owns=job.tree.tops.__contains__,
        given=lambda base, name: job.exports.module(path, base, name),
        star_homes=lambda stars, name: job.exports.star_homes(path, stars, name),
        given_by=job.exports.module_of,
    )


def twin(job: ScanContext, path: str) -> str | None:
    """The file beside a file that does the same for the target: `cuda_x.py`, `<target>_x.py`."""
    folder, slash, name = path.rpartition("/")
    here, there = job.context.origin, job.context.chip
    words = ((here.device, there.device), (here.backend, there.backend))
    others = [name.replace(one, other) for one, other in words if one in name and one != other]
    return next((each for each in others if f"{folder}{slash}{each}" in job.tree.paths), None)


def other_back_end(job: ScanContext, path: str) -> str | None:
    """The back end that a file serves as another one beside it serves the origin: `hpu_x.py`.

    The host is none: `train_cpu.py` and `offload_cpu.py` may well ask for the device.
    """
    folder, slash, name = path.rpartition("/")
    for word in foreign.OTHERS:
        if word == "cpu":
            continue
        parts = re.sub(rf"(?<![a-z]){word}(?![a-z])", job.context.origin.device, name)
        if parts != name and f"{folder}{slash}{parts}" in job.tree.paths:
            return word
    return None


def reserve(job: ScanContext, path: str) -> str | None:
    """The folder or file that serves the origin alone, as others beside it serve other back ends.

    `backends/cuda/` beside `backends/metal/`, `cuda_x.py` beside `hpu_x.py`.
    """
    origin = job.context.origin.device
    if origin not in path:
        return None
    parts = path.split("/")
    named = {name for chip in all_chips().values() for name in (chip.device, *chip.aliases)}
    others = sorted({*named, *foreign.OTHERS, *RUNTIMES} - {origin, "cpu", "gpu"})
    for at, name in enumerate(parts):
        stem = name if at < len(parts) - 1 else name.removesuffix(".py")
        if origin not in stem.split("_"):
            continue
        for word in others:
            other = "/".join([*parts[:at], re.sub(rf"(?<![a-z]){origin}(?![a-z])", word, name)])
            known = job.tree.folders if at < len(parts) - 1 else job.tree.paths
            if other in known:
                return "/".join(parts[: at + 1])
    return None


def analyse(file: File, job: ScanContext) -> FileAnalysis:
    """Read and scan one file. A file that can't be used becomes a JM000 finding."""
    try:
        data = job.content(file)
    except OSError as error:
        return unreadable(
            job, file, b"", Unreadable(Text("cannot be read: {problem}", problem=error.strerror))
        )
    try:
        source = decode(file.relative, data, python=file.kind == "python")
        if file.kind == "notebook":
            return look_at_notebook(source, file, job)
        module, found, pending = look(source, file, job)
    except Unreadable as error:
        return unreadable(job, file, data, error)
    done = result(source, job, found, pending)
    if module is None:
        return done
    if job.context.style is Style.SHIM:
        done = describe(module, done)
    return abroad(module, done)


def describe(module: Module, done: FileAnalysis) -> FileAnalysis:
    """A file's result with what decides which files get the vendor's shim."""
    return replace(
        done,
        device_lines=under_shim.device_lines(module),
        loads_anywhere=under_shim.loads_anywhere(module),
        asks_tensors=under_shim.asks_tensors(module),
        asks_early=under_shim.asks_early(module),
    )


def look_at_notebook(source: SourceText, file: File, job: ScanContext) -> FileAnalysis:
    """The result of a notebook, which knows the project as a Python file does.

    Its code is a module by the lines of its joined cells. What only values of other files could
    prove there is not asked.
    """
    if OURS.search(source.text, 0, 2000):
        return result(source, job, [], [])
    _, statement = job.tree.notebook_home(file.relative, source.text)
    agnostic = job.context.style is Style.AGNOSTIC
    refused = helper_places.refuse_in_notebook(source.text, statement) if agnostic else None
    project = project_of(job, file.relative)
    found, module, inside, first = notebook.look(source, job.context, project, statement, refused)
    done = result(source, job, found, [])
    if module is None:
        return done
    written = {(each.line, each.column) for each in inside if each.edits and job.active(each.rule)}
    joined = JoinedCells(module.source.text, first)
    return replace(abroad(module, done, written), watched=(), joined=joined)


def abroad(
    module: Module, done: FileAnalysis, written: set[tuple[int, int]] | None = None
) -> FileAnalysis:
    """A file's result with what it gives to other files, and what waits for their values.

    `written`: places of the edits in the module's text, where they are not the result's own.
    """
    if written is None:
        written = {(each.line, each.column) for each in done.findings if each.edits}
    hoped = written | {(each.yes.line, each.yes.column) for each in done.open}
    sent = {
        (key, kind)
        for at, (kind, keys) in module.sent.items()
        if at in hoped
        for key in keys
        if key.startswith(".")
    }
    watched = [each for each in module.watched if (each.no.line, each.no.column) not in written]
    options = module.flow.options if sent else set()
    named = tuple((key[1:], kind) for key, kind in sorted(sent) if key[1:] in options)
    module.names.release()
    return replace(
        done,
        watched=tuple(watched),
        options=named,
        holding=tuple(sorted(module.holding, key=lambda each: each.start)),
    )


def look(
    source: SourceText, file: File, job: ScanContext
) -> tuple[Module | None, list[Finding], list[Pending]]:
    """The module of a Python file, its findings, and those that wait for other files."""
    if file.kind != "python":
        if OURS.search(source.text, 0, 2000):
            return None, [], []  # a report of ours quotes what it found
        read = readers.readers()[file.kind].read(source, job.context)
        sites = [each for each in judge_all(read, job.context) if isinstance(each, Finding)]
        # Values that a program reads keep the origin's words under the shim, as its own strings do.
        kept = STRINGS if job.context.style is Style.SHIM else ()
        return None, [each for each in sites if each.rule not in kept], []
    if source.text.startswith(MARK):
        return None, [], []
    project = project_of(job, file.relative)

    def outside(dotted: str) -> bool:
        return project.locate(dotted) is None

    if not prefilter(source.text, job.context, outside):
        python.check(source)
        return None, [], []
    module = Module.parse(source, job.context, project)
    raw = python.raw(module)
    pending = [item for item in raw if isinstance(item, Pending)]
    found = [item for item in raw if isinstance(item, Finding)]
    if job.context.style is Style.SHIM:
        # Strings that travel keep the origin's words; the shim reads them where they arrive.
        pending = []
    if pending:
        # The import is added after the last word on the open sites.
        return module, python.settle(found), pending
    return module, python.finish(module, found, *import_of(module, job)), []


def import_of(module: Module, job: ScanContext) -> tuple[str, str | None]:
    """The statement that imports the helper into a file, and why it can't be written there."""
    home, statement = job.tree.helper_home(module.source.path)
    if job.context.style is not Style.AGNOSTIC:
        return statement, None
    statement = helper_places.write_as_neighbours(module, home, statement)
    return statement, helper_places.refuse_helper(
        module, job.tree, job.texts, job.packed, statement
    )


def unreadable(job: ScanContext, file: File, data: bytes, error: Unreadable) -> FileAnalysis:
    """The JM000 finding of a file."""
    rule = job.context.rules["JM000"]
    finding = Finding(
        rule=rule.id,
        name=rule.name,
        tier=Tier.REPORT,
        path=file.relative,
        line=error.line,
        column=error.column,
        end_line=error.line,
        end_column=error.column,
        message=rule.message,
        before="",
        reason=error.reason,
        area=rule.area,
        weight=rule.weight,
    )
    found = (finding,) if job.active(rule.id) else ()
    return FileAnalysis(file.relative, digest(data), data.count(b"\n"), found)


def digest(data: bytes) -> str:
    """sha256 of a file's content."""
    return hashlib.sha256(data).hexdigest()


def result(
    source: SourceText, job: ScanContext, found: list[Finding], pending: list[Pending]
) -> FileAnalysis:
    """Apply the selection and the inline ignores to what was found."""
    marks = ignores.parse(source.text, source.path)
    chosen = [f for f in found if job.active(f.rule) or f.rule == "JM001"]
    applied = ignores.apply(chosen, marks, job.active)
    still_open = tuple(
        item
        for item in pending
        if not any(mark.covers(item.yes) or mark.covers(item.no) for mark in marks)
    )
    silenced = {mark for mark in marks for item in pending if mark.covers(item.no)}
    stay = groups.complete(found, applied.findings)
    kept: tuple[KeptMention, ...] = ()
    if job.want_kept:
        kept = tuple(mentions.find_kept(source, job.context, [*stay, *(p.no for p in pending)]))
    return FileAnalysis(
        path=source.path,
        digest=digest(source.data),
        lines=source.text.count("\n"),
        findings=needed_imports(stay, job),
        open=still_open,
        suppressed=len(applied.suppressed) + len(pending) - len(still_open),
        unused=tuple(
            (source.path, mark.line, mark.text) for mark in applied.unused if mark not in silenced
        ),
        kept=kept,
    )


def needed_imports(findings: Iterable[Finding], job: ScanContext) -> tuple[Finding, ...]:
    """Leave out the added import when no edit that needs it stays, and give it the best tier."""
    found = tuple(findings)
    if job.context.style is Style.SHIM:
        return found
    needing = [f for f in found if f.needs and f.edits]
    if not needing:
        return tuple(f for f in found if f.rule != "JM001" or (not f.needs and f.after == ""))
    best = Tier.SAFE if any(f.tier is Tier.SAFE for f in needing) else Tier.UNSAFE
    return tuple(replace(f, tier=best) if f.rule == "JM001" and f.after else f for f in found)


def settle(file: File, job: ScanContext, answers: Mapping[str, bool]) -> FileAnalysis:
    """Scan a file again when its open sites are decided; `answers` tells by place."""
    known = open_module(file, job)
    if known is None:
        raise JoyError("the file changed while it was being read", where=str(file.path))
    del job.opened[file.relative]
    source, project = known.source, project_of(job, file.relative)
    module = replace_project(known, project)
    found = []
    raw = python.raw(module)
    watched = {(item.no.line, item.no.column, item.no.rule): item for item in module.watched}
    for item in raw:
        waiting = item if isinstance(item, Pending) else None
        if isinstance(item, Finding) and not item.edits:
            waiting = watched.get((item.line, item.column, item.rule))
        if waiting is not None:
            found.append(waiting.yes if answers.get(place(waiting)) else waiting.no)
        elif isinstance(item, Finding):
            found.append(item)
    done = result(source, job, python.finish(module, found, *import_of(module, job)), [])
    if job.context.style is Style.SHIM:
        done = describe(module, done)
    return abroad(module, done)


def place(item: Pending) -> str:
    """The name of an open site inside its file."""
    return f"{item.yes.line}:{item.yes.column}"


def open_module(file: File, job: ScanContext) -> Module | None:
    """The module of a file, kept for the next questions; None for one that can't be read."""
    known = job.opened.pop(file.relative, None)
    if known is None:
        try:
            source = decode(file.relative, job.content(file), python=True)
            known = Module.parse(source, job.context, project_of(job, file.relative))
        except (Unreadable, OSError):
            return None
    job.opened[file.relative] = known  # the last one
    if len(job.opened) > KEPT:
        first = next(iter(job.opened))
        job.opened.pop(first).names.release()
    return known


def close_modules(job: ScanContext) -> None:
    """Let go of the modules that were kept for questions."""
    for module in job.opened.values():
        module.names.release()
    job.opened.clear()


def replace_project(module: Module, project: Project) -> Module:
    """A module to be looked through anew, with what another one of the file knows of its text."""
    return Module(
        module.source,
        module.tree,
        module.names,
        module.context,
        module.vocabulary,
        project,
        _flow=module._flow,
    )


def reaches(file: File, job: ScanContext, name: str) -> set[str]:
    """Kinds of sink that an attribute or option of this name arrives at in a file."""
    module = open_module(file, job)
    return module.flow.reach([f".{name}"])[0] if module is not None else set()

"""Findings → patches: the new content of every file that changes, and the generated helper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from joymigrate import __version__, chips
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.model import Finding, Patch, Scan, Style, Tier
from joymigrate.rewrite import helper
from joymigrate.rewrite.analyse import digest
from joymigrate.rewrite.check import TreeFault, at_fault, faults
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.module_index import ModuleIndex
from joymigrate.rewrite.project import graph_of, searches_paused, tree_of
from joymigrate.rewrite.proof import Devices, prove
from joymigrate.rewrite.solve import hold
from joymigrate.rewrite.source import read_text
from joymigrate.rewrite.values.settings_files import read_naming
from joymigrate.rewrite.vocabulary import Vocabulary

ROUNDS = 4  # of leaving out what makes a tree fail


def patches(
    scan: Scan, *, unsafe: bool = False, without: frozenset[str] = frozenset()
) -> list[Patch]:
    """Patches that apply a scan's safe findings, and its unsafe ones on request.

    Every one of them is proven (see `proof`). `without` are names of groups to leave out. A file
    that changed since it was scanned raises `JoyError`.
    """
    origin, target = chips.get(scan.origin).device, chips.get(scan.to).device
    if scan.style is Style.SHIM:
        target = origin  # the program keeps the origin's words beside the target's
    if scan.style is Style.ACCELERATOR:
        target = "accelerator"  # as in `torch.accelerator`
    devices = Devices(origin, target, scan.style.portable)
    wanted = {Tier.SAFE, Tier.UNSAFE} if unsafe else {Tier.SAFE}
    by_path: dict[str, list[Finding]] = defaultdict(list)
    for finding in scan.findings:
        if finding.tier in wanted and finding.edits and unit(finding) not in without:
            by_path[finding.path].append(finding)
    with searches_paused():
        made, helped = check_files(scan, by_path, devices)
    if scan.style is Style.AGNOSTIC and helped:
        made += helpers(scan, helped)
    return made


def check_files(
    scan: Scan, by_path: dict[str, list[Finding]], devices: Devices
) -> tuple[list[Patch], list[str]]:
    """Patches whose tree stands as a whole (see `check`), and the paths that need the helper.

    What makes a tree fail is left out with its group and what goes with it. A tree that fails
    after that raises `JoyError`.
    """
    left: dict[str, list[tuple[Finding, str]]] = defaultdict(list)
    if devices.origin == devices.target:
        return proven_files(scan, by_path, devices)
    words = vocabulary_of(scan)
    data = {path: (scan.root / path).read_bytes() for path in scan.digests if is_python(path)}
    data |= read_naming(((path, scan.root / path) for path in scan.digests), words.values)
    for _ in range(ROUNDS):
        made, helped = proven_files(scan, by_path, devices)
        wrong = find_faults(scan, words, data, made)
        if not wrong:
            return [replace(p, left=(*p.left, *left[path_of(scan, p)])) for p in made], helped
        for path, several in without_faults(scan, words, data, by_path, made, wrong).items():
            left[path] += several
            gone = {id(finding) for finding, _ in several}
            by_path[path] = [each for each in by_path[path] if id(each) not in gone]
    raise JoyError(
        Text("nothing is written: {reason}", reason=wrong[0].reason),
        help="put `# joymigrate: ignore` on both lines, and tell us: this is our mistake",
    )


def find_faults(
    scan: Scan, words: Vocabulary, data: Mapping[str, bytes], made: Iterable[Patch]
) -> list[TreeFault]:
    """What is wrong with the tree after some patches."""
    patches = {path_of(scan, patch): patch for patch in made}
    after = {path: patches[path].after or b"" for path in data if path in patches}
    texts = {p: (after.get(p) or d).decode("utf-8", "replace") for p, d in data.items()}
    graph = graph_of(scan.root, texts, words, lambda p: after.get(p) or data[p], scan.skipped)
    return list(faults(graph, patches, words))


def without_faults(
    scan: Scan,
    words: Vocabulary,
    data: Mapping[str, bytes],
    by_path: Mapping[str, list[Finding]],
    made: Iterable[Patch],
    wrong: Iterable[TreeFault],
) -> dict[str, list[tuple[Finding, str]]]:
    """The findings that faults are due to and those that go with them, each with the reason."""
    patches = {path_of(scan, patch): patch for patch in made}
    why: dict[str, str] = {}
    for each in wrong:
        why |= {unit(f): each.reason for f in at_fault(patches[each.path], each.start)}
    staying = [f for several in by_path.values() for f in several if unit(f) not in why]
    texts = {path: content.decode("utf-8", "replace") for path, content in data.items()}
    graph = graph_of(scan.root, texts, words, data.__getitem__, scan.skipped)
    held = hold(staying, graph, words)
    why |= {unit(staying[number]): each.reason for number, each in held.items()}
    return {
        path: found
        for path, several in by_path.items()
        if (found := [(each, why[unit(each)]) for each in several if unit(each) in why])
    }


def vocabulary_of(scan: Scan) -> Vocabulary:
    """The words of a scan's move."""
    return Vocabulary.of(Context.between(chips.get(scan.to), chips.get(scan.origin), scan.style))


def path_of(scan: Scan, patch: Patch) -> str:
    """The path of a patch's file from the scan's root."""
    return patch.path.relative_to(scan.root).as_posix()


def proven_files(
    scan: Scan, by_path: dict[str, list[Finding]], devices: Devices
) -> tuple[list[Patch], list[str]]:
    """Patches of the files whose new content stands, and the paths that need the helper."""
    made = []
    helped = []
    for path, findings in sorted(by_path.items()):
        imports_only = all(finding.rule == "JM001" and finding.after for finding in findings)
        if imports_only and scan.style is not Style.SHIM:
            continue  # an import that nothing here needs
        before = content(scan, path)
        proven = prove(path, before, findings, devices)
        if proven.content == before and not proven.left:
            continue
        made.append(Patch(scan.root / path, before, proven.content, proven.findings, proven.left))
        if any(finding.needs == "helper" for finding in proven.findings):
            helped.append(path)
    return made, helped


def unit(finding: Finding) -> str:
    """The name of what a finding is written together with: its group, or itself."""
    return finding.group or f"{finding.path}:{finding.cell or 0}:{finding.line}:{finding.column}"


def content(scan: Scan, path: str) -> bytes:
    """Bytes of a scanned file, which must be those that were scanned."""
    try:
        data = (scan.root / path).read_bytes()
    except OSError as error:
        raise JoyError(f"cannot be read: {error.strerror}", where=str(scan.root / path)) from None
    if digest(data) != scan.digests.get(path):
        raise JoyError(
            "the file changed while it was being rewritten",
            where=str(scan.root / path),
            help="run the command again",
        )
    return data


def helpers(scan: Scan, paths: list[str]) -> list[Patch]:
    """The generated helper, wherever the changed files import it from."""
    text = helper.source(chips.get(scan.origin), chips.get(scan.to), __version__).encode()
    files = (File(scan.root / p, p, "python") for p in scan.digests if is_python(p))
    tree = tree_of(files, chips.get(scan.origin).device, scan.root)
    homes_of = {home_of(scan, tree, path) for path in paths}
    made = []
    for home in sorted(homes_of):
        place = scan.root / home
        before = place.read_bytes() if place.is_file() else None
        if before is not None:
            if before.startswith(helper.MARK.encode()):
                continue  # there from an earlier run, perhaps edited: it stays
            raise JoyError(
                "a file of this name is there, and is not the generated one",
                where=str(place),
                help="rename it, or use --style direct",
            )
        made.append(Patch(place, None, text))
    return made


def home_of(scan: Scan, tree: ModuleIndex, path: str) -> str:
    """Path of the helper that a changed file imports."""
    if path.endswith(".ipynb"):
        return tree.notebook_home(path, read_text(scan.root / path))[0]
    return tree.helper_home(path)[0]


def is_python(path: str) -> bool:
    """Whether a path is Python by its name."""
    return PurePosixPath(path).suffix in (".py", ".pyi", ".pyw")

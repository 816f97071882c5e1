"""Holds Triton kernels against a chip's documented limits, `rules/<chip>/triton.yaml`.

First by source alone. A kernel that can work by its source goes through Triton's own front end
(`fits.py`): it works only where what lives at once fits a core. Nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, all_chips, read_yaml
from joymigrate.errors import JoyError
from joymigrate.profile.port.dotted_names import dotted_name
from joymigrate.profile.port.find import (
    JIT,
    SourceKernel,
    direct_names,
    find_unread,
    is_constexpr,
    kernels,
    names_of,
)
from joymigrate.profile.port.fits import KernelCandidate, notes_of
from joymigrate.profile.port.launches import judge_launches
from joymigrate.profile.port.notes import CHANGES, FAILS, RANK, UNKNOWN, WORKS, Note
from joymigrate.profile.port.operators import SUFFIXES
from joymigrate.profile.port.project import Definition, Files

PLAIN = frozenset(("range", "min", "max", "len", "float", "int", "bool", "tuple", "isinstance"))
METHODS = frozenset(
    ("to", "cast", "reshape", "view", "trans", "permute", "broadcast_to", "abs", "sum", "max",
     "min", "expand_dims", "ravel", "split", "item")
)  # fmt: skip
QUESTION = re.compile(
    r"(^|\.)dtype\.(\w+\.)*is_\w+$"
)  # `x.dtype.is_fp8()`, answered while compiling
Resolve = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """One kernel and its verdict."""

    path: str
    line: int
    kernel: str
    verdict: str
    notes: tuple[Note, ...]


Found = tuple[KernelCheck, KernelCandidate | None]


def load(chip: Chip) -> dict[str, Any]:
    """What is known about Triton on a chip."""
    path = chip.folder / "triton.yaml"
    if not path.is_file():
        chips = all_chips().values()
        have = sorted(one.name for one in chips if (one.folder / "triton.yaml").is_file())
        raise JoyError(
            f"nothing is known about Triton kernels on {chip.name}",
            where=str(path),
            help=f"--to {' or '.join(have) or 'CHIP'}, or write the file (docs/how-to/port.md)",
        )
    known: dict[str, Any] = read_yaml(path)
    return known


def check(
    paths: Iterable[Path], known: dict[str, Any], *, roots: Iterable[Path] = ()
) -> list[KernelCheck]:
    """Every kernel in the files and folders. A file that is no Python raises JoyError.

    Helpers and sizes are followed into other files below `roots` and the paths.
    """
    found: list[Found] = []
    listed = list(paths)
    folders = [*roots, *(path if path.is_dir() else path.parent for path in listed)]
    files = Files(folders)
    for path in listed:
        if not path.exists():
            raise JoyError("there is no such file or folder", where=str(path))
        inside = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in (one for one in inside if one.suffix not in SUFFIXES):
            found += read_source(file.read_bytes(), str(file), known, files)
    return compile_them(found, known, folders)


def check_source(
    source: bytes, path: str, known: dict[str, Any], roots: Iterable[Path] = ()
) -> list[KernelCheck]:
    """Every kernel of one file."""
    folders = list(roots)
    return compile_them(read_source(source, path, known, Files(folders)), known, folders)


def compile_them(found: list[Found], known: dict[str, Any], roots: list[Path]) -> list[KernelCheck]:
    """Those that can work, changed or as they are, held against the compiled IR."""
    places = [i for i, (one, asked) in enumerate(found)
              if asked is not None and one.verdict in (WORKS, CHANGES)]  # fmt: skip
    said = notes_of([asked for i in places if (asked := found[i][1])], known, roots)
    judged = [one for one, _ in found]
    for i, notes in zip(places, said, strict=True):
        # What the compiler can't take does not hide what has to be changed.
        changes = judged[i].verdict == CHANGES or any(n.level == "changes" for n in notes)
        kept = tuple(n for n in notes if not changes or RANK[n.level] < RANK["unknown"])
        judged[i] = add_notes(judged[i], kept)
    return judged


def add_notes(one: KernelCheck, notes: tuple[Note, ...]) -> KernelCheck:
    """A kernel with more notes; the worst decides."""
    unique = tuple(sorted({*one.notes, *notes}, key=lambda n: (-RANK[n.level], n.line, n.message)))
    worst = max((RANK[note.level] for note in unique), default=0)
    return replace(one, verdict=(WORKS, CHANGES, UNKNOWN, FAILS)[worst], notes=unique)


def read_source(source: bytes, path: str, known: dict[str, Any], files: Files) -> list[Found]:
    """Every kernel of one file, judged by its source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise JoyError(
            "not valid Python", where=f"{path}:{line}" if line else path, help="correct the file"
        ) from None
    found: list[Found] = [
        (
            judge_kernel(kernel, Path(path), tree, known, files),
            KernelCandidate(kernel, source, Path(path)),
        )
        for kernel in kernels(tree, Path(path), files)
    ]
    for line, said in find_unread(tree):
        note = Note("unknown", line, "a kernel that is made at run time; nothing of it was read")
        found.append((KernelCheck(path, line, said, UNKNOWN, (note,)), None))
    return found


def judge_kernel(
    kernel: SourceKernel, path: Path, tree: ast.Module, known: dict[str, Any], files: Files
) -> KernelCheck:
    """One kernel against everything that is known. What nobody documented is not judged."""
    notes = [*inside(kernel, path, tree, known, files, (kernel.name,)), *named_types(kernel, known)]
    notes += judge_launches(kernel, known)
    if kernel.jit != JIT:
        said = f"compiled by {kernel.jit}, another language than triton.language"
        notes.append(Note("unknown", kernel.node.lineno, said))
    bare = KernelCheck(str(path), kernel.node.lineno, kernel.name, WORKS, ())
    return add_notes(bare, tuple(notes))


def inside(
    kernel: SourceKernel, path: Path, tree: ast.Module, known: dict[str, Any], files: Files,
    busy: tuple[str, ...],
) -> Iterator[Note]:  # fmt: skip
    """Notes on a function of the language and on the functions that it calls, in any file."""

    def resolve(name: str) -> str:
        places = list(files.places(name, path, tree))
        if any(isinstance(one.node, ast.FunctionDef) for one in places):
            return ""  # looked into below
        return next((one.full for one in places), name)

    guards = find_guards(kernel.node)
    for node, note in (*body(kernel, known), *find_unjudged(kernel, known, resolve)):
        if note.level == "fails" and id(node) in guards:
            said = f"{note.message}, where {guards[id(node)]}"
            note = replace(
                note, level="changes", message=said, help="launch it otherwise, or " + note.help
            )
        yield note
    for call in calls_in(kernel.node):
        name = dotted_name(call.func)
        if name and name not in busy:
            yield from helper(call, name, path, tree, known, files, busy)
        # A function that combines: `tl.reduce(x, 0, combine)`.
        for given in (*call.args, *(k.value for k in call.keywords)):
            if (
                language_name(call.func, kernel)
                and dotted_name(given)
                and dotted_name(given) not in busy
            ):
                yield from helper(call, dotted_name(given), path, tree, known, files, busy)


def helper(
    call: ast.Call, name: str, path: Path, tree: ast.Module, known: dict[str, Any], files: Files,
    busy: tuple[str, ...],
) -> Iterator[Note]:  # fmt: skip
    """Notes on a function that a kernel calls; of several definitions the best one counts."""
    kinds: list[tuple[list[Note], Definition]] = []
    for place in files.places(name, path, tree):
        if not isinstance(place.node, ast.FunctionDef):
            continue
        known_names, language = names_of(place.tree)
        inner = SourceKernel(
            place.node.name, place.node, language, direct=direct_names(known_names)
        )
        notes = list(inside(inner, place.path, place.tree, known, files, (*busy, name)))
        kinds.append((notes, place))
    if not kinds:
        return
    notes, best = min(kinds, key=lambda one: max((RANK[n.level] for n in one[0]), default=0))
    for note in notes:
        where = f"{best.path.name}:{note.line}"
        yield replace(note, line=call.lineno, message=f"{note.message} (in {name}, {where})")
    if best.when and len(kinds) > 1:
        yield Note("note", call.lineno, f"{name} has {len(kinds)} definitions; judged: that for "
                   f"{best.when}")  # fmt: skip


def calls_in(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Calls in the body of a function."""
    for statement in function.body:
        yield from (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def find_guards(function: ast.FunctionDef) -> dict[int, str]:
    """Parts of a kernel that a parameter known at compile time can leave out, with the test."""
    fixed = {a.arg for a in function.args.args if is_constexpr(a)}
    found: dict[int, str] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.If):
            continue
        if not fixed & {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}:
            continue
        said = ast.unparse(node.test)
        for statements, test in ((node.body, said), (node.orelse, f"not ({said})")):
            for statement in statements:
                found |= {id(part): test for part in ast.walk(statement)}
    return found


def named_types(kernel: SourceKernel, known: dict[str, Any]) -> Iterator[Note]:
    """Types that a kernel's name or its callers speak of, and no page of the chip."""
    said = "\n".join([kernel.name, *(launch.said for launch in kernel.launches)])
    for rule in known.get("types", ()):
        match = re.search(rule["like"], said, re.IGNORECASE)
        if match:
            yield Note("unknown", kernel.node.lineno, f"{match[0]}: {rule['say']}", rule["help"],
                       rule["source"])  # fmt: skip


def body(kernel: SourceKernel, known: dict[str, Any]) -> Iterator[tuple[ast.AST, Note]]:
    """Operators, dtypes and arguments that the chip's Triton does not take."""
    dtypes = refused_dtypes(kernel, known)
    used = {language_name(call.func, kernel): call for call in calls_in(kernel.node)}
    for node in ast.walk(kernel.node):
        name = language_name(node, kernel)
        if name and (name in dtypes):
            op, source = dtypes[name]
            yield node, Note(
                "changes", node.lineno, f"{name} is a dtype that tl.{op} does not take",  # type: ignore[attr-defined]
                "use float32, or int32 for whole numbers", source,
            )  # fmt: skip
        for part in known.get("modules", ()):
            prefix = part["prefix"].removeprefix("tl.").removeprefix("triton.language.")
            if name and (name == prefix or name.startswith(f"{prefix}.")):
                line = node.lineno  # type: ignore[attr-defined]
                yield (
                    node,
                    Note(part["verdict"], line, f"tl.{name}", part["help"], part.get("source", "")),
                )
        if isinstance(node, ast.Call):
            for note in arguments(node, language_name(node.func, kernel), known):
                yield node, note
    for rule in known.get("apart", ()):
        one = next((name for name in rule["calls"] if name in used), None)
        other = next((name for name in rule["beside"] if name in used), None)
        if one and other:
            yield used[one], Note("changes", used[one].lineno, f"tl.{one} beside tl.{other}",
                                  rule["help"], rule["source"])  # fmt: skip


def find_unjudged(
    kernel: SourceKernel, known: dict[str, Any], resolve: Resolve
) -> Iterator[tuple[ast.AST, Note]]:
    """What is not on the list of documented parts."""
    descriptors = find_makers(kernel, "make_tensor_descriptor")
    for node in (part for statement in kernel.node.body for part in ast.walk(statement)):
        if isinstance(node, (ast.With, ast.AsyncWith, ast.Try, ast.Lambda)):
            kind = type(node).__name__.lower()
            yield node, Note("unknown", node.lineno, f"a `{kind}` inside of a kernel")
        if not isinstance(node, ast.Call):
            continue
        name = language_name(node.func, kernel)
        if name:
            note = judge_part(f"triton.language.{name}", f"tl.{name}", node.lineno, known)
            if note is not None and part_of(f"triton.language.{name}", known) is None:
                yield node, note  # of a vendor's part `body` speaks
            continue
        said = dotted_name(node.func)
        first, _, rest = said.partition(".")
        method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if (
            said in PLAIN
            or QUESTION.search(said)
            or (first in descriptors and rest in ("load", "store", "atomic_add"))
        ):
            continue
        whole = resolve(said) if said else ""
        if (method and whole == said) or (said and whole in ("", "triton.cdiv")):
            continue
        yield from outside(node, said, whole, known)


def outside(
    node: ast.Call, said: str, whole: str, known: dict[str, Any]
) -> Iterator[tuple[ast.AST, Note]]:
    """A call of what the file imports or nobody knows; `whole` is "" for the project's own."""
    word = said or ast.unparse(node.func)
    if not whole.startswith("triton.language."):
        note = Note("unknown", node.lineno, f"{word} is defined elsewhere, and not looked into")
        yield node, note
    elif (judged := judge_part(whole, f"{word} ({whole})", node.lineno, known)) is not None:
        yield node, judged


def judge_part(whole: str, word: str, line: int, known: dict[str, Any]) -> Note | None:
    """What speaks against a part of the language; None where it is documented."""
    library = known.get("libdevice", {"modules": (), "empty": "", "names": ()})
    module, _, name = whole.rpartition(".")
    if module in (*library["modules"], library["empty"]):
        if name not in library["names"]:
            said = f"{word}: the chip's libdevice has no {name}"
            return Note("unknown", line, said, replace_call(whole, known), library["source"])
        if module == library["empty"]:
            said = f"{word} has no body there"
            return Note("changes", line, said, library["help"], library["source"])
        return None
    if (part := part_of(whole, known)) is not None:
        return Note(part["verdict"], line, whole, part["help"], part.get("source", ""))
    base = re.sub(
        r"^(standard|core|math|extra\.\w+\.extension)\.", "", whole.removeprefix("triton.language.")
    )
    if base in known.get("documented", ()) or base in known.get("taken", ()):
        return None
    said = f"{word} is not in the chip's documents"
    return Note("unknown", line, said, replace_call(whole, known))


def replace_call(whole: str, known: dict[str, Any]) -> str:
    """What `--write` puts in place of a call."""
    rule = known.get("replace", {}).get(whole)
    return f"--write puts {rule['with'].format('a', 'b', 'c', tl='tl')} there" if rule else ""


def find_makers(kernel: SourceKernel, name: str) -> set[str]:
    """Variables that hold what a function of the language made."""
    found: set[str] = set()
    for node in ast.walk(kernel.node):
        call = node.value if isinstance(node, ast.Assign) else None
        if isinstance(call, ast.Call) and language_name(call.func, kernel).endswith(name):
            found |= {dotted_name(target) for target in node.targets}  # type: ignore[attr-defined]
    return found


def part_of(whole: str, known: dict[str, Any]) -> dict[str, Any] | None:
    """The rule about a vendor's module that speaks of a name."""
    for part in known.get("modules", ()):
        inner = part["prefix"].removeprefix("tl.").removeprefix("triton.language.")
        if whole.startswith(f"triton.language.{inner}"):
            found: dict[str, Any] = part
            return found
    return None


def language_name(node: ast.AST, kernel: SourceKernel) -> str:
    """`atomic_add` for `tl.atomic_add`; empty for what is no part of triton.language."""
    if isinstance(node, ast.Name):
        return kernel.direct.get(node.id, "")
    whole = dotted_name(node) if isinstance(node, ast.Attribute) else ""
    first, _, rest = whole.partition(".")
    if first not in kernel.language:
        return ""
    inner, _, name = rest.partition(".")
    return name if inner in ("core", "standard") and name else rest


def refused_dtypes(kernel: SourceKernel, known: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Dtypes that an operator of the kernel refuses, with that operator and the source."""
    used = {language_name(node, kernel) for node in ast.walk(kernel.node)}
    found: dict[str, tuple[str, str]] = {}
    for name in ("load", "store", "cast"):
        row = known.get("operators", {}).get(name)
        if row and (name in used or name == "cast"):
            found |= {dtype: (name, row["source"]) for dtype in row["refuses"] if dtype != "bool"}
    return found


def argument_of(call: ast.Call, rule: dict[str, Any]) -> ast.expr | None:
    """The argument that a rule speaks of, by its name or place."""
    found = next((k.value for k in call.keywords if k.arg == rule["argument"]), None)
    place = rule.get("place")
    if found is None and place is not None and place < len(call.args):
        found = call.args[place]
    return found


def arguments(node: ast.Call, name: str, known: dict[str, Any]) -> Iterator[Note]:
    """Arguments with a value that the chip does not know."""
    for rule in known.get("values", ()):
        if not fnmatchcase(name, rule["calls"]):
            continue
        value = argument_of(node, rule)
        if value is None and "without" not in rule:
            continue
        only = rule["only"] if isinstance(rule["only"], list) else [rule["only"]]
        word = value.value if isinstance(value, ast.Constant) else rule.get("without")
        if (value is None or isinstance(value, ast.Constant)) and word not in only:
            said = f"tl.{name}({rule['argument']}={word!r})"
            known_ones = " or ".join(map(repr, only))
            yield Note(
                rule.get("level", "changes"), node.lineno, said, f"only {known_ones} is known",
                rule["source"],
            )  # fmt: skip
    refuses = known.get("operators", {}).get(name)
    if name.startswith("atomic_") and refuses:
        yield Note(
            "note", node.lineno, f"tl.{name} does not take {' '.join(refuses['refuses'])}",
            "see that the pointer has another dtype", refuses["source"],
        )  # fmt: skip

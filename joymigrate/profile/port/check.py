"""Holds Triton kernels against a chip's documented limits, `rules/<chip>/triton.yaml`.

Read from source alone: what depends on run-time sizes is said as a condition, and no verdict
means that a kernel was compiled or run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, all_chips, read_yaml
from joymigrate.errors import JoyError
from joymigrate.profile.port.dotted import dotted
from joymigrate.profile.port.find import Launch, SourceKernel, full_name, kernels, names_of
from joymigrate.profile.port.operators import SUFFIXES

WORKS, CHANGES, UNKNOWN, FAILS = "works", "needs changes", "not judged", "does not work"
RANK = {"note": 0, "changes": 1, "unknown": 2, "fails": 3}
PLAIN = frozenset(("range", "min", "max", "len", "float", "int", "bool", "tuple", "isinstance"))
METHODS = frozenset(
    ("to", "cast", "reshape", "view", "trans", "permute", "broadcast_to", "abs", "sum", "max",
     "min", "expand_dims", "ravel", "split", "item")
)  # fmt: skip
ELEMENT_BYTES = 4  # indices are int32; values are counted as float32


@dataclass(frozen=True, slots=True)
class Note:
    """One thing about a kernel: `note` (nothing to do), `changes`, `unknown` or `fails`."""

    level: str
    line: int
    message: str
    help: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """One kernel and its verdict."""

    path: str
    line: int
    kernel: str
    verdict: str
    notes: tuple[Note, ...]


def load(chip: Chip) -> dict[str, Any]:
    """What is known about Triton on a chip."""
    path = chip.folder / "triton.yaml"
    if not path.is_file():
        chips = all_chips().values()
        have = sorted(one.name for one in chips if (one.folder / "triton.yaml").is_file())
        raise JoyError(
            f"nothing is known about Triton kernels on {chip.name}",
            where=str(path),
            help=f"--to {' or '.join(have) or 'CHIP'}, or write the file (docs/port.md)",
        )
    known: dict[str, Any] = read_yaml(path)
    return known


def check(paths: Iterable[Path], known: dict[str, Any]) -> list[Checked]:
    """Every kernel in the files and folders. A file that is no Python raises JoyError."""
    found: list[Checked] = []
    for path in paths:
        if not path.exists():
            raise JoyError("there is no such file or folder", where=str(path))
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        files = [file for file in files if file.suffix not in SUFFIXES]
        for file in files:
            found += check_source(file.read_bytes(), str(file), known)
    return found


def check_source(source: bytes, path: str, known: dict[str, Any]) -> list[Checked]:
    """Every kernel of one file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise JoyError(
            "not valid Python", where=f"{path}:{line}" if line else path, help="correct the file"
        ) from None
    imports, _ = names_of(tree)
    own = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return [judged(kernel, path, known, own, imports) for kernel in kernels(tree)]


def judged(
    kernel: SourceKernel, path: str, known: dict[str, Any], own: dict[str, ast.FunctionDef],
    imports: dict[str, str],
) -> Checked:  # fmt: skip
    """One kernel against everything that is known. What nobody documented is not judged."""
    notes = [*body(kernel, known), *unjudged(kernel.node, kernel, known, own, imports, set())]
    for launch in kernel.launches:
        notes += [*sizes(kernel, launch, known), *options(launch, known)]
    unique = tuple(sorted(set(notes), key=lambda note: (-RANK[note.level], note.line)))
    worst = max((RANK[note.level] for note in unique), default=0)
    verdict = (WORKS, CHANGES, UNKNOWN, FAILS)[worst]
    return Checked(path, kernel.node.lineno, kernel.name, verdict, unique)


def body(kernel: SourceKernel, known: dict[str, Any]) -> Iterator[Note]:
    """Operators, dtypes and arguments that the chip's Triton does not take."""
    dtypes = refused_dtypes(kernel, known)
    for node in ast.walk(kernel.node):
        name = language_name(node, kernel)
        if name and (name in dtypes):
            op, source = dtypes[name]
            yield Note(
                "changes", node.lineno, f"{name} is a dtype that tl.{op} does not take",  # type: ignore[attr-defined]
                "use float32, or int32 for whole numbers", source,
            )  # fmt: skip
        for part in known.get("modules", ()):
            prefix = part["prefix"].removeprefix("tl.").removeprefix("triton.language.")
            if name and (name == prefix or name.startswith(f"{prefix}.")):
                line = node.lineno  # type: ignore[attr-defined]
                yield Note(
                    part["verdict"], line, f"tl.{name}", part["help"], part.get("source", "")
                )
        if isinstance(node, ast.Call):
            yield from arguments(node, language_name(node.func, kernel), known)


def unjudged(
    function: ast.FunctionDef, kernel: SourceKernel, known: dict[str, Any],
    own: dict[str, ast.FunctionDef], imports: dict[str, str], seen: set[str],
) -> Iterator[Note]:  # fmt: skip
    """What is not on the list of documented parts; helpers of the same file are looked into."""
    seen.add(function.name)
    listed = {*known.get("documented", ()), *known.get("taken", ())}
    for node in (part for statement in function.body for part in ast.walk(statement)):
        if isinstance(node, (ast.With, ast.AsyncWith, ast.Try, ast.Lambda)):
            kind = type(node).__name__.lower()
            yield Note("unknown", node.lineno, f"a `{kind}` inside of a kernel")
        if not isinstance(node, ast.Call):
            continue
        name = language_name(node.func, kernel)
        whole = full_name(node, imports)
        if name:
            base = name.removeprefix("math.")
            if base not in listed and not part_of(whole, known):
                yield Note("unknown", node.lineno, f"tl.{name} is not in the chip's documents")
            continue
        said = dotted(node.func)
        method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if method and said.partition(".")[0] not in imports:
            continue
        if said in own and said not in seen:
            yield from unjudged(own[said], kernel, known, own, imports, seen)
        elif said not in own and said not in PLAIN and not judged_elsewhere(whole, known):
            word = said or ast.unparse(node.func)
            yield Note("unknown", node.lineno, f"{word} is defined elsewhere, and not looked into")


def judged_elsewhere(whole: str, known: dict[str, Any]) -> bool:
    """Whether a name of the language was imported by itself, or has a replacement."""
    listed = {*known.get("documented", ()), *known.get("taken", ())}
    base = whole.removeprefix("triton.language.").removeprefix("math.")
    if base.startswith("extra."):
        base = base.rpartition(".")[2]
    if whole.startswith("triton.language.") and base in listed:
        return True
    return whole in known.get("replace", {}) or part_of(whole, known) or whole == "triton.cdiv"


def part_of(whole: str, known: dict[str, Any]) -> bool:
    """Whether a rule about a vendor's module speaks of a name."""
    for part in known.get("modules", ()):
        inner = part["prefix"].removeprefix("tl.").removeprefix("triton.language.")
        if whole.startswith(f"triton.language.{inner}"):
            return True
    return False


def language_name(node: ast.AST, kernel: SourceKernel) -> str:
    """`atomic_add` for `tl.atomic_add`; empty for what is no part of triton.language."""
    whole = dotted(node) if isinstance(node, ast.Attribute) else ""
    first, _, rest = whole.partition(".")
    return rest if first in kernel.language else ""


def refused_dtypes(kernel: SourceKernel, known: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Dtypes that an operator of the kernel refuses, with that operator and the source."""
    used = {language_name(node, kernel) for node in ast.walk(kernel.node)}
    found: dict[str, tuple[str, str]] = {}
    for name in ("load", "store"):
        row = known.get("operators", {}).get(name)
        if name in used and row:
            found |= {dtype: (name, row["source"]) for dtype in row["refuses"] if dtype != "bool"}
    return found


def arguments(node: ast.Call, name: str, known: dict[str, Any]) -> Iterator[Note]:
    """Arguments with a value that the chip does not know."""
    for rule in known.get("values", ()):
        if not fnmatchcase(name, rule["calls"]):
            continue
        for one in node.keywords:
            if one.arg != rule["argument"] or not isinstance(one.value, ast.Constant):
                continue
            if one.value.value != rule["only"]:
                said = f"tl.{name}({one.arg}={one.value.value!r})"
                yield Note(
                    "changes", node.lineno, said, f"only {rule['only']!r} is known",
                    rule["source"],
                )  # fmt: skip
    refuses = known.get("operators", {}).get(name)
    if name.startswith("atomic_") and refuses:
        yield Note(
            "note", node.lineno, f"tl.{name} does not take {' '.join(refuses['refuses'])}",
            "see that the pointer has another dtype", refuses["source"],
        )  # fmt: skip


def sizes(kernel: SourceKernel, launch: Launch, known: dict[str, Any]) -> Iterator[Note]:
    """Tiles against the chip's memory, programs against its largest grid."""
    limit = known["limits"]["on_chip_bytes"]
    elements, tile = largest_tile(kernel, launch)
    loads = sum(
        language_name(node.func, kernel) == "load"
        for node in ast.walk(kernel.node)
        if isinstance(node, ast.Call)
    )
    least = elements * ELEMENT_BYTES * max(1, loads)
    if least > limit["value"]:
        fits = limit["value"] // (ELEMENT_BYTES * max(1, loads))
        fits = 1 << max(0, fits.bit_length() - 1)
        yield Note(
            "changes", launch.line,
            f"{tile} makes tiles of {elements} elements: about {least} bytes for {loads} loads, "
            f"and a core has {limit['value']}",
            f"loop inside the kernel over pieces of at most {fits} elements", limit["source"],
        )  # fmt: skip
    programs = known["limits"]["programs"]
    if launch.programs is not None and launch.programs > programs["value"]:
        yield Note(
            "changes", launch.line,
            f"a grid of {launch.programs} programs; the chip takes {programs['value']}",
            programs["help"], programs["source"],
        )  # fmt: skip
    elif launch.programs is None and elements:
        yield Note(
            "note", launch.line,
            f"the grid may have {programs['value']} programs: up to "
            f"{programs['value'] * elements} elements with {tile}",
            programs["help"], programs["source"],
        )  # fmt: skip


def largest_tile(kernel: SourceKernel, launch: Launch) -> tuple[int, str]:
    """The largest `tl.arange(0, N)` of the kernel whose N this launch says, and how it says it."""
    defaults = zip(
        reversed(kernel.node.args.args), reversed(kernel.node.args.defaults), strict=False
    )
    numbers = {
        a.arg: d.value for a, d in defaults if isinstance(d, ast.Constant) and type(d.value) is int
    } | launch.numbers
    best, said = 0, ""
    for node in ast.walk(kernel.node):
        if not isinstance(node, ast.Call) or language_name(node.func, kernel) != "arange":
            continue
        end = node.args[1] if len(node.args) > 1 else None
        size = (
            end.value if isinstance(end, ast.Constant) else numbers.get(dotted(end) if end else "")
        )
        if isinstance(size, int) and size > best:
            best, said = size, ast.unparse(end) + (f"={size}" if isinstance(end, ast.Name) else "")  # type: ignore[arg-type]
    return best, said


def options(launch: Launch, known: dict[str, Any]) -> Iterator[Note]:
    """Launch options without a meaning on the chip."""
    ignored = known.get("ignored", {})
    for name in launch.options:
        if name in ignored.get("names", ()):
            yield Note("note", launch.line, f"{name} means nothing there", "", ignored["source"])

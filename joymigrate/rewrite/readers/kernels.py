"""CUDA and C++ sources: which kernels there are, which operators they bind, and who calls those.

No kernel is rewritten: it has to be replaced by an operator of the target or written anew. What is
known to compute the same stands in the chip's `kernels.replacements`. Host code moves (`_host`).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter

from joymigrate.chips import NameAdvice
from joymigrate.language import Text
from joymigrate.model import Finding
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers._host import PLATFORM_HEADER, host
from joymigrate.rewrite.source import SourceText

PATTERNS = ("*.cu", "*.cuh", "*.cpp", "*.cc", "*.cxx", "*.c++", "*.h", "*.hpp", "*.hxx", "*.inl")
RULE = "JM203"
BOUND_WEIGHT = 30.0  # minutes: calls of an operator are changed, its kernel is counted by itself
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
KERNEL = re.compile(
    r"__global__\s+(?:(?:static|inline|extern|__forceinline__)\s+)*"
    r"(?:__launch_bounds__\s*\([^;{]*?\)\s*)?(?:static\s+|inline\s+)*void\s+"
    r"(?:__launch_bounds__\s*\([^;{]*?\)\s*)?(?P<name>\w+)\s*(?:<[^;{]*?>)?\s*\("
)
LIBRARY = re.compile(
    r"\b(?:PYBIND11_MODULE|TORCH_LIBRARY(?P<part>_IMPL|_FRAGMENT)?|TORCH_LIBRARY_EXPAND"
    r"|TORCH_LIBRARY_IMPL_EXPAND|REGISTER_EXTENSION)\s*\(\s*(?P<name>\w+)\s*(?:,\s*(?P<key>\w+))?"
)
BOUND = re.compile(
    r"\b\w+\s*\.\s*(?P<how>def|impl)\s*\(\s*(?:TORCH_SELECTIVE_NAME\(\s*)?\"(?P<name>\w+)"
)
OF_CUDA = re.compile(
    r"\bcuda[A-Z_]\w*|\bCUDA\b|\bcuda\b|__global__|__device__|<<<|\bcub(?:las|lasLt)?\b|\bcudnn\w*"
    r"|\bnccl[A-Z]\w*|_cuda\b|\bcu[A-Z][a-z]\w+"
)


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Kernels and bound operators of one file; a file with neither by its first CUDA header."""
    if not context.origin.origin or context.origin.device == context.chip.device:
        return
    text = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source.text)
    device_code = source.path.endswith((".cu", ".cuh"))
    if not (device_code or OF_CUDA.search(text)):
        return
    found = [*kernels(source, text, context), *find_bound(source, text, context)]
    found += host(source, text, context)
    if not found:
        include = PLATFORM_HEADER.search(text)
        if include:
            reason = Text("uses a library of the old platform through {name}", name=include["name"])
            found = [site(source, context, *include.span("name"), reason)]
    yield from sorted(found, key=lambda each: (each.line, each.column))


def site(source: SourceText, context: Context, start: int, end: int, reason: str) -> Finding:
    """A report over `text[start:end]`."""
    return source.finding(context.rules[RULE], start, end, reason=reason)


def kernels(source: SourceText, text: str, context: Context) -> Iterator[Finding]:
    """One finding per `__global__` function; a declaration and its definition are one."""
    seen: set[str] = set()
    for match in KERNEL.finditer(text):
        name = match["name"]
        if name in seen:
            continue
        seen.add(name)
        reason = Text(
            "kernel {name}: {known}",
            name=name,
            known=find_known(name, context) or "no replacement is known",
        )
        yield site(source, context, *match.span("name"), reason)


def find_bound(source: SourceText, text: str, context: Context) -> Iterator[Finding]:
    """One finding per operator that the file binds for Python or the dispatcher."""
    seen: set[tuple[str, str]] = set()
    libraries = list(LIBRARY.finditer(text))
    for match in BOUND.finditer(text):
        library = next((each for each in reversed(libraries) if each.end() <= match.start()), None)
        if library is None:
            continue
        dispatch = library["part"] == "_IMPL"
        if dispatch and "CUDA" not in (library["key"] or ""):
            continue
        where = library["name"]
        if (where, match["name"]) in seen:
            continue
        seen.add((where, match["name"]))
        python = "PYBIND11" in library.group()
        place = (
            "for Python"
            if python
            else Text("as torch.ops.{where}.{name}", where=where, name=match["name"])
        )
        advice = find_known(match["name"], context) or "no replacement is known"
        reason = Text(
            "operator {name} is bound {place}: {advice}",
            name=match["name"],
            place=place,
            advice=advice,
        )
        yield replace(
            site(source, context, *match.span("name"), reason),
            message="an operator of a CUDA extension",
            weight=BOUND_WEIGHT,
        )


def find_known(name: str, context: Context) -> str | None:
    """What computes the same on the target, as one sentence; None where nothing is known."""
    advice = replacement(name, context)
    if advice is None:
        return None
    parts = (Text("use {to}", to=advice.to) if advice.to else "", advice.note)
    return Text.join("; ", parts) if any(parts) else None


def replacement(name: str, context: Context) -> NameAdvice | None:
    """The chip's advice on a kernel or operator; endings such as `_cuda` don't matter."""
    plain = re.sub(r"_?(?:cuda|kernel|forward|backward|fwd|bwd|gpu|launcher)(?=_|$)", "", name)
    for wanted in dict.fromkeys((name, plain, name.lower(), plain.lower())):
        advice = context.chip.operator(wanted)
        if advice is not None:
            return advice
    return None


# --- who calls what ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One place in a Python file that uses a bound operator. Lines count from 1."""

    path: str
    line: int
    text: str


def relate(findings: Iterable[Finding], python: Mapping[str, str]) -> list[Finding]:
    """The findings with the callers of bound operators added to their reasons.

    `python` maps the project's Python files to their texts. Of the operators of a file that no
    Python file calls the first one names the others, which have no finding of their own.
    """
    found = list(findings)
    names = {each.before for each in found if is_bound(each)}
    calls = callers(names, python) if names else {}
    idle: dict[str, list[Finding]] = defaultdict(list)
    for each in found:
        if is_bound(each) and not calls.get(each.before):
            idle[each.path].append(each)
    done = []
    for each in found:
        others = idle[each.path] if is_bound(each) else []
        if each in others[1:]:
            continue
        if is_bound(each):
            said: list[str] = [each.reason or "", describe_callers(calls.get(each.before, []))]
            if each in others and len(others) > 1:
                named = ", ".join(other.before for other in others[1:])
                said.append(Text("nor of {names}, bound here as well", names=named))
            each = replace(each, reason=Text.join("; ", said))
        done.append(each)
    return done


def is_bound(finding: Finding) -> bool:
    """Whether a finding is about a bound operator."""
    return finding.rule == RULE and (finding.reason or "").startswith("operator ")


def describe_callers(calls: list[KernelUse]) -> str:
    """The callers in one phrase."""
    if not calls:
        return "no call of it was found in the Python files"
    shown = ", ".join(f"{call.path}:{call.line}" for call in calls[:5])
    more = Text(" and {number} more", number=len(calls) - 5) if len(calls) > 5 else ""
    return Text("called from {shown}{more}", shown=shown, more=more)


def callers(names: Iterable[str], python: Mapping[str, str]) -> dict[str, list[KernelUse]]:
    """Calls of bound operators by name: through `torch.ops`, or through an extension's module."""
    wanted = set(names)
    if not wanted:
        return {}
    extensions = {name for text in python.values() for name in extension_names(text)}
    methods = {name for text in python.values() for name in DEFINED.findall(text)}
    distinct = {name for name in wanted - methods if name not in COMMON}
    word, telling, owners = map(any_word, (wanted, wanted - COMMON, extensions))
    asked = re.compile(rf"\.[\s\\]*{word.pattern}")
    found: dict[str, list[KernelUse]] = defaultdict(list)
    for path, text in sorted(python.items()):
        built = word if owners.search(text) else asked if OWNER.search(text) else telling
        if not built.search(text) and not telling.search(text):
            continue  # a common name says something of an extension alone
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        lines = text.splitlines()
        for name, line in sorted(calls_in(tree, wanted, extensions, distinct), key=itemgetter(1)):
            shown = lines[line - 1].strip() if line <= len(lines) else ""
            found[name].append(KernelUse(path, line, shown))
    return dict(found)


# Functions that the project's Python files define, and names that every class has.
DEFINED = re.compile(r"^[ \t]*(?:async )?def (\w+)", re.M)
COMMON = frozenset(("forward", "backward", "apply", "forward_cuda", "backward_cuda", "run", "call"))
# Names that compiled modules have beside the Python files that import them.
COMPILED = re.compile(r"(?:_cuda|_ext|_C)$")
# What the file of such a use, of a compiler or of torch's own table holds.
OWNER = re.compile(r"(?:_cuda|_ext|_C)\b|\bload(?:_inline)?\b|\btorch\.ops\b")


def any_word(words: Iterable[str]) -> re.Pattern[str]:
    """A pattern of any of some words, each standing alone; of none it finds nothing."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(words)))})\b" if words else r"(?!)")


def extension_names(text: str) -> Iterator[str]:
    """Modules that a file builds or loads: `CUDAExtension("name", …)`, `load(name="name", …)`."""
    if "Extension(" not in text and "load" not in text:
        return
    pattern = r"(?:CUDA|Cpp|SYCL)Extension\(\s*(?:name\s*=\s*)?[\"']([\w.]+)[\"']"
    for match in re.finditer(pattern, text):
        yield match[1].rpartition(".")[2]
    for match in re.finditer(r"\bload(?:_inline)?\(\s*(?:name\s*=\s*)?[\"']([\w.]+)[\"']", text):
        yield match[1]


def calls_in(
    tree: ast.AST, wanted: set[str], extensions: set[str], distinct: set[str]
) -> Iterator[tuple[str, int]]:
    """(operator, line) of every use in one module.

    A name of `distinct` has no other meaning in the project, so it counts behind any imported
    name (`from . import ops_ext`); any but a common name counts behind a variable of the file
    (`_plugin = build(…)`).
    """
    modules = set(extensions)
    imported: set[str] = set()
    assigned: set[str] = set()
    direct: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            assigned |= {name.id for name in node.targets if isinstance(name, ast.Name)}
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.rpartition(".")[2] in extensions:
                    modules.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            last = (node.module or "").rpartition(".")[2]
            for alias in node.names:
                built = bool(node.level) and COMPILED.search(alias.name)
                if alias.name in extensions or built:
                    modules.add(alias.asname or alias.name)
                elif last in extensions and alias.name in wanted:
                    direct[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.Assign) and loads(node.value):
            modules |= {name.id for name in node.targets if isinstance(name, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in wanted:
            owner = dotted_name(node.value)
            free = owner in imported and node.attr in distinct
            own = owner in assigned - imported and node.attr not in COMMON
            if owner in modules or owner.startswith("torch.ops.") or free or own:
                yield node.attr, node.lineno
        elif isinstance(node, ast.Call) and dotted_name(node.func) in direct:
            yield direct[dotted_name(node.func)], node.lineno


def loads(node: ast.expr) -> bool:
    """Whether an expression builds and loads an extension."""
    names = ("load", "load_inline")
    return isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] in names


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of an expression; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""

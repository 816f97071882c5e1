"""Finds operators that C++ and CUDA sources bind to Python: names and argument lists.

A modest parser: comments are blanked, brackets are matched, macros are not expanded. An operator
whose definition is not found has `arguments` None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip
from joymigrate.profile.port.find import full_name, names_of

SUFFIXES = frozenset((".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp"))
BUILDERS = ("load", "load_inline", "CUDAExtension", "CppExtension")
PLACEHOLDER = "TORCH_EXTENSION_NAME"
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)
MACRO = re.compile(
    r"\b(PYBIND11_MODULE|TORCH_LIBRARY|TORCH_LIBRARY_FRAGMENT)\s*\(\s*(\w+)\s*,\s*(\w+)"
)
REGISTRY = re.compile(r"\bRegisterOperators\b")
REGISTERED = re.compile(r"(\bRegisterOperators\s*(\w+\s*)?|\.\s*op\s*)\(")
HOST = "py::array"  # NumPy: such a function runs on the host
STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
OPEN, CLOSE = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as the source writes it."""

    name: str
    type: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class BoundOperator:
    """One operator bound to Python. `module` is what is imported, or the library's namespace."""

    path: str
    line: int
    name: str
    module: str
    kind: str  # pybind11 or torch_library
    arguments: tuple[Argument, ...] | None
    instead: str = ""
    source: str = ""
    skeleton: str = ""
    schema: str = ""  # as TORCH_LIBRARY writes it
    function: str = ""  # the C++ function that is bound
    reference: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def host(self) -> bool:
        """Whether it takes NumPy arrays, so that it runs on the host as it is."""
        return any(HOST in one.type for one in self.arguments or ())


@dataclass(frozen=True, slots=True)
class Build:
    """One extension that Python builds: its name, sources by file name, and C++ in strings."""

    path: str
    line: int
    name: str
    sources: frozenset[str]
    texts: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


def find_bound(paths: Iterable[Path], chip: Chip) -> list[BoundOperator]:
    """Every bound operator in files and folders, with the replacement that the chip knows."""
    python, native = files(paths)
    builds = [build for path in python for build in find_builds(path)]
    texts = {str(path): plain(path.read_text("utf-8", "replace")) for path in native}
    together = "\n".join(texts.values())
    found: list[BoundOperator] = []
    for name, text in texts.items():
        found += [name_module(one, builds) for one in find_registered(text, name, together)]
    for build in builds:
        whole = plain("\n".join(build.texts))
        inline = list(find_registered(whole, build.path, whole))
        for name in build.functions:
            arguments = definition(name, whole)
            inline.append(
                BoundOperator(build.path, build.line, name, build.name, "pybind11", arguments)
            )
        found += [name_module(replace(one, line=build.line), [build]) for one in inline]
    return [look_up(one, chip) for one in dict.fromkeys(found)]


def files(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Python files, and those of C++ and CUDA, in order."""
    python: list[Path] = []
    native: list[Path] = []
    for path in paths:
        for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if one.suffix == ".py" and one.is_file():
                python.append(one)
            elif one.suffix in SUFFIXES and one.is_file():
                native.append(one)
    return python, native


def find_builds(path: Path) -> Iterator[Build]:
    """The extensions that a Python file builds; names and sources that it writes as literals."""
    tree = ast.parse(path.read_bytes())
    names, _ = names_of(tree)
    constants = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        module, _, function = full_name(node, names).rpartition(".")
        if function not in BUILDERS or not module.endswith("cpp_extension"):
            continue
        given = dict(zip(("name", "sources"), node.args, strict=False))
        given |= {one.arg: one.value for one in node.keywords if one.arg}
        inline = function == "load_inline"
        sources = () if inline else strings(given.get("sources"), constants)
        keys = ("sources", "cpp_sources", "cuda_sources") if inline else ()
        yield Build(
            str(path),
            node.lineno,
            next(iter(strings(given.get("name"), constants)), ""),
            frozenset(Path(source).name for source in sources),
            tuple(t for key in keys for t in strings(given.get(key), constants)),
            strings(given.get("functions"), constants),
        )


def strings(node: ast.AST | None, constants: dict[str, ast.expr]) -> tuple[str, ...]:
    """The literal strings in an expression, names of constants followed once."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id)
    if node is None:
        return ()
    if isinstance(node, ast.Dict):  # functions={name: its documentation}
        node = ast.List([key for key in node.keys if key is not None], ast.Load())
    nodes: list[ast.AST] = []
    for one in ast.walk(node):
        value = constants.get(one.id) if isinstance(one, ast.Name) else None
        nodes.append(one if value is None else value)
    found = [n.value for n in nodes if isinstance(n, ast.Constant)]
    return tuple(value for value in found if isinstance(value, str))


def plain(text: str) -> str:
    """The source with comments blanked; lines stay where they are."""

    def blank(match: re.Match[str]) -> str:
        one = match.group()
        return one if one.startswith('"') else re.sub(r"[^\n]", " ", one)

    return COMMENT.sub(blank, text)


def find_registered(text: str, path: str, together: str) -> Iterator[BoundOperator]:
    """The operators that the macros of one file define."""
    for macro in MACRO.finditer(text):
        begin = text.find("{", macro.end())
        if begin < 0:
            continue
        body = text[begin : closing(text, begin)]
        for call in re.finditer(rf"\b{macro[3]}\s*\.\s*def\s*\(", body):
            end = closing(body, call.end() - 1)
            parts = split(body[call.end() : end])
            first = STRING.findall(parts[0]) if parts else []
            if not first:
                continue
            line = text.count("\n", 0, begin + call.start()) + 1
            written = "".join(first)
            if macro[1] == "PYBIND11_MODULE":
                arguments = native_arguments(parts[1:], together)
                function = function_of(parts[1:])
                yield BoundOperator(
                    path, line, written, macro[2], "pybind11", arguments, function=function
                )
            else:
                made = BoundOperator(path, line, "", macro[2], "torch_library", None)
                yield by_schema(made, written, parts[1:], together)
    for registry in REGISTRY.finditer(text):  # which older extensions use
        end = text.find(";", registry.end())
        for call in REGISTERED.finditer(text, registry.start(), end if end >= 0 else len(text)):
            begin = call.end() - 1
            parts = split(text[begin + 1 : closing(text, begin)])
            first = STRING.findall(parts[0]) if parts else []
            space, colons, written = "".join(first).partition("::")
            if colons:
                line = text.count("\n", 0, begin) + 1
                row = BoundOperator(path, line, "", space, "torch_library", None)
                yield by_schema(row, written, parts[1:], together)


def by_schema(made: BoundOperator, written: str, rest: list[str], together: str) -> BoundOperator:
    """An operator of a library with its name, and its arguments by schema or function."""
    name, bracket, _ = written.partition("(")
    listed = schema(written[len(name) :]) if bracket else None
    if listed is None:
        listed = native_arguments(rest, together)
    return replace(made, name=name.strip(), arguments=listed, schema=written,
                   function=function_of(rest))  # fmt: skip


def closing(text: str, begin: int) -> int:
    """Where the bracket at `begin` is closed; the end of the text where it is not."""
    depth, quoted, at = 0, False, begin
    while at < len(text):
        sign = text[at]
        if sign == "\\" and quoted:
            at += 1
        elif sign == '"':
            quoted = not quoted
        elif not quoted and sign in OPEN:
            depth += 1
        elif not quoted and sign in CLOSE:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return len(text)


def split(text: str) -> list[str]:
    """Parts between commas that no bracket, template or string encloses."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, sign in enumerate(text):
        if sign == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif sign in OPEN + "<":
            depth += 1
        elif sign in CLOSE or (sign == ">" and text[at - 1 : at] != "-"):
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def function_of(parts: list[str]) -> str:
    """The name of the C++ function that `def` binds."""
    name = re.match(r"&?\s*(?:TORCH_FN\s*\()?\s*([\w:]+)", parts[0]) if parts else None
    return name[1].rpartition("::")[2] if name else ""


def native_arguments(parts: list[str], together: str) -> tuple[Argument, ...] | None:
    """Arguments of what `def` binds: a lambda, or a function defined somewhere in the files."""
    if not parts:
        return None
    if parts[0].startswith("["):
        begin = parts[0].find("(", closing(parts[0], 0))
        return read_arguments(parts[0][begin + 1 : closing(parts[0], begin)]) if begin > 0 else None
    name = function_of(parts)
    return definition(name, together) if name else None


def definition(name: str, text: str) -> tuple[Argument, ...] | None:
    """The argument list of a C++ function by its definition, else its declaration."""
    declared = None
    for match in re.finditer(rf"[\w>&*\]]\s+[&*]?(?:\w+::)*{re.escape(name)}\s*\(", text):
        if re.search(r"\b(return|else|new)\s+\S*$", text[: match.end() - 1].rpartition("\n")[2]):
            continue  # a call, no definition
        end = closing(text, match.end() - 1)
        after = text[end + 1 : end + 40].lstrip()
        if after.startswith(("{", "const", "noexcept")):
            return read_arguments(text[match.end() : end])
        if declared is None and after.startswith(";"):
            declared = read_arguments(text[match.end() : end])
    return declared


def read_arguments(text: str) -> tuple[Argument, ...]:
    """A C++ argument list: types, names and defaults."""
    found = []
    for number, part in enumerate(split(text)):
        if part == "void":
            continue
        written, _, default = part.partition("=")
        match = re.fullmatch(r"(.*[\s&*>])(\w+)\s*", written.strip(), re.S)
        kind, name = (match[1], match[2]) if match else (written, f"argument{number}")
        found.append(Argument(name, " ".join(kind.split()), default.strip() or None))
    return tuple(found)


def schema(text: str) -> tuple[Argument, ...] | None:
    """The arguments of torch's own schema language, `(Tensor x, float eps=1e-5) -> Tensor`."""
    end = closing(text, 0)
    found = []
    for part in split(text[1:end]):
        if part == "*":
            continue
        written, _, default = part.partition("=")
        kind, _, name = written.strip().rpartition(" ")
        if not kind:
            return None
        found.append(Argument(name, kind, default.strip() or None))
    return tuple(found)


def name_module(one: BoundOperator, builds: list[Build]) -> BoundOperator:
    """The module's real name, where Python gives it: the build that lists the file."""
    if one.module != PLACEHOLDER:
        return one
    file = Path(one.path).name
    names = {
        build.name
        for build in builds
        if build.name
        and (build.path == one.path or any(fnmatchcase(file, part) for part in build.sources))
    }
    return replace(one, module=names.pop() if len(names) == 1 else "")


def look_up(one: BoundOperator, chip: Chip) -> BoundOperator:
    """What the chip's data says of the module or its package."""
    parts = [part for part in one.module.split(".") if part]
    for name in (one.module, *reversed(parts)):
        advice = chip.import_advice(name) if name else None
        if advice is not None:
            said = "; ".join(part for part in (advice.to, advice.note) if part)
            return replace(one, instead=said, source=advice.source)
    return one

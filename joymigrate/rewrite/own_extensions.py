"""Extensions that a project builds for the origin alone, by name.

    setup.py: CUDAExtension("ops_cuda", …)
    CMakeLists.txt: enable_language(CUDA) … pybind11_add_module(ops_cuda …)
    fused = load("fused", ["fused.cu"])         at the top level of a file

Not those that it builds without the origin as well: `CppExtension` in the other branch, a language
that CMake enables under a condition.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

BUILDER = "CUDAExtension"
PORTABLE = "CppExtension"
LOADS = ("load", "load_inline")
SOURCE = ".cu"
CMAKE = "CMakeLists.txt"
# A command of CMake with its arguments; comments go before.
COMMAND = re.compile(r"(?m)^[ \t]*(\w+)[ \t]*\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
MODULES = re.compile(r"(?:pybind11?|nanobind|python3?)_add_(?:module|library)", re.I)


def speaks(text: str, target: str) -> bool:
    """Whether a text has the target's name, as a part of a name (`inputs` has it not)."""
    if not target or target.lower() not in text.lower():
        return False
    return re.search(rf"(?<![A-Za-z]){re.escape(target)}(?![a-z])", text, re.I) is not None


def find_names(texts: Iterable[str]) -> set[str]:
    """Names of the extensions that the project builds for the origin alone."""
    found: set[str] = set()
    for text in texts:
        tree = parse_text(text) if BUILDER in text else None
        if tree is not None and not (PORTABLE in text and builds_without(tree)):
            found.update(find_builder_names(tree))
    return found


def find_builder_names(tree: ast.Module) -> Iterator[str]:
    """Names that are given to the builder, or to what a variable may call it: `kind("ops", …)`."""
    nodes = list(ast.walk(tree))
    builders = {BUILDER}
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and returns_builder(node):
            builders.add(node.name)
        if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Call):
            continue
        if any(getattr(each, "id", "") == BUILDER for each in ast.walk(node.value)):
            builders |= {str(getattr(target, "id", "")) for target in node.targets}
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", None))
        first = next(find_name(node), None) if called in builders else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            within = (keyword.value for keyword in node.keywords if keyword.arg == "module")
            module = next((e.value for e in within if isinstance(e, ast.Constant)), None)
            yield f"{module}.{first.value}" if isinstance(module, str) else first.value


def returns_builder(node: ast.FunctionDef) -> bool:
    """Whether a function makes an extension of the name that it is given: `make_ext(name, …)`."""
    given = {each.arg for each in node.args.args}
    return any(
        isinstance(call, ast.Call)
        and getattr(call.func, "id", getattr(call.func, "attr", "")) == BUILDER
        and any(
            getattr(each, "id", "") in given for part in find_name(call) for each in ast.walk(part)
        )
        for call in ast.walk(node)
    )


def find_name(call: ast.Call) -> Iterator[ast.expr]:
    """What a builder's call takes its name from."""
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "name")
    yield from call.args[:1]


def builds_without(tree: ast.Module) -> bool:
    """Whether a file that may build without the origin does not raise there."""
    for branch in ast.walk(tree):
        if not isinstance(branch, ast.If):
            continue
        named = any(getattr(each, "id", "") == BUILDER for p in branch.body for each in ast.walk(p))
        if named and any(isinstance(each, ast.Raise) for each in branch.orelse):
            return False
    return True


def builds(tree: ast.Module | None) -> str | None:
    """The extension with CUDA sources that a file builds as it is loaded; None for none."""
    for statement in tree.body if tree is not None else ():
        value = getattr(statement, "value", None)
        if not isinstance(statement, (ast.Assign, ast.Expr)) or not isinstance(value, ast.Call):
            continue
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        given = (*value.args, *(keyword.value for keyword in value.keywords))
        words = [e.value for part in given for e in ast.walk(part) if isinstance(e, ast.Constant)]
        sources = any(isinstance(word, str) and word.endswith(SOURCE) for word in words)
        inline = any(keyword.arg == "cuda_sources" for keyword in value.keywords)
        if name in LOADS and (sources or inline) and words:
            return str(words[0])
    return None


def parse_text(text: str) -> ast.Module | None:
    """The syntax tree of a text; None for one that is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_targets(texts: Iterable[str], root: Path) -> set[str]:
    """Python modules that CMake builds below `root`, where it can't do without CUDA.

    `texts` are paths of the Python files: CMake's files lie at the root, beside `setup.py`, and
    where such a file sends it.
    """
    homes = {"", *(path[:-8] for path in texts if path.endswith("setup.py"))}
    found: set[str] = set()
    for home in homes:
        names, bound = read_cmake(root / home, steps=2)
        found |= names if bound else set()
    return found


def read_cmake(folder: Path, steps: int) -> tuple[set[str], bool]:
    """Names of modules that a folder's CMake file builds, and whether it can't do without CUDA."""
    try:
        text = (folder / CMAKE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set(), False
    names: set[str] = set()
    bound, depth, project = False, 0, ""
    for command, given in COMMAND.findall(re.sub(r"#.*", "", text)):
        name, words = command.lower(), given.replace('"', " ").split()
        depth += {"if": 1, "endif": -1}.get(name, 0)
        if name == "project":
            project = words[0] if words else ""
        if MODULES.fullmatch(name) and words:
            names.add(words[0].replace("${PROJECT_NAME}", project))
        if name == "add_subdirectory" and words and steps and not depth:
            below, needs = read_cmake(folder / words[0], steps - 1)
            names, bound = names | below, bound or needs
        enabled = name in ("project", "enable_language") and "CUDA" in words[name == "project" :]
        needed = name == "find_package" and words[:1] in (["CUDA"], ["CUDAToolkit"])
        bound |= not depth and (enabled or (needed and "REQUIRED" in words))
    return {name for name in names if name.isidentifier()}, bound

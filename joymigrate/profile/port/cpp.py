"""C++ and CUDA sources as syntax trees: functions, constants and what the library registers.

CUDA's own spelling is written as plain C++ first: `k<<<grid, block>>>(…)` becomes a call of
`__launch__`, shared memory a static variable, qualifiers go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError

QUALIFIERS = re.compile(
    r"\b(__global__|__device__|__host__|__forceinline__|__noinline__|__restrict__|__constant__"
    r"|__launch_bounds__\s*\([^)]*\)|C10_HOST_DEVICE|C10_LAUNCH_BOUNDS_1\s*\([^)]*\)|TORCH_API)"
)
LOOP = re.compile(r"\b(CUDA_KERNEL_LOOP|CUDA_1D_KERNEL_LOOP)\s*\(\s*(\w+)\s*,\s*([^)]*)\)")
LAUNCH = re.compile(r"([\w:]+)\s*(<(?!<)[^<>;{}]*>)?\s*<<<(.*?)>>>\s*\(", re.DOTALL)


@dataclass(slots=True)
class CppFunction:
    """A function: its node, parameters' node, and template parameters that are values."""

    name: str
    node: Any
    values: tuple[str, ...] = ()
    kernel: bool = False


@dataclass(slots=True)
class Sources:
    """All functions and constants of some files, by name, and `m.impl` of a CPU library."""

    functions: dict[str, list[CppFunction]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    implemented: dict[str, str] = field(default_factory=dict)  # operator → function
    specialised: set[str] = field(default_factory=set)  # `template <> … name<1>(…)`


def read(texts: dict[str, str]) -> Sources:
    """Parse sources by file name; raises JoyError where the parser is not installed."""
    parser = parser_of_cpp()
    found = Sources()
    for name, text in texts.items():
        kernels = set(re.findall(r"__global__[^;{]*?\b(\w+)\s*\(", text))
        tree = parser.parse(plain_cpp(text).encode())
        collect(tree.root_node, found, kernels, Path(name).suffix in (".cpp", ".cc", ".cxx", ""))
    return found


def parser_of_cpp() -> Any:
    """The parser of C++."""
    try:
        import tree_sitter
        import tree_sitter_cpp
    except ImportError:
        raise JoyError(
            "reading C++ needs tree-sitter-cpp", where="this environment",
            help="pip install 'joymigrate[kernels]'",
        ) from None  # fmt: skip
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))


def plain_cpp(text: str) -> str:
    """CUDA's own spelling as C++; lines stay where they are."""

    def launch(match: re.Match[str]) -> str:
        given = (match[2] or "<>")[1:-1]
        sizes = top_level(match[3].replace("\n", " "))[:2]
        values = ", ".join(top_level(given))
        lines = "\n" * match[0].count("\n")
        return f'__launch__({match[1]}, "{values}", {", ".join(sizes)}, {lines}'

    text = LAUNCH.sub(launch, text)
    text = text.replace("extern __shared__", "extern").replace("__shared__", "static")
    text = LOOP.sub(
        r"for (int \2 = blockIdx.x * blockDim.x + threadIdx.x; \2 < (\3);"
        r" \2 += blockDim.x * gridDim.x)", text,
    )  # fmt: skip
    text = re.sub(r"^[ \t]*#[ \t]*pragma.*$", "", text, flags=re.MULTILINE)
    return re.sub(r", (\n*)\)", r"\1)", QUALIFIERS.sub(" ", text))


def top_level(text: str) -> list[str]:
    """Parts between commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([{<") - (sign in ")]}>")
        if sign == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [part for part in (*parts, text[start:].strip()) if part]


def collect(node: Any, found: Sources, kernels: set[str], host: bool) -> None:
    """Functions and constants below a node, namespaces opened."""
    for child in node.named_children:
        if child.type == "function_definition":
            register(child, (), found, kernels, host)
        elif child.type == "template_declaration":
            values = tuple(values_of(child))
            for inner in child.named_children:
                if inner.type == "function_definition":
                    register(inner, values, found, kernels, host)
        elif child.type == "preproc_def":
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if value is not None:
                found.constants.setdefault(text_of(name), text_of(value).strip())
        elif child.type == "declaration" and "const" in text_of(child).split("=")[0]:
            for part in child.named_children:
                if part.type == "init_declarator":
                    name = part.child_by_field_name("declarator")
                    found.constants.setdefault(text_of(name), part.child_by_field_name("value"))
        elif child.type in ("namespace_definition", "declaration_list", "linkage_specification",
                            "preproc_ifdef", "preproc_if", "preproc_else"):  # fmt: skip
            collect(child, found, kernels, host)


def register(
    node: Any, values: tuple[str, ...], found: Sources, kernels: set[str], host: bool
) -> None:
    """Note a function, or what the body of TORCH_LIBRARY_IMPL says."""
    name = name_of(node)
    if name.endswith(">") and not name.startswith("operator"):
        found.specialised.add(name.partition("<")[0])
        return
    if name == "TORCH_LIBRARY_IMPL":
        if re.search(r"\bCPU\b", text_of(node).partition("{")[0]):
            for operator, function in re.findall(
                r'\bimpl\s*\(\s*"(?:\w+::)?([\w.]+)"\s*,\s*(?:TORCH_FN\s*\(\s*)?&?\s*([\w:]+)',
                text_of(node),
            ):
                found.implemented[operator] = function.rpartition("::")[2]
        return
    if name and node.child_by_field_name("body") is not None:
        rows = found.functions.setdefault(name, [])
        rows.insert(0 if host else len(rows), CppFunction(name, node, values, name in kernels))


def values_of(template: Any) -> Iterator[str]:
    """Template parameters that are numbers or flags."""
    for at, part in enumerate(template.child_by_field_name("parameters").named_children):
        if part.type in ("parameter_declaration", "optional_parameter_declaration"):
            yield text_of(part.child_by_field_name("declarator")) or f"unnamed{at}"


def declarator_of(node: Any) -> Any:
    """The function declarator below pointers and references."""
    inner = node.child_by_field_name("declarator")
    while inner is not None and inner.type != "function_declarator":
        inner = inner.child_by_field_name("declarator") or next(
            (c for c in inner.named_children if c.type.endswith("declarator")), None
        )
    return inner


def name_of(node: Any) -> str:
    """The name of a function definition."""
    inner = declarator_of(node)
    name = inner.child_by_field_name("declarator") if inner is not None else None
    head, bracket, rest = text_of(name).partition("<") if name is not None else ("", "", "")
    return head.rpartition("::")[2] + bracket + rest


def text_of(node: Any) -> str:
    """The text of a node; empty for one that the source leaves out."""
    return str(node.text.decode("utf-8", "replace")) if node is not None else ""

"""What has kernels of the origin's: packages, operators, and names that speak of the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from joymigrate.rewrite.context import Context, once_per_rules

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

# Rules of packages and tools that come with kernels of the origin's.
RULES = frozenset(("JM141", "JM200", "JM201", "JM203"))
DRIVER = "JM181"  # modules that ask the origin's driver: they fail where it is missing
PROVIDERS = "JM205"  # the rule whose strings name what runs a model on the origin's device
# Operators that come with torch or that the target's packages bring as well; others are a project's
# own, and compiled for the origin.
PORTABLE = (
    "aten", "prim", "prims", "_prims", "c10d", "_c10d_functional", "c10d_functional", "quantized",
    "higher_order", "profiler", "inductor", "torchvision", "mkldnn", "sparse", "image", "video",
)  # fmt: skip
# Libraries that run on the CPU as well, and on a device with the origin's kernels.
LIBRARIES = frozenset(("faiss",))
COMMON = frozenset(("k2", "cuda", "numba"))  # words of everyday texts
# Too common in other names.
SHORT = frozenset(("k2", "awq", "hqq", "cuda", "numba", "optimum", "warp", "isaacgym"))
# Number formats, instruction sets and template libraries of NVIDIA's cards alone, as names of
# files, functions and modules speak of them. Kernels for them have no counterpart elsewhere.
VENDORS_OWN = re.compile(
    r"(?:^|[_.])(nvfp4|nvf4|marlin|cutlass|cute_?dsl|wgmma|tcgen05|sm_?(?:[789]\d|1[0-2]\d)a?"
    r"|is_sm_\w+|cuda_version_at_least)(?=_|$|\.)|(nvfp4|cutlass)", re.I
)  # fmt: skip


# Techniques that come as kernels of the origin's, as texts and flags name them.
FUSED = re.compile(r"flash_?att|memory_?efficient|xformers", re.I)


def loads_kernels(module: Module, definition: ast.AST, name: str) -> bool:
    """Whether a class or function that is named for the device uses a library of kernels."""
    if not own_name(module).search(name):
        return False
    start, end = module.span(definition)
    nodes = module.names.nodes
    for each in (*nodes[ast.Attribute], *nodes[ast.Name]):
        if start <= module.span(each)[0] < end:
            dotted = module.names.dotted(each)
            if dotted is not None and is_bound(module, dotted):
                return True
    return False


def own_name(module: Module) -> re.Pattern[str]:
    """Names that speak of the device: `scan_cuda`, `ScanCuda`, `FunctionsCUDA`."""
    device = re.escape(module.vocabulary.device)
    camel, upper = device.capitalize(), device.upper()
    return re.compile(
        rf"(?:^|_){device}(?:_|$)|{camel}(?=[A-Z]|$)|(?:^|[a-z_]){upper}(?=[A-Z][a-z]|_|$)"
    )


@once_per_rules
def kernels_of(context: Context) -> re.Pattern[str]:
    """Names of libraries that come with kernels of the origin's, in lower case."""
    from joymigrate.rewrite.codemods.patterns import patterns

    table = patterns(context)
    names = {
        name.partition(".")[0].lower() for name, rule in table.imports.items() if rule in RULES
    }
    names |= LIBRARIES | {name.lower() for name in bound_packages(context)}
    return re.compile("|".join(sorted(map(re.escape, names - SHORT), key=len)))


@once_per_rules
def bound_packages(context: Context) -> frozenset[str]:
    """Packages of other rules that do nothing without the origin's device (`kernels: true`)."""
    items = (item for rule in context.rules.values() for item in rule.match if item.get("kernels"))
    return frozenset(str(name) for item in items for name in item["imports"])  # type: ignore[attr-defined]


def kernel_libraries(module: Module) -> re.Pattern[str]:
    """The same for a module's move."""
    return kernels_of(module.context)


def providers(module: Module) -> Collection[str]:
    """Strings that name what runs a model on the origin's device."""
    match = module.rule(PROVIDERS).match
    return [text for item in match for text in item.get("strings", ())]  # type: ignore[attr-defined]


def operator(module: Module, dotted: str) -> bool:
    """Whether a name is a compiled operator of somebody's own: `torch.ops.project.scan`."""
    parts = dotted.split(".")
    known = (*PORTABLE, module.context.chip.device)
    return parts[:2] == ["torch", "ops"] and len(parts) > 3 and parts[2] not in known


def is_compiled(module: Module, dotted: str) -> bool:
    """Whether a name is of an extension of the project's own: `pkg._C.scan`, no `_C` being seen."""
    place = module.project.locate(dotted)
    first = place[1].partition(".")[0] if place is not None else ""
    if place is None or not first.startswith("_") or first.startswith("__"):
        return False
    package = place[0].endswith("__init__.py") and "." in place[1]
    return package and not module.project.defines(place[0], first)


def find_imported(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Names of the origin's packages that a statement imports."""
    base = "" if isinstance(node, ast.Import) else module.names.absolute(node)
    for alias in node.names:
        dotted = f"{base}.{alias.name}" if base else alias.name
        if is_bound(module, dotted) or VENDORS_OWN.search(dotted):
            yield dotted
            continue
        place = module.project.locate(dotted)  # a file of the project that can't do without one
        for name in module.project.imports(place[0]) if place is not None else ():
            if is_bound(module, name):
                yield name


def is_bound(module: Module, dotted: str) -> bool:
    """Whether a dotted name belongs to a package or tool that holds the origin's kernels."""
    known = answers_of(module.context)
    if dotted not in known:
        known[dotted] = sounds_bound(module.context, dotted)
    # A folder `torch` of the project is found beside its files as well.
    torch = dotted.partition(".")[0] == "torch"
    return known[dotted] and (torch or module.project.locate(dotted) is None)


@once_per_rules
def answers_of(context: Context) -> dict[str, bool]:
    """Answers of `sounds_bound` that are known already."""
    return {}


def sounds_bound(context: Context, dotted: str) -> bool:
    """Whether a name is one of the origin's kernels, if it is none of the project's files."""
    from joymigrate.rewrite.codemods.patterns import lookup, patterns

    parts = dotted.split(".")
    own = re.compile(rf"(?:^|_){re.escape(context.origin.device)}(?:_|$)")
    if parts[0] not in ("torch", "") and any(own.search(part) for part in parts[:-1]):
        return True  # `from my_cuda_ext import fused`
    table = patterns(context)
    rule = table.names.get(dotted) or lookup(dotted, {}, table.imports)
    return rule in RULES or rule == DRIVER or parts[0] in bound_packages(context)


def vendors_own_in(condition: ast.AST) -> str | None:
    """A name of something that the origin's vendor alone has, in a condition."""
    for each in ast.walk(condition):
        name = getattr(each, "attr", getattr(each, "id", None))
        if isinstance(name, str) and VENDORS_OWN.search(name):
            return name
    return None


def library_words(module: Module) -> re.Pattern[str]:
    """Names of libraries with kernels of the origin's as words of a text: group 1."""
    return words_of(module.context)


@once_per_rules
def words_of(context: Context) -> re.Pattern[str]:
    """The same for the rules of a context."""
    from joymigrate.rewrite.codemods.patterns import patterns

    table = patterns(context)
    names = {each for each, rule in table.imports.items() if rule in RULES and "." not in each}
    names |= bound_packages(context) | LIBRARIES
    known = "|".join(sorted(map(re.escape, names - COMMON)))
    return re.compile(rf"(?<![\w.-])({known})(?![\w-])", re.I)

"""Tests for the origin's device that decide whether a kernel of the origin runs.

    if x.is_cuda: return _scan_cuda(x)          such a test stays: on the target the kernel is not
    if torch.cuda.is_available(): CUDAExtension(…)   there, and the other branch is the general one

Branches that also hold plain device code are no such case.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from joymigrate.language import Text
from joymigrate.model import Style
from joymigrate.rewrite.flow_graph import names_a_kind
from joymigrate.rewrite.guards import branches, ends_block, negative
from joymigrate.rewrite.kernel_names import (
    FUSED,
    VENDORS_OWN,
    find_imported,
    is_bound,
    is_compiled,
    kernel_libraries,
    library_words,
    loads_kernels,
    operator,
    own_name,
    providers,
    vendors_own_in,
)
from joymigrate.rewrite.kernel_tests import find_skipped

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

BITS = "bitsandbytes"
SPEAKING = ("print", "warn", "warning", "info", "debug", "error", "warn_once", "warning_once")
FEW_BITS = re.compile(r"(?:^|_)(?:[48]_?bit|bnb|bitsandbytes|nf4|fp4)(?:_|$)", re.I)
KIND = "the name of one of the framework's accelerators, which it looks up in a table of its own"
FOLLOWS = (
    "what follows runs {kernel}, which is made for the origin; "
    "on {chip} the other branch may be right"
)
SWITCHES = "all that it decides about are numeric switches of the origin's, as {name}"


def decides(module: Module, node: ast.AST, *, tensor: bool) -> str | None:
    """Why a test at `node` stays because a kernel of the origin depends on it; else None.

    `tensor`: it asks where a tensor is, so a call of `something_cuda(…)` behind it is a kernel;
    behind a question for the platform it may be a helper that is rewritten as well.
    """
    child, parent = node, getattr(node, "parent", None)
    while isinstance(parent, ast.expr) and not (
        isinstance(parent, ast.IfExp) and child is parent.test
    ):
        child, parent = parent, getattr(parent, "parent", None)
    named = named_for(module, node)
    if named is not None:
        return Text("it decides about {name}, which is made for the origin", name=named)
    # `torch.cuda.is_available() and is_sm_at_least_90()`
    chosen = parent.body if isinstance(parent, ast.IfExp) else child
    beside = vendors_own_in(child) or few_bits_in(module, child) or few_bits_in(module, chosen)
    if beside is not None:
        return Text("it decides about {name}, which is made for the origin", name=beside)
    skipped = find_skipped(module, node)
    if skipped is not None:
        return Text("it decides about {name}, which is made for the origin", name=skipped)
    home = library_around(module, node) if tensor else loader_around(module, node)
    home = home or format_around(module, node)
    if home is not None:
        return Text("it decides about {name}, which is made for the origin", name=home)
    if module.by_kind and chooses_accelerator(node):
        return KIND
    switch = find_switches(module, parent) if isinstance(parent, ast.If) else None
    if switch is not None and child is parent.test:  # type: ignore[union-attr]
        return Text(SWITCHES, name=switch)
    kept = kept_for_library(module, node)
    if kept is not None:
        return Text("it decides about {name}, which is made for the origin", name=kept)
    if isinstance(parent, ast.Assert):
        needed = find_needed(module, parent)
        return Text(FOLLOWS, kernel=needed, chip=module.context.chip.name) if needed else None
    if not isinstance(parent, (ast.If, ast.IfExp)) or child is not parent.test:
        return None
    built = find_build(module, parent)
    if built is not None:
        return Text(FOLLOWS, kernel=built, chip=module.context.chip.name)
    parts = behind(parent)
    moved = (part for part in parts if moved_as_well(module, part, node))
    if any(find_named(module, part) is None for part in moved):
        return None
    for part in parts:
        for each in ast.walk(part):
            name = kernel(module, each, tensor)
            if name is not None:
                return Text(FOLLOWS, kernel=name, chip=module.context.chip.name)
    return None


def find_needed(module: Module, asserted: ast.Assert) -> str | None:
    """A library of kernels that the function behind an assertion uses, or one which it calls."""
    function = module.names.enclosing(asserted, (ast.FunctionDef, ast.AsyncFunctionDef))
    if function is None or not speaks_of_library(library_words(module), module.source.text):
        return None
    calls = (each.func for each in ast.walk(function) if isinstance(each, ast.Call))
    named = (find_made(module, func) for func in calls if isinstance(func, ast.Name))
    parts = [function, *filter(None, named)]
    for each in (each for part in parts for each in ast.walk(part)):
        if isinstance(each, (ast.Name, ast.Attribute)):
            dotted = module.names.dotted(each)
            if dotted is not None and "." in dotted and is_bound(module, dotted):
                return dotted
    return None


@functools.lru_cache(maxsize=1)  # asked for each assertion of a file
def speaks_of_library(words: re.Pattern[str], text: str) -> bool:
    """Whether a file names a library of kernels anywhere."""
    return words.search(text) is not None


def find_switches(module: Module, branch: ast.If) -> str | None:
    """A numeric switch of the origin's libraries, where a branch does no more than set or ask such.

    It may warn of them, and raise: `if device.type == "cuda" and torch.backends.cudnn.allow_tf32:
    raise …`. None where the target has a switch of its own that a rewrite puts there.
    """
    if branch.orelse or "torch.backends" not in module.source.text or negative(branch.test):
        return None
    found = [name for part in (branch.test, *branch.body) for name in switches_in(module, part)]
    direct = module.context.style is Style.DIRECT
    for name in found:
        advice = module.vocabulary.moved(name) if direct else None
        if advice is not None and advice.to not in (None, name):
            return None
    alone = all(only_switches(module, each) for each in branch.body)
    return found[0] if found and alone else None


def switches_in(module: Module, part: ast.AST) -> Iterator[str]:
    """Names of numeric switches of the origin's libraries in a part of the code."""
    homes = ("torch.backends.cudnn.", f"torch.backends.{module.vocabulary.device}.")
    for each in ast.walk(part):
        dotted = module.names.dotted(each) if isinstance(each, ast.Attribute) else None
        if dotted is not None and dotted.startswith(homes):
            yield dotted


def only_switches(module: Module, statement: ast.stmt) -> bool:
    """Whether a statement sets such switches, or tells of them, and does nothing else."""
    if isinstance(statement, ast.If):
        return all(only_switches(module, each) for each in (*statement.body, *statement.orelse))
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return all(any(switches_in(module, target)) for target in targets)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        func = statement.value.func
        name = str(getattr(func, "attr", getattr(func, "id", "")))
        return name in SPEAKING or any(switches_in(module, func))
    return isinstance(statement, (ast.Raise, ast.Pass))


def few_bits_in(module: Module, condition: ast.AST) -> str | None:
    """A flag for optimisers or weights of bitsandbytes in a condition, where the project has it."""
    for each in ast.walk(condition):
        name = getattr(each, "attr", getattr(each, "id", None))
        if isinstance(name, str) and FEW_BITS.search(name) and module.project.speaks_of(BITS):
            return f"{name} ({BITS})"
    return None


def chooses_accelerator(node: ast.AST) -> bool:
    """Whether a question decides about an accelerator of Lightning's, which knows none for a chip.

    `Trainer(accelerator="gpu" if torch.cuda.is_available() else "cpu")`, `Trainer(gpus=1 if …)`,
    `if torch.cuda.is_available(): accelerator = "cuda"`.
    """
    at: ast.AST | None = node
    while isinstance(at, ast.expr):
        at = getattr(at, "parent", None)
    if isinstance(at, ast.keyword):
        return at.arg in ("accelerator", "gpus")
    given = at.body if isinstance(at, ast.If) else [at]
    assigned = [each for each in given if isinstance(each, ast.Assign)]
    plain = [each for each in assigned if isinstance(each.value, (ast.Constant, ast.IfExp))]
    targets = [target for each in plain for target in each.targets]
    names = (str(getattr(each, "attr", getattr(each, "id", ""))) for each in targets)
    return any(names_a_kind(f"#{name}") for name in names)


def named_for(module: Module, node: ast.AST) -> str | None:
    """A name of the origin's vendor, or of a library with its kernels, that a test is for.

    `is_nvidia = platform == "cuda"`, `FaissIndex(gpu=x.device.type == "cuda")`, and an assertion
    that says what needs the device: `assert torch.cuda.is_available(), "apex needs it"`.
    """
    libraries = kernel_libraries(module)
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.stmt):
        above = getattr(at, "parent", None)
        if isinstance(above, ast.Call) and at is not above.func:
            name = str(getattr(above.func, "attr", getattr(above.func, "id", "")))
            if libraries.search(name.lower()):
                return name
        at = above
    if isinstance(at, ast.Assert) and isinstance(at.msg, ast.Constant):
        vendor = module.context.origin.name  # "needs an NVIDIA GPU" names the device alone
        found = libraries.search(str(at.msg.value).lower().replace(vendor, ""))
        return found.group() if found else None
    if isinstance(at, ast.If) and isinstance(at.body[-1], ast.Raise) and negative(at.test):
        fused = FUSED.search(module.text(at.test)) or FUSED.search(join_texts(at.body[-1]))
        return fused.group() if fused is not None else None
    targets = at.targets if isinstance(at, ast.Assign) else []
    vendor = module.context.origin.name
    for target in targets:
        name = str(getattr(target, "attr", getattr(target, "id", "")))
        if re.search(rf"(?:^|_){re.escape(vendor)}(?:_|$)", name.lower()):
            return name
    return None


def join_texts(statement: ast.stmt) -> str:
    """The texts of a statement, with one sign between words."""
    nodes = (each.value for each in ast.walk(statement) if isinstance(each, ast.Constant))
    return re.sub(r"\W+", "_", " ".join(text for text in nodes if isinstance(text, str)))


def library_around(module: Module, node: ast.AST) -> str | None:
    """The library with the origin's kernels that the code around a test is written for.

    A class that is made from one of its classes, a function that imports it.
    """
    at = getattr(node, "parent", None)
    while at is not None:
        if isinstance(at, ast.ClassDef) and (base := base_of_library(module, at)) is not None:
            return base
        if isinstance(at, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for each in at.body:
                if isinstance(each, (ast.Import, ast.ImportFrom)):
                    name = next(find_imported(module, each), None)
                    if name is not None:
                        return name
        at = getattr(at, "parent", None)
    return None


def base_of_library(module: Module, owner: ast.ClassDef | None) -> str | None:
    """The class of a library with the origin's kernels that a class is made from."""
    named = (module.names.dotted(base) for base in (owner.bases if owner is not None else ()))
    return next((each for each in named if each is not None and is_bound(module, each)), None)


def loader_around(module: Module, node: ast.AST) -> str | None:
    """The class around a test that is named for the device and loads its kernels."""
    owner = module.names.enclosing(node, (ast.ClassDef,))
    return owner.name if owner is not None and loads_kernels(module, owner, owner.name) else None


def format_around(module: Module, node: ast.AST) -> str | None:
    """The function, class or file around a test that is named for something of NVIDIA's alone."""
    at = getattr(node, "parent", None)
    while at is not None:
        name = getattr(at, "name", None)
        if isinstance(name, str) and VENDORS_OWN.search(name):
            return name
        at = getattr(at, "parent", None)
    path = module.source.path.removesuffix(".py").replace("/", ".")
    return module.source.path if VENDORS_OWN.search(path) else None


def kept_for_library(module: Module, node: ast.AST) -> str | None:
    """What a variable with the answer is for later, where that is a library's kernels.

    `is_cuda = x.is_cuda`, then `to_cupy(x) if is_cuda else to_numpy(x)`, `Index(gpu=is_cuda)`.
    """
    statement: ast.AST | None = node
    while statement is not None and not isinstance(statement, ast.stmt):
        statement = getattr(statement, "parent", None)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    wanted = getattr(target, "attr", getattr(target, "id", None))
    kinds = ast.Attribute if isinstance(target, ast.Attribute) else ast.Name
    libraries = kernel_libraries(module)
    for use in module.names.nodes[kinds] if wanted else ():
        if use is target or getattr(use, "attr", getattr(use, "id", None)) != wanted:
            continue
        if not isinstance(use.ctx, ast.Load) or not is_shared(module, use, target):
            continue
        named = named_for(module, use)
        if named is not None:
            return named
        branch = getattr(use, "parent", None)
        if isinstance(branch, ast.If) and branch.test is use:
            parts = [each for part in branch.body for each in ast.walk(part)]
            if not any(moved_as_well(module, part, node) for part in branch.body):
                imports = (kernel(module, each, False) for each in parts)
                first = next(filter(None, imports), None)
                if first is not None:
                    return first
        if isinstance(branch, ast.IfExp) and branch.test is use:
            for each in ast.walk(branch.body):
                name = str(getattr(each, "attr", getattr(each, "id", "")))
                if libraries.search(name.lower()):
                    return name
                if isinstance(each, ast.Constant) and each.value in providers(module):
                    return str(each.value)
    return None


def is_shared(module: Module, use: ast.expr, target: ast.expr) -> bool:
    """Whether two places name one variable: the same scope's, or an attribute of `self`."""
    if isinstance(target, ast.Attribute):
        parts = (use, target)
        return all(getattr(getattr(each, "value", None), "id", "") == "self" for each in parts)
    found = module.names.lookup(use.id, use)  # type: ignore[attr-defined]
    own = module.names.lookup(target.id, target)  # type: ignore[attr-defined]
    return found is not None and own is not None and found[0] is own[0]


def behind(branch: ast.If | ast.IfExp) -> list[ast.AST]:
    """What runs when the origin's device is there, with the condition's own further parts."""
    if isinstance(branch, ast.IfExp):
        return [branch.test, branch.orelse if negative(branch.test) else branch.body]
    if not negative(branch.test):
        return [branch.test, *branch.body]
    if branch.orelse or not ends_block(branch.body[-1]):
        return [branch.test, *branch.orelse]
    block = next((part for part in branches(branch.parent) if branch in part), [branch])  # type: ignore[attr-defined]
    return [branch.test, *block[block.index(branch) + 1 :]]


def moved_as_well(module: Module, part: ast.AST, node: ast.AST) -> bool:
    """Whether a part holds device code of its own that a rewrite moves to the target."""
    words = module.vocabulary
    inside = set(ast.walk(part))
    if node in inside:  # the condition
        return False
    method = module.context.origin.tensor["cuda"]
    for each in inside:
        if isinstance(each, ast.Attribute) and each.attr == method:
            if module.names.dotted(each) == words.module and feeds_kernel(module, each):
                continue
            return True
        text = each.value if isinstance(each, ast.Constant) else None
        if isinstance(text, str) and (
            words.exact_device.match(text) or words.device_prefix.match(text)
        ):
            return True
    return False


def find_named(module: Module, part: ast.AST) -> str | None:
    """The library of the origin's kernels that a text names: `return device, "warp"`."""
    words = library_words(module)
    for each in ast.walk(part):
        text = each.value if isinstance(each, ast.Constant) else None
        if isinstance(text, str) and words.fullmatch(text):
            return text if module.project.speaks_of(f"import {text}") else None
    return None


def feeds_kernel(module: Module, node: ast.AST) -> bool:
    """Whether a name of the origin's module stands in a call of one of its libraries.

    `numba.cuda.external_stream(torch.cuda.current_stream().cuda_stream)`
    """
    while isinstance(node, ast.expr):
        if isinstance(node, ast.Call) and is_bound(module, module.names.dotted(node.func) or ""):
            return True
        node = node.parent  # type: ignore[attr-defined]
    return False


def kernel(module: Module, node: ast.AST, tensor: bool) -> str | None:
    """The name of a kernel of the origin that a node uses, None for anything else."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return next(iter(find_imported(module, node)), None)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if node.value in providers(module) else find_named(module, node)
    if isinstance(node, (ast.Name, ast.Attribute)):
        dotted = module.names.dotted(node)
        name = dotted or str(getattr(node, "attr", ""))
        if VENDORS_OWN.search(name):
            return name.rpartition(".")[2]
        if dotted is not None and is_bound(module, dotted):
            return dotted.rpartition(".")[2]
        if dotted is not None and tensor and operator(module, dotted):
            return dotted
    if not isinstance(node, ast.Call):
        return None
    func = node.func
    if tensor and (compiled := find_compiled(module, func)) is not None:
        return compiled
    if isinstance(func, ast.Name):
        made = find_made(module, func)
        if made is not None and loads_kernels(module, made, func.id):
            return func.id
        if not tensor or plain_function(module, func):
            return None
    if not tensor or (module.names.dotted(func) or "").startswith("torch."):
        return None
    names = list(chain(func))  # `FunctionsCUDA.get("scan")(x)`, `ScanCuda.apply(x)`
    if names and names[0] in ("apply", "forward"):
        del names[0]
    method = module.context.origin.tensor["cuda"]
    for number, name in enumerate(names):
        # What is called, and classes that it is called of: `x_cuda.sum()` is a tensor's.
        spoken = not number or not name[:1].islower()
        if spoken and name != method and own_name(module).search(name):
            return name
    return None


def find_build(module: Module, branch: ast.If | ast.IfExp) -> str | None:
    """Flags for the origin's compiler that a branch sets: `extra_cuda_cflags = ["-O3"]`."""
    if isinstance(branch, ast.IfExp):
        return None
    flags = re.compile(rf"(?:^|_){re.escape(module.vocabulary.device)}_c?(?:_?flags|args)$|^nvcc")
    for each in (each for part in branch.body for each in ast.walk(part)):
        name = getattr(each, "id", getattr(each, "arg", getattr(each, "value", "")))
        if isinstance(name, str) and flags.search(name):
            return name
    return None


def find_compiled(module: Module, func: ast.expr) -> str | None:
    """A function of the project's own extension that is called, by a function or class of the file.

    `_C.scan(x)`, `scan(x)` and `Scan.apply(x)` where their code calls that, or starts a kernel of
    the file's own: `kernel[grid](x)`.
    """
    dotted = module.names.dotted(func)
    if dotted is not None and is_compiled(module, dotted):
        return dotted
    owner = func.value if isinstance(func, ast.Attribute) and func.attr == "apply" else func
    made = find_made(module, owner) if isinstance(owner, ast.Name) else None
    if made is None:
        return find_started(module, func)
    calls = [each.func for each in ast.walk(made) if isinstance(each, ast.Call)]
    names = (module.names.dotted(each) for each in calls)
    own = filter(None, (find_started(module, each) for each in calls))
    return next((name for name in names if name and is_compiled(module, name)), next(own, None))


def find_started(module: Module, func: ast.expr) -> str | None:
    """The kernel of this file that a call of `kernel[grid]` starts."""
    name = func.value if isinstance(func, ast.Subscript) else None
    return name.id if isinstance(name, ast.Name) and is_written(module, name) else None


def find_made(module: Module, name: ast.Name) -> ast.AST | None:
    """The function or class of the file that a name stands for; it may be None elsewhere."""
    found = module.names.lookup(name.id, name)
    made = [e.node for e in (found[1] if found else ()) if e.kind in ("class", "function")]
    return made[0] if len(made) == 1 else None


def is_written(module: Module, name: ast.Name) -> bool:
    """Whether a name is a kernel that this file writes: a function under a decorator of JM202."""
    found = module.names.lookup(name.id, name)
    written = module.rule("JM202").match
    known = {each for item in written for each in item.get("names", ())}  # type: ignore[attr-defined]
    decorators = (
        getattr(each, "func", each)
        for binding in (found[1] if found is not None else ())
        for each in getattr(binding.node, "decorator_list", ())
    )
    return any(ast.unparse(each) in known for each in decorators)  # `triton` may be None as well


def chain(node: ast.AST | None) -> Iterator[str]:
    """The names of a chain of attributes and calls, the last one first."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Name)):
        if not isinstance(node, ast.Call):
            yield node.attr if isinstance(node, ast.Attribute) else node.id
        node = getattr(node, "func", getattr(node, "value", None))


def plain_function(module: Module, name: ast.Name) -> bool:
    """Whether a function of this file is meant that calls nothing which is named for the device."""
    made = find_made(module, name)
    if made is None:
        return False
    names = module.names.nodes
    start, end = module.span(made)
    word = module.vocabulary.device
    for node in (*names[ast.Call], *names[ast.Import], *names[ast.ImportFrom]):
        at, _ = module.span(node)
        if not start <= at < end:
            continue
        if not isinstance(node, ast.Call):
            return False
        called = str(getattr(node.func, "attr", getattr(node.func, "id", "")))
        dotted = module.names.dotted(node.func) or ""
        if (word in called.lower() and called != word) or is_bound(module, dotted):
            return False
        if operator(module, dotted) or called in ("apply", "forward"):
            return False
    return True

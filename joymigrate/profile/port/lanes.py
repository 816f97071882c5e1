"""Whether a kernel does the same to every lane of its tile, so that the tile can be cut."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from joymigrate.profile.port.dotted_names import dotted_name, name_below
from joymigrate.profile.port.edits import Edits, FreeNames
from joymigrate.profile.port.find import SourceKernel, is_constexpr
from joymigrate.profile.port.flow import assignments

# Operators of the language that work on each lane by itself.
BY_LANE = frozenset(
    ("load", "store", "arange", "program_id", "num_programs", "where", "exp", "exp2", "log", "log2",
     "sqrt", "rsqrt", "sqrt_rn", "sigmoid", "abs", "maximum", "minimum", "sin", "cos", "erf",
     "floor", "ceil", "fma", "cast", "clamp", "cdiv", "div_rn", "fdiv", "zeros", "full",
     "multiple_of", "max_contiguous", "umulhi", "static_assert", "constexpr", "math.exp",
     "math.log", "math.sqrt", "math.rsqrt", "math.abs", "math.erf", "math.sin", "math.cos",
     "math.tanh", "math.exp2", "math.log2", "math.floor", "math.ceil", "math.fma")
)  # fmt: skip
METHODS = frozenset(("to", "cast"))
SHAPED = frozenset(("zeros", "full"))


def calls(node: ast.AST, language: frozenset[str]) -> Iterator[tuple[ast.Call, str]]:
    """Calls with the name below triton.language; "" for others."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            yield one, name_below(one.func, language)


def by_lane(tree: ast.Module, language: frozenset[str]) -> frozenset[str]:
    """Functions of a file that do the same to every lane and make none themselves."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            inner = list(calls(node, language))
            fine = all(name in BY_LANE - {"arange", "load", "store"} or is_plain(call, found)
                       for call, name in inner)  # fmt: skip
            if fine and not any(isinstance(n, ast.Subscript) for n in body(node)):
                found.add(node.name)
    return frozenset(found)


def is_plain(call: ast.Call, helpers: Iterable[str]) -> bool:
    """A conversion, or a call of a function that keeps lanes apart."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        return True
    return dotted_name(call.func) in ("range", "min", "max", *helpers)


def splittable(node: ast.FunctionDef, language: frozenset[str], helpers: Iterable[str] = ()) -> str:
    """The one size of all lanes, or "" where lanes meet or nobody can tell."""
    sizes: set[str] = set()
    fixed = {a.arg for a in node.args.args if is_constexpr(a)}
    for call, name in calls(node, language):
        if not name:
            if not is_plain(call, helpers):
                return ""
        elif name not in BY_LANE:
            return ""
        elif name == "arange":
            end = call.args[1] if len(call.args) > 1 else None
            start = call.args[0] if call.args else None
            if not isinstance(end, ast.Name) or not isinstance(start, ast.Constant):
                return ""
            if start.value != 0:
                return ""
            sizes.add(end.id)
    if len(sizes) != 1 or not sizes <= fixed:
        return ""
    if any(isinstance(n, (ast.Subscript, ast.While, ast.Return)) for n in body(node)):
        return ""
    return sizes.pop() if keeps_lanes(node, language) else ""


def body(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """Everything inside a function, without its parameters."""
    for statement in node.body:
        yield from ast.walk(statement)


def keeps_lanes(node: ast.FunctionDef, language: frozenset[str]) -> bool:
    """Whether every store is by lane, and what is stored to is not read at other places."""
    lanes = find_tainted(node, language)
    read: dict[str, set[str]] = {}
    for call, name in calls(node, language):
        if name == "load":
            read.setdefault(first_name(call.args[0]), set()).add(ast.unparse(call.args[0]))
    for call, name in calls(node, language):
        if name != "store":
            continue
        address = call.args[0]
        if not names(address) & lanes and not has_arange(address, language):
            return False
        if read.get(first_name(address), set()) - {ast.unparse(address)}:
            return False
    return True


def find_tainted(node: ast.FunctionDef, language: frozenset[str]) -> set[str]:
    """Names whose value differs from lane to lane."""
    made = assignments(node)
    found = {
        name for name, values in made.items() if any(has_arange(one, language) for one in values)
    }  # fmt: skip
    while (
        more := {name for name, values in made.items() if any(names(one) & found for one in values)}
        - found
    ):
        found |= more
    return found


def names(node: ast.AST) -> set[str]:
    """Names inside an expression."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def has_arange(node: ast.AST, language: frozenset[str]) -> bool:
    """Whether an expression makes lanes."""
    return any(name == "arange" for _, name in calls(node, language))


def first_name(address: ast.expr) -> str:
    """The left-most name of an address: its pointer."""
    while isinstance(address, ast.BinOp):
        address = address.left
    return address.id if isinstance(address, ast.Name) else ast.unparse(address)


def stored_lanes(kernel: SourceKernel, edits: Edits, tile: str, names: FreeNames) -> None:
    """Write the lanes and shapes of a whole tile as those of a piece."""
    for call, name in calls(kernel.node, kernel.language):
        if name == "arange":
            tl = dotted_name(call.func).partition(".")[0]
            edits.replace(call, f"({names.lane} + {tl}.arange(0, {names.tile}))")
        elif name in SHAPED:
            for part in shapes(call):
                if isinstance(part, ast.Name) and part.id == tile:
                    edits.replace(part, names.tile)


def shapes(call: ast.Call) -> Iterable[ast.expr]:
    """The sizes in a shape argument."""
    given = call.args[0] if call.args else next(
        (k.value for k in call.keywords if k.arg == "shape"), None
    )  # fmt: skip
    return given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given] if given else []

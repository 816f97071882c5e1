"""Writes a chip's variant of a Triton kernel: text in, text out, call sites stay as they are.

What is done to a kernel, each only where it keeps the result:

- its grid is folded onto the chip's cores: each core takes every n-th block, one after the other;
- a kernel without anything across its lanes runs over pieces of a tile that fit the on-chip memory;
- a masked load without `other` reads 0, so that tails are the same everywhere;
- products of a block's number with a run-time stride are computed in 64 bits;
- calls that the chip's Triton lacks are replaced where `triton.yaml` has a rule.

What can't be done is said with its reason, and the kernel is left alone.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from joymigrate.profile.port.dotted_names import dotted_name, name_below
from joymigrate.profile.port.edits import AXES, Edits, FreeNames
from joymigrate.profile.port.find import (
    JIT,
    SourceKernel,
    full_name,
    is_constexpr,
    kernels,
    names_of,
)
from joymigrate.profile.port.lanes import by_lane, calls, splittable, stored_lanes
from joymigrate.profile.port.returns import Unliftable, without_returns
from joymigrate.profile.port.runtime import RUNTIME

ACROSS = frozenset(("atomic_cas", "sync_block"))


class RefusedKernel(Exception):
    """A kernel that is left alone, and why."""


@dataclass(frozen=True, slots=True)
class Port:
    """One kernel: what was changed, or why nothing was (`refused`)."""

    kernel: str
    line: int
    changes: tuple[str, ...] = ()
    refused: str = ""


def port_source(
    source: bytes, known: dict[str, Any], *, leave: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, list[Port]]:
    """A file with every kernel that can be ported, and what was done to each.

    Kernels in `leave` stay, each for its reason.
    """
    tree = ast.parse(source)
    edits, ports = Edits(source), []
    imports, _ = names_of(tree)
    pieces: list[tuple[int, int, str]] = []
    found = kernels(tree)
    for kernel in found:
        try:
            if kernel.name in leave:
                raise RefusedKernel(leave[kernel.name])
            if kernel.jit != JIT or not kernel.node.decorator_list:
                raise RefusedKernel(
                    f"compiled by a call of {kernel.jit}, not by the decorator {JIT}"
                )
            text, changes = variant(kernel, tree, edits, imports, known)
        except RefusedKernel as why:
            ports.append(Port(kernel.name, kernel.node.lineno, refused=str(why)))
            continue
        first = kernel.node.decorator_list[0]
        assert kernel.node.end_lineno is not None
        start = edits.at(first.lineno, 0)
        pieces.append((start, edits.at(kernel.node.end_lineno + 1, 0), text))
        ports.append(Port(kernel.name, kernel.node.lineno, tuple(changes)))
    whole, at = bytearray(), 0
    head = after_imports(tree, edits) if pieces else 0
    pieces.append((head, head, "\n" + runtime(known)) if pieces else (0, 0, ""))
    for start, end, text in sorted(pieces):
        whole += source[at:start] + text.encode()
        at = end
    return (whole + source[at:]).decode(), ports


def runtime(known: dict[str, Any]) -> str:
    """The launcher, with the chip's documented numbers of cores."""
    limits = known["limits"]
    vector = limits["vector_cores"]
    cube = limits.get("cube_cores", vector)
    return RUNTIME.format(
        package=known["package"], vector=vector["value"], cube=cube["value"],
        ask_vector=vector.get("ask", "None"), ask_cube=cube.get("ask", "None"),
    )  # fmt: skip


def after_imports(tree: ast.Module, edits: Edits) -> int:
    """Where the launcher goes: before the first definition, behind the imports above it."""
    line = 0
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            break
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            line = node.end_lineno or line
    return edits.at(line + 1, 0)


def variant(
    kernel: SourceKernel,
    tree: ast.Module,
    edits: Edits,
    imports: dict[str, str],
    known: dict[str, Any],
) -> tuple[str, list[str]]:
    """The text of one kernel's variant and what was changed. Raises Refused."""
    node = kernel.node
    refuse(kernel, tree, imports, known)
    if not kernel.language:
        raise RefusedKernel("the file does not import triton.language as a name")
    tl = sorted(kernel.language)[0]
    names = FreeNames.free_of(node)
    changes = ["grid folded onto the cores"]
    changes += tails(kernel, edits)
    changes += wide_offsets(kernel, edits, names, tl)
    tile = splittable(node, kernel.language, by_lane(tree, kernel.language))
    if tile:
        stored_lanes(kernel, edits, tile, names)
        changes.append(f"{tile} in pieces that fit the core")
    programs(kernel, edits, names)
    changes += replacements(kernel, edits, imports, known)
    return write_block(kernel, edits, names, tl, tile, known), list(dict.fromkeys(changes))


def refuse(
    kernel: SourceKernel, tree: ast.Module, imports: dict[str, str], known: dict[str, Any]
) -> None:
    """Raise Refused for what can't be folded."""
    node = kernel.node
    if node.args.vararg or node.args.kwarg or node.args.kwonlyargs or node.args.posonlyargs:
        raise RefusedKernel("its parameters are not plain ones")
    if any(isinstance(part, ast.With) for part in ast.walk(node)):
        raise RefusedKernel("it has a `with` block, which is not known on the chip")
    own = list(calls(node, kernel.language))
    used = {dotted_name(call.func).partition(".")[0] for call, _ in own}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in used:
            inner = calls(function, kernel.language)
            if any(name in ("program_id", "num_programs") for _, name in inner):
                raise RefusedKernel(
                    f"{function.name}, which it calls, asks for the program's number"
                )
    asks = False
    for call, name in own:
        if name in ACROSS:
            raise RefusedKernel(f"tl.{name}: it may wait for other programs")
        if name in ("program_id", "num_programs"):
            asks = True
            if axis_of(call) is None:
                raise RefusedKernel(f"line {call.lineno}: the axis of tl.{name} is no number")
    if not asks:
        raise RefusedKernel("it does not ask for its program's number: a helper, or one program")
    whole = {full_name(part, imports) for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    whole |= {full_name(call, imports) for call, _ in own}
    rules = known.get("replace", {})
    for part in known.get("modules", ()):
        prefix = part["prefix"]
        long = "triton.language." + prefix.removeprefix("tl.").removeprefix("triton.language.")
        for name in sorted(whole):
            if (name == long or name.startswith(f"{long}.")) and name not in rules:
                if any(other.startswith(f"{name}.") for other in whole):
                    continue
                raise RefusedKernel(f"{name}: no replacement is known")


def axis_of(call: ast.Call) -> int | None:
    """The axis of `tl.program_id(axis)`."""
    value = call.args[0] if call.args else next((k.value for k in call.keywords), None)
    if isinstance(value, ast.Constant) and isinstance(value.value, int):
        return value.value if value.value in AXES else None
    return None


def programs(kernel: SourceKernel, edits: Edits, names: FreeNames) -> None:
    """The program's number becomes the block's."""
    for call, name in calls(kernel.node, kernel.language):
        if name in ("program_id", "num_programs"):
            axis = axis_of(call)
            assert axis is not None
            edits.replace(call, (names.block if name == "program_id" else names.grid)[axis])


def replacements(
    kernel: SourceKernel, edits: Edits, imports: dict[str, str], known: dict[str, Any]
) -> Iterator[str]:
    """Calls with a rule of `triton.yaml`: `{0}`, `{1}` are the arguments, `tl` the language."""
    rules = known.get("replace", {})
    tl = sorted(kernel.language)[0]
    for call, _ in reversed(list(calls(kernel.node, kernel.language))):  # inner calls first
        rule = rules.get(full_name(call, imports))
        if rule is None:
            continue
        if call.keywords or any(isinstance(one, ast.Starred) for one in call.args):
            raise RefusedKernel(
                f"line {call.lineno}: {dotted_name(call.func)} is called with keywords"
            )
        inside = [edits.within(*edits.span(one)) for one in call.args]
        edits.replace(call, "(" + rule["with"].format(*inside, tl=tl) + ")")
        yield f"{dotted_name(call.func)} replaced"


def tails(kernel: SourceKernel, edits: Edits) -> Iterator[str]:
    """Masked loads get a value for what is masked."""
    for call, name in calls(kernel.node, kernel.language):
        words = {one.arg for one in call.keywords}
        masked = "mask" in words or len(call.args) > 1
        if name == "load" and masked and "other" not in words and len(call.args) < 3:
            end = edits.span(call)[1] - 1
            comma = "" if edits.source[:end].rstrip().endswith(b",") else ", "
            edits.spans.append((end, end, f"{comma}other=0"))
            yield "masked lanes read 0"


def wide_offsets(kernel: SourceKernel, edits: Edits, names: FreeNames, tl: str) -> Iterator[str]:
    """`tl.program_id(0) * stride` in 64 bits where the stride is only known at run time."""
    fixed = {a.arg for a in kernel.node.args.args if is_constexpr(a)}
    sizes = {a.arg for a in kernel.node.args.args} - fixed
    numbers = {
        target.id
        for one in ast.walk(kernel.node)
        if isinstance(one, ast.Assign) and is_program(one.value, kernel)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    for one in ast.walk(kernel.node):
        if not isinstance(one, ast.BinOp) or not isinstance(one.op, ast.Mult):
            continue
        for number, other in ((one.left, one.right), (one.right, one.left)):
            is_number = is_program(number, kernel) or (
                isinstance(number, ast.Name) and number.id in numbers
            )
            if is_number and isinstance(other, ast.Name) and other.id in sizes:
                left, right = edits.span(number)
                edits.spans.append((left, left, f"{tl}.cast("))
                edits.spans.append((right, right, f", {tl}.int64)"))
                yield "offsets in 64 bits"
                break


def is_program(node: ast.expr, kernel: SourceKernel) -> bool:
    """Whether a value is the program's number."""
    called = isinstance(node, ast.Call) and name_below(node.func, kernel.language)
    return called == "program_id"


def write_block(
    kernel: SourceKernel, edits: Edits, names: FreeNames, tl: str, tile: str, known: dict[str, Any]
) -> str:
    """The block's function and the kernel around it."""
    node = kernel.node
    first, last = node.body[0], node.body[-1]
    assert last.end_lineno is not None
    body = edits.within(edits.at(first.lineno, 0), edits.at(last.end_lineno + 1, 0))
    try:
        body = without_returns(body, [a.arg for a in node.args.args])
    except Unliftable as why:
        raise RefusedKernel(f"{why}, and a call takes no pointers on the chip") from None
    plain = [a.arg for a in node.args.args]
    given = ast.unparse(node.args)
    dot = any(name in ("dot", "dot_scaled") for _, name in calls(kernel.node, kernel.language))
    extra = [f"{name}=0" for name in (*names.block, *names.grid)]
    sent = [*plain]
    sent += [
        f"{tl}.cast(at % {names.grid[0]}, {tl}.int32)",
        f"{tl}.cast(at // {names.grid[0]} % {names.grid[1]}, {tl}.int32)",
        f"{tl}.cast(at // ({names.grid[0]} * {names.grid[1]}), {tl}.int32)",
        *names.grid,
    ]
    sizes = [f"{name}=1" for name in names.grid] + [f"{names.cores}: {tl}.constexpr = 1"]
    values = [f'"{name}": _axis({axis})' for axis, name in enumerate(names.grid)]
    values.append(f'"{names.cores}": _programs({dot})')
    inner = f"_{kernel.name}_block({', '.join(sent)}"
    loop = "        "
    if tile:
        extra += [f"{names.lane}=0", f"{names.tile}: {tl}.constexpr = 1"]
        sizes.append(f"{names.tile}: {tl}.constexpr = 1")
        most = fitting(kernel, known)
        values.append(f'"{names.tile}": lambda args: min(int(args["{tile}"]), {most})')
        loop += f"for lane in range(0, {tile}, {names.tile}):\n            "
        inner += f", lane, {names.tile}"
    decorators = [edits.source[slice(*edits.span(one))].decode() for one in node.decorator_list]
    above = "".join(f"@{one}\n" for one in decorators[:-1])
    lines = [
        "@triton.jit",
        f"def _{kernel.name}_block({given}, {', '.join(extra)}):",
        body.rstrip("\n"),
        "",
        "",
        "@_OnCores",
        f"{above}@triton.heuristics({{{', '.join(values)}}})",
        f"@{decorators[-1]}",
        f"def {kernel.name}({given}, {', '.join(sizes)}):",
        f"    blocks = {' * '.join(names.grid)}",
        f"    for at in range({tl}.program_id(0), blocks, {names.cores}):",
        f"{loop}{inner})",
        "",
    ]
    text = "\n".join(lines)
    try:
        ast.parse(textwrap.dedent(text))
    except SyntaxError as error:  # a form of source that the edits do not know
        raise RefusedKernel(f"the variant is not valid Python ({error.msg})") from None
    return text


def fitting(kernel: SourceKernel, known: dict[str, Any]) -> int:
    """The largest power of two of 4-byte lanes, once per load and store, that fits a core."""
    tensors = sum(name in ("load", "store") for _, name in calls(kernel.node, kernel.language))
    lanes = int(known["limits"]["memories"]["vector"]["value"]) // (4 * max(2, 2 * tensors))
    return 1 << (lanes.bit_length() - 1)

"""On-chip bytes that Triton kernels keep alive, read from Triton's own IR: a process of its own.

    python -m joymigrate.profile.port.live JOBS.json FIRST

JOBS lists `file`, `kernel`, `roles` (of its parameters, as `draw.py` reads them), `sizes` (that the
launch says), `open` (sizes that no launch says) and `limits` (bytes by memory). A role that the
front end does not take is another one (`retry.py`). A kernel is lowered to TTIR, inlined and
canonical; walking it backwards gives what is alive at each operator, counted in three ways:

    lean    broadcasts and constants are no buffers; element-wise results overwrite what dies
    wide    each tensor is a buffer of its own, its last axis padded to 32 bytes
    double  wide, and a second copy of each tile that a loop loads (of every one without a loop)

Addresses and masks made of ranges are no buffers. Prints a line of JSON per job: `told` is fits
(double exceeds no memory), over (lean exceeds one), unsure, left (a branch was not compiled), or
failed; `why`; `bytes` by memory, of the worst of all `combinations` of what the launch leaves open;
`up_to`, the largest power of two of the `open` sizes that fits.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import sys
import time
import types as types_
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from joymigrate.profile.port.branches import (
    REALS,
    Combination,
    CompiledLines,
    asks_types,
    combine,
    open_values,
    too_many,
)
from joymigrate.profile.port.draw import Role, draw, role_of
from joymigrate.profile.port.lower import load_kernel, types, word_error
from joymigrate.profile.port.retry import IN_BRANCHES, OF_TYPE, CaseFault, near, search

VIEWS = frozenset(("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans",
                   "tt.unsplat"))  # fmt: skip
LOADS = frozenset(("tt.load", "tt.descriptor_load", "tt.descriptor_gather"))
PRODUCTS = frozenset(("tt.dot", "tt.dot_scaled"))
MASK_AT = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}
LOOPS = frozenset(("scf.for", "scf.while"))
FLOW = LOOPS | {"scf.if"}
IN_PLACE = ("arith.", "math.", "tt.fp_to_fp")
PAD = 32  # bytes: the last axis of a buffer fills whole blocks
SIDES = tuple(1 << power for power in range(4, 17))  # tried for sizes that no launch says
FIRST = SIDES.index(1024)
SECONDS = 120  # of processor time for all launches of a kernel
RANKS = ("fits", "unsure", "over")
ANY_REAL = "real numbers"  # the type of those whose type no launch says
TRIES = 60  # roles of a kernel's parameters that the front end is asked about
VECTOR, SUMS, FACTORS = "vector", "sums", "factors"  # memories, as in triton.yaml
TOO_MANY = re.compile(r"numel \((\d+)\) exceeds triton maximum tensor numel")
TYPE = re.compile(r"(?:tensor<((?:\d+x)+))?(.*?)>?")


@dataclass(slots=True)
class IrValue:
    """A result or an argument of a block. `uses` are (operation, place)."""

    shape: tuple[int, ...]
    bits: int
    whole: bool
    pointer: bool
    name: str
    maker: Operation | None
    uses: list[tuple[Operation, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Operation:
    """An operator of the IR. Values, and the regions inside, by identity."""

    name: str
    operands: list[int]
    regions: list[int]
    line: int
    results: list[int] = field(default_factory=list)


class IrModule:
    """A module: operations by block, blocks by region, and what each tensor is for."""

    def __init__(self, module: Any, file: str) -> None:
        self.values: dict[int, IrValue] = {}
        self.blocks: dict[int, list[int]] = defaultdict(list)
        self.operations: dict[int, list[Operation]] = defaultdict(list)
        self.arguments: dict[int, list[int]] = {}
        self.becomes: dict[int, list[int]] = defaultdict(list)  # through branches and loops
        self.order: list[Operation] = []
        self.body: int | None = None
        self.line = re.compile(re.escape(f'"{file}"') + r":(\d+)")
        module.walk(self.see)
        for one in self.order:
            for at, operand in enumerate(one.operands):
                self.values[operand].uses.append((one, at))
            for source, target in self.handed_on(one):
                self.becomes[source].append(target)
        self.sort_tensors()

    def add(self, value: Any, maker: Operation | None = None) -> int:
        """Take a value in."""
        found = TYPE.fullmatch(str(value.get_type()))
        sizes, element = found.groups() if found else (None, "i64")
        width = re.search(r"[if](\d+)", element)
        bits = 64 if "ptr" in element or not width else int(width[1])
        name = re.search(r'loc\("(\w+)"\(', str(value.get_loc()))
        self.values[value.id()] = IrValue(
            tuple(map(int, sizes.split("x")[:-1])) if sizes else (), bits,
            element.startswith("i"), "ptr" in element, name[1] if name else "a value", maker,
        )  # fmt: skip
        return int(value.id())

    def see(self, one: Any) -> None:
        """Take an operation in: what is inside of it was seen before."""
        block = one.get_block()
        if block is None:
            return
        key = block.id()
        if key not in self.arguments:
            self.blocks[block.get_parent().id()].append(key)
            self.arguments[key] = [
                self.add(block.get_argument(i)) for i in range(block.get_num_arguments())
            ]
        results = [one.get_result(i) for i in range(one.get_num_results())]
        lines = (self.line.search(str(result.get_loc())) for result in results)
        last = self.order[-1].line if self.order else 0
        made = Operation(
            one.get_name(),
            [one.get_operand(i).id() for i in range(one.get_num_operands())],
            [one.get_region(i).id() for i in range(one.get_num_regions())],
            next((int(found[1]) for found in lines if found), last),
        )
        made.results.extend(self.add(result, made) for result in results)
        self.operations[key].append(made)
        self.order.append(made)
        if self.body is None and made.name == "tt.func":
            self.body = made.regions[0]  # the kernel comes first

    def inside(self, one: Operation) -> list[tuple[int, list[Operation]]]:
        """The blocks of an operation's regions."""
        return [(b, self.operations[b]) for region in one.regions for b in self.blocks[region]]

    def handed_on(self, one: Operation) -> Iterator[tuple[int, int]]:
        """Pairs of values: the first becomes the second in a branch or a loop."""
        inner = self.inside(one) if one.name in FLOW else []
        if not inner:
            return
        if one.name == "scf.if":
            for _, ops in inner:
                yield from zip(ops[-1].operands, one.results, strict=False)
            return
        (first, tests), (second, ops) = inner[0], inner[-1]
        if one.name == "scf.for":
            for source in (one.operands[3:], ops[-1].operands):
                for target in (self.arguments[first][1:], one.results):
                    yield from zip(source, target, strict=False)
            return
        for source in (one.operands, ops[-1].operands):
            yield from zip(source, self.arguments[first], strict=False)
        for target in (self.arguments[second], one.results):
            yield from zip(tests[-1].operands[1:], target, strict=False)

    def reach(self, starts: Iterable[int], through: Callable[[Operation, int], bool]) -> set[int]:
        """What follows from values, by control flow and by the uses that `through` accepts."""
        todo = list(starts)
        found = set(todo)
        while todo:
            one = todo.pop()
            more = {r for op, at in self.values[one].uses if through(op, at) for r in op.results}
            new = (more | set(self.becomes[one])) - found
            found |= new
            todo += new
        return found

    def made_by(self, names: Iterable[str]) -> set[int]:
        """Tensors that operators of these names make."""
        wanted = set(names)
        made = {r for op in self.order if op.name in wanted for r in op.results}
        return {key for key in made if self.values[key].shape}

    def sort_tensors(self) -> None:
        """Which tensors are buffers, and in which memories."""
        tensors = {key for key, value in self.values.items() if value.shape}
        self.loaded = self.made_by(LOADS | {"tt.atomic_rmw"})
        self.constants = self.made_by(("arith.constant",))
        self.solid = tensors - self.constants
        looped = [one for one in self.order if one.name in LOOPS]
        for one in looped:  # which grows
            looped += [inner for _, ops in self.inside(one) for inner in ops]
        again = {r for one in looped if one.name in LOADS for r in one.results}
        self.twice = self.loaded & again or self.loaded
        data = self.reach(self.loaded, lambda op, at: op.name not in LOADS)
        places = self.addresses(tensors - self.loaded)
        self.gathered = places & data  # buffers, though not in the lean count
        self.summed = self.reach(
            self.made_by(PRODUCTS), lambda op, at: op.name in PRODUCTS and at == 2
        )
        self.memories = {key: self.held_in(key) for key in tensors - (places - data)}

    def addresses(self, tensors: set[int]) -> set[int]:
        """Tensors that are addresses or masks in every use, or lead to nothing else."""
        kept = {key for key in tensors if self.values[key].pointer or self.values[key].whole}

        def leads(op: Operation, at: int, among: set[int]) -> bool:
            if op.name in MASK_AT and op.operands and self.values[op.operands[0]].pointer:
                return at in (0, MASK_AT[op.name])
            flow = op.name.startswith("scf.") or op.name == "tt.addptr"
            return flow or bool(op.results and among.issuperset(op.results))

        while True:
            among = kept
            kept = {
                key for key in among
                if all(target in among for target in self.becomes[key])
                and all(leads(op, at, among) for op, at in self.values[key].uses)
            }  # fmt: skip
            if kept == among:
                return kept

    def held_in(self, key: int) -> set[str]:
        """The memories that hold a tensor."""
        aliases = self.reach([key], lambda op, at: op.name in VIEWS)
        ends = [
            (op, at) for alias in aliases for op, at in self.values[alias].uses
            if op.name not in VIEWS and not op.name.startswith("scf.")
        ]  # fmt: skip
        factor = [op.name in PRODUCTS and at < 2 for op, at in ends]
        drained = [
            (op.name in PRODUCTS and at == 2) or op.name == "tt.store" or self.rounds(op)
            for op, at in ends
        ]
        root, maker = self.root(key), self.values[key].maker
        straight = root in self.loaded and any(factor) and all(factor)
        rounded = maker is not None and self.rounds(maker) and maker.operands[0] in self.summed
        by_product = (key in self.summed and all(drained)) or rounded
        held = {VECTOR} if not straight and not by_product else set()
        held |= {SUMS} if key in self.summed else set()
        return held | ({FACTORS} if any(factor) and root == key else set())

    def rounds(self, op: Operation) -> bool:
        """Whether an operation only rounds what is stored then: the product's unit does it."""
        uses = self.values[op.results[0]].uses if op.name == "arith.truncf" else []
        return op.name == "arith.truncf" and all(one.name == "tt.store" for one, _ in uses)

    def root(self, key: int) -> int:
        """The tensor behind views."""
        while (maker := self.values[key].maker) is not None and maker.name in VIEWS:
            key = maker.operands[0]
        return key


@dataclass(slots=True)
class Peak:
    """The most bytes that live at once in one memory: how many, at which line, of what."""

    program: IrModule
    memory: str
    lean: bool
    bytes: int = 0
    line: int = 0
    names: tuple[tuple[str, int], ...] = ()

    def find(self) -> Peak:
        """Walk the kernel from its end."""
        if self.program.body is not None:
            self.region(self.program.body, set())
        return self

    def size(self, key: int) -> int:
        """Bytes of one tensor."""
        program = self.program
        left_out = self.lean and (key in program.gathered or key in program.constants)
        if left_out or self.memory not in program.memories.get(key, ()):
            return 0
        value = program.values[key]
        last = value.shape[-1] * max(1, value.bits // 8)
        return prod(value.shape[:-1]) * (last if self.lean else -(-last // PAD) * PAD)

    def used(self, keys: Iterable[int]) -> set[int]:
        """The buffers behind operands."""
        behind = map(self.program.root, keys) if self.lean else keys
        return set(behind) & self.program.solid

    def note(self, op: Operation, alive: set[int]) -> None:
        """Remember the most."""
        sizes = {key: self.size(key) for key in alive}
        if sum(sizes.values()) > self.bytes:
            self.bytes, self.line = sum(sizes.values()), op.line
            named = [(self.program.values[key].name, size) for key, size in sizes.items() if size]
            self.names = tuple(sorted(named, key=lambda one: (-one[1], one[0]))[:4])

    def region(self, key: int, after: set[int]) -> set[int]:
        """What lives before a region; several blocks are early returns, which jump forwards."""
        for block in reversed(self.program.blocks[key]):
            before = self.block(self.program.operations[block], after)
            after = after | before - set(self.program.arguments[block])
        return after

    def from_outside(self, op: Operation) -> set[int]:
        """What the inside of an operation uses of its outside."""
        blocks = self.program.inside(op)
        inner = [one for _, ops in blocks for one in ops]
        own = {a for block, _ in blocks for a in self.program.arguments[block]}
        own |= {r for one in inner for r in one.results}
        return {k for one in inner for k in self.used(one.operands) | self.from_outside(one)} - own

    def block(self, ops: list[Operation], after: set[int]) -> set[int]:
        """What lives before a block."""
        live = set(after)
        for op in reversed(ops):
            left = live - set(op.results)
            before = left | self.used(op.operands)
            if op.name in FLOW:  # a loop keeps what it uses of its outside until its end
                left |= self.from_outside(op) if op.name in LOOPS else set()
                before = before.union(left, *(self.region(one, left) for one in op.regions))
            elif self.lean and op.name in VIEWS:
                continue
            elif self.memory == SUMS or (self.lean and op.name.startswith(IN_PLACE)):
                self.note(op, before)
                self.note(op, live | set(op.results))
            elif op.name != "arith.constant":  # which is made where it is used
                constants = self.program.constants.intersection(op.operands)
                self.note(op, before | live | set(op.results) | constants)
            live = before
        return live


def judge(program: IrModule, limits: Mapping[str, int]) -> dict[str, Any]:
    """fits, over or unsure, with the bytes of each memory and what is too much."""
    told, why, counted = "fits", [], {}
    mixed = any(op.name in PRODUCTS for op in program.order)
    for memory, limit in limits.items():
        lean = Peak(program, memory, lean=True).find()
        wide = Peak(program, memory, lean=False).find()
        copies = sum(map(wide.size, program.twice)) if memory != SUMS else 0
        counted[memory] = [lean.bytes, wide.bytes, wide.bytes + copies]
        if wide.bytes + copies <= limit:
            continue
        # The rows of a product may be shared by two vector cores.
        over = lean.bytes > (2 * limit if mixed and memory == VECTOR else limit)
        told = "over" if over or told == "over" else "unsure"
        most = lean if lean.bytes > limit else wide
        why.append({"memory": memory, "over": over, "line": most.line,
                    "bytes": most.bytes if most.bytes > limit else wide.bytes + copies,
                    "names": [name for name, _ in most.names]})  # fmt: skip
    return {"told": told, "why": why, "bytes": counted}


def measure(job: Mapping[str, Any], kernel: Any, computed: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on one set of arguments."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    target = GPUTarget("cuda", 90, 32)  # any would do: only the front end runs
    signature, constants = types(kernel, computed, job["case"])
    signature |= dict.fromkeys(constants, "constexpr")
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options({})
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, signature, constexprs=constants)
    made = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, made, backend.get_module_map(), context)
    backend.make_ttir(module, {}, options, target.arch)
    return judge(IrModule(module, job["file"]), job["limits"])


def fault_of(error: Exception, job: Mapping[str, Any], text: str) -> CaseFault:
    """What the front end says, and the parameters near the lines (the innermost first)."""
    lines: list[int] = []
    message = word_error(error)
    cause: BaseException | None = error
    while cause is not None:
        source, node = getattr(cause, "src", None), getattr(cause, "node", None)
        at = text.find(source) if isinstance(source, str) else -1
        if at >= 0 and hasattr(node, "lineno"):
            lines.insert(0, text.count("\n", 0, at) + node.lineno)  # type: ignore[union-attr]
        cause = cause.__cause__
    around = near(ast.parse(text), job["kernel"], lines)
    return CaseFault(message, around, lines[-1] if lines else 0)


class Compilation:
    """The launches of one kernel, each with all the branches that it leaves open."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.text = Path(job["file"]).read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.roles = [role_of(one) for one in job["roles"]]
        stand_for(job["libraries"])
        self.kernel, self.computed = load_kernel(job)
        self.lines = CompiledLines()
        self.tries, self.fitted, self.asserted = TRIES, False, False
        self.end = time.process_time() + SECONDS
        watch(job["file"], self.lines)

    def compile_one(
        self, job: Mapping[str, Any], side: int, values: Combination, roles: list[Role]
    ) -> dict[str, Any] | CaseFault:
        """The verdict on one combination with one size for what is open."""
        sizes = job["sizes"] | {n: side for n in job["open"] if is_size(n, roles)}
        case = dict(draw(with_type(roles, values.get(ANY_REAL)), 0))
        case |= {name: {"value": value} for name, value in sizes.items()}
        case |= {n: {"value": v} for n, v in values.items() if n in case and v is not ...}
        self.lines.now = set()
        try:
            return measure({**job, "case": case}, self.kernel, self.computed)
        except Exception as error:
            fault = fault_of(error, job, self.text)
            elements = TOO_MANY.search(fault.message)
            if elements:
                return beyond(int(elements[1]), fault.line)
            self.asserted = type(error).__name__ == "CompileTimeAssertionFailure"
            self.lines.keep(values, fault.message, fault.line if self.asserted else 0)
            return fault

    def compile_fitting(
        self, job: Mapping[str, Any], side: int, values: Combination
    ) -> dict[str, Any] | CaseFault:
        """The same, with the roles that were found, or that fit better where those do not."""

        def goes_on() -> bool:
            self.tries -= 1
            return self.tries > 0 and not (self.fitted and self.asserted)

        if time.process_time() > self.end:
            raise TimeoutError(f"the combinations were not compiled in {SECONDS} s")
        if not self.fitted:
            self.tries = TRIES
        found, roles = search(
            self.roles, lambda one: self.compile_one(job, side, values, one), 0, goes_on,
            IN_BRANCHES if self.fitted else OF_TYPE,
        )  # fmt: skip
        if not isinstance(found, CaseFault):
            self.lines.keep(values)
            self.roles = self.roles if self.fitted else roles
            self.fitted = True
        return found

    def judge(self, job: Mapping[str, Any], side: int) -> dict[str, Any] | CaseFault:
        """The worst of all combinations that the front end takes."""
        for one in () if self.fitted else combine(self.open_of(job)):
            if not isinstance(self.compile_fitting(job, side, one), CaseFault):
                break  # roles that fit one combination are where the others start
        told = [self.compile_fitting(job, side, one) for one in combine(self.open_of(job))]
        taken = [one for one in told if not isinstance(one, CaseFault)]
        if not taken:
            return told[0]
        worst = max(taken, key=lambda one: (RANKS.index(one["told"]), total(one)))
        return {**worst, "combinations": len(taken)}

    def open_of(self, job: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """What decides branches, and no launch says."""
        found = open_values(self.roles, job["sizes"])
        return found | ({ANY_REAL: REALS} if asks_types(self.tree) else {})

    def answer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The verdict on a launch; sizes that it does not say are tried from one to the next."""
        place = FIRST
        if many := too_many(self.open_of(job)):
            return {"told": "left", "why": many}
        found = self.judge(job, SIDES[place])
        if isinstance(found, CaseFault):
            return {"told": "failed", "why": found.message}
        step = 1 if found["told"] == "fits" else -1
        while job["open"] and 0 <= place + step < len(SIDES):
            next_ = self.judge(job, SIDES[place + step])
            if isinstance(next_, CaseFault) or (step > 0 and next_["told"] != "fits"):
                break
            place, found = place + step, next_
            if step < 0 and found["told"] == "fits":
                break
        for side in (SIDES[0], 2, 1):
            if self.lines.unseen(self.tree, job["open"]):
                self.judge(job, side)
        unseen = self.lines.unseen(self.tree, job["open"])
        left = self.lines.left(self.text)
        if unseen:
            left = f"a side of `if {ast.unparse(unseen.test)}` was compiled with no arguments"
        if left and found["told"] == "fits":
            return {"told": "left", "why": left}
        sizes = [name for name in job["open"] if is_size(name, self.roles)]
        return {**found, "up_to": SIDES[place], "open": sizes} if sizes else found


def with_type(roles: list[Role], real: str | None) -> list[Role]:
    """Roles in which pointers to real numbers, and types, are of one type."""
    kinds = ("pointer", "dtype")
    return [
        replace(one, dtype=real) if real and one.kind in kinds and one.dtype == REALS[0] else one
        for one in roles
    ]


def total(found: Mapping[str, Any]) -> int:
    """The bytes of all memories, as a measure of what is worst."""
    return sum(counted[-1] for counted in found["bytes"].values())


def stand_for(libraries: Iterable[str]) -> None:
    """Let a chip's own mathematical functions be those that this Triton has: only types count."""
    extra = importlib.import_module("triton.language.extra")
    for name in libraries:
        parent, _, module = name.rpartition(".")
        package = sys.modules.setdefault(parent, types_.ModuleType(parent))
        sys.modules[name] = importlib.import_module("triton.language.extra.libdevice")
        setattr(package, module, sys.modules[name])
        setattr(extra, parent.rpartition(".")[2], package)


def watch(file: str, lines: CompiledLines) -> None:
    """Let the front end tell the lines of a file that it comes to."""
    from triton.compiler.code_generator import CodeGenerator

    visit = getattr(CodeGenerator, "unwatched", CodeGenerator.visit)

    def visit_and_tell(self: Any, node: Any) -> Any:
        if isinstance(node, ast.stmt) and hasattr(node, "lineno") and self.file_name == file:
            lines.now.add(self.begin_line + node.lineno)
        return visit(self, node)

    CodeGenerator.unwatched, CodeGenerator.visit = visit, visit_and_tell


def beyond(elements: int, line: int) -> dict[str, Any]:
    """The verdict on a tensor that Triton itself refuses: a byte an element is too much already."""
    why = {"memory": VECTOR, "over": True, "line": line, "bytes": elements, "names": ["one tensor"]}
    return {"told": "over", "why": [why], "bytes": {}}


def is_size(name: str, roles: list[Role]) -> bool:
    """Whether a parameter is (still) a size or a number."""
    return any(one.name == name and one.kind in ("size", "number") for one in roles)


def main(arguments: list[str]) -> int:
    """All jobs of a file, from the one that is asked for on."""
    from joymigrate.profile.port import block_pointers

    block_pointers.install()
    jobs = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    asked: dict[str, Compilation] = {}  # one search for the roles of all launches of a kernel
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # the compiler prints what it refuses
        for job in jobs[int(arguments[1]) :]:
            try:
                one = asked[job["file"]] = asked.get(job["file"]) or Compilation(job)
                told = one.answer(job)
            except Exception as error:  # a file that does not load, for one
                told = {"told": "failed", "why": word_error(error)}
            print(json.dumps(told), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

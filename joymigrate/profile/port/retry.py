"""Other roles for parameters of a kernel that did not run, by what Triton says against it.

The front end and the interpreter find what is a pointer, a whole number, a mask or a type: a wrong
role is an error with a line, and the parameters near that line are tried in other roles.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from joymigrate.profile.port.draw import Role
from joymigrate.profile.port.flow import assignments
from joymigrate.profile.port.lanes import names

NOTHING = "no arguments let it write anything"
ORDER = "blocks write to one place with these arguments, so their order counts"
SLOW = "it took too long with these arguments"
BEYOND = "an address beyond a buffer"


@dataclass(frozen=True, slots=True)
class CaseFault:
    """Why a case tells nothing: a message, and the parameters near the failing statement."""

    message: str
    near: tuple[str, ...] = ()
    line: int = 0  # how far the kernel came

    @property
    def progress(self) -> tuple[int, int]:
        """What is nearer to a result compares as greater."""
        return (2 if self.message == ORDER else 1 if self.message == NOTHING else 0), self.line


T = TypeVar("T")
Change = Callable[[Role], Role | None]


def search(
    roles: list[Role], run: Callable[[list[Role]], T | CaseFault], seed: int,
    goes_on: Callable[[], bool], allowed: tuple[Change, ...],
) -> tuple[T | CaseFault, list[Role]]:  # fmt: skip
    """What `run` says with the first roles that fit it; the first fault where none are found."""
    chance = random.Random(seed)
    seen = {tuple(roles)}
    fault: CaseFault | None = None  # of the roles that came furthest
    first: CaseFault | None = None
    kept = tried = roles
    while True:
        result = run(tried)
        if not isinstance(result, CaseFault):
            return result, tried
        first = first or result
        moved = fault is None or result.progress > fault.progress
        same = fault is not None and result.progress == fault.progress
        other = fault is not None and result.message != fault.message
        if fault is None or moved or (same and other) or chance.random() < 0.1:
            fault, kept = result, tried
        tried = change_role(kept, fault, chance, seen, allowed)
        if tried is kept or not goes_on():
            return first, roles


def near(tree: ast.Module, kernel: str, lines: list[int]) -> tuple[str, ...]:
    """Parameters of a kernel that the statements at some lines (the innermost first) depend on."""
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    found: list[str] = []
    for line in lines:
        around = [one for one in functions if one.lineno <= line <= (one.end_lineno or 0)]
        statements = [
            one for function in around for one in ast.walk(function)
            if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or 0)
        ]  # fmt: skip
        if not statements:
            continue
        inner = max(statements, key=lambda one: (one.lineno, -(one.end_lineno or 0)))
        made = {name: values for one in around for name, values in assignments(one).items()}
        heads = [getattr(inner, part) for part in ("test", "iter") if hasattr(inner, part)]
        left = [name for one in heads or [inner] for name in sorted(names(one))]
        for name in left:  # grows while it is walked: the nearest come first
            if name not in found:
                found.append(name)
            for value in made.get(name, ()):
                left += [one for one in sorted(names(value)) if one not in left]
    own = next((one for one in functions if one.name == kernel), None)
    parameters = {a.arg for a in own.args.args} if own is not None else set()
    return tuple(name for name in found if name in parameters)


def as_pointer(role: Role) -> Role | None:
    """A number becomes a pointer."""
    if role.constexpr or role.sure or role.kind == "pointer":
        return None
    return replace(role, kind="pointer", dtype="float32")


def as_number(role: Role) -> Role | None:
    """A pointer becomes a number: what is loaded from in one branch is added in another."""
    fits = role.kind == "pointer" and not role.constexpr
    return replace(role, kind="number", value=None) if fits else None


def as_whole(role: Role) -> Role | None:
    """Real numbers become whole ones."""
    if role.kind == "pointer" and role.dtype in ("float32", "bool"):
        return replace(role, dtype="int32")
    whole = "size" if role.constexpr else "number"
    return replace(role, kind=whole, value=None) if role.kind == "real" else None


def as_real(role: Role) -> Role | None:
    """Whole numbers become real ones."""
    if role.kind == "pointer" and role.dtype != "float32":
        return replace(role, dtype="float32")
    return replace(role, kind="real", value=None) if role.kind == "number" else None


def as_mask(role: Role) -> Role | None:
    """Values become masks."""
    fits = role.kind == "pointer" and role.dtype != "bool"
    return replace(role, dtype="bool") if fits else None


def as_flag(role: Role) -> Role | None:
    """A number becomes a flag; a flag a number."""
    if role.kind in ("number", "fixed", "none"):
        return replace(role, kind="flag", value=None)
    return replace(role, kind="number", value=1) if role.kind == "flag" else None


def as_switch(role: Role) -> Role | None:
    """A value known while compiling becomes a flag."""
    fits = role.constexpr and role.kind in ("number", "size", "fixed")
    return replace(role, kind="flag", value=None) if fits else None


def as_dtype(role: Role) -> Role | None:
    """A value known while compiling becomes a type."""
    fits = role.constexpr and role.kind in ("number", "size", "fixed")
    return replace(role, kind="dtype", value=None) if fits else None


def as_none(role: Role) -> Role | None:
    """Nothing is given."""
    return replace(role, kind="none") if role.kind == "pointer" and role.nullable else None


def sixteen(role: Role) -> Role | None:
    """A size or number that everything divides."""
    if role.kind in ("size", "number", "fixed") and role.value != 16:
        return replace(role, kind="size" if role.kind == "size" else "number", value=16)
    return None


def small(role: Role) -> Role | None:
    """A small number; index values that are 0."""
    if role.kind in ("number", "fixed") and role.value != 1:
        return replace(role, kind="number", value=1)
    if role.kind == "stride" and role.sides == 1:
        return replace(role, value=0, sides=2)
    if role.kind == "pointer" and role.dtype in ("int32", "int64", "rising"):
        return replace(role, dtype="zero")
    return None


def larger(role: Role) -> Role | None:
    """More to do."""
    if role.kind == "number" and role.value not in (32, 64):
        return replace(role, value=64)
    if role.kind == "pointer" and role.dtype in ("int32", "int64", "zero"):
        return replace(role, dtype="rising")
    return None


def apart(role: Role) -> Role | None:
    """A stride that keeps rows apart; index values that differ."""
    if role.kind == "number" and role.constexpr is False:
        return replace(role, kind="stride", value=1, sides=2)
    if role.kind == "pointer" and role.dtype in ("int32", "int64", "zero"):
        return replace(role, dtype="rising")
    return replace(role, kind="number", value=None) if role.kind == "stride" else None


EVERY: tuple[Change, ...] = (as_pointer, as_whole, as_real, as_mask, as_flag, as_dtype, as_none,
                             sixteen, small, larger, apart)  # fmt: skip
# Those that change a type and no value: each branch of before is compiled as well.
OF_TYPE: tuple[Change, ...] = (as_pointer, as_whole, as_real, as_mask, as_switch, as_dtype)
IN_BRANCHES: tuple[Change, ...] = (as_number, *OF_TYPE)  # where another branch fits as it is
# These are tried where a message asks for them alone: a size that is a flag makes tiles of no lane.
ASKED_FOR: tuple[Change, ...] = (as_number, as_switch)
RULES: tuple[tuple[tuple[str, ...], tuple[Change, ...]], ...] = (
    (("has no attribute 'scalar'", "has no attribute 'is_int'"), (as_dtype,)),
    (("Expected dtype ['fp",), (as_real,)),
    (("arange's arguments",), (as_whole,)),
    (("Unsupported ptr type", "element_ty", "has no attribute 'dtype'"), (as_pointer,)),
    (("Invoked with types",), (as_switch,)),
    (("operands of type pointer",), (as_number, as_none, as_whole, as_pointer)),
    (("pointer<",), (as_pointer, as_none, as_whole)),
    (("mask has unsupported dtype", "boolean scalar type"), (as_mask, as_whole)),
    (("Nonetype", "NoneType"), (as_pointer, as_flag, sixteen)),
    (("unexpected type fp", "float32", "fp32", "'float' object", "Unsupported data type",
      "must be an integer"), (as_whole, as_mask)),
    (("int32", "int64"), (as_real, as_whole, as_mask)),
    ((BEYOND,), (small, sixteen, as_whole)),
    ((SLOW,), (sixteen, small)),
    ((NOTHING,), (as_flag, larger, sixteen, as_whole)),
    ((ORDER,), (apart, small, larger)),
    (("Assertion", "divisible", "shape", "dimension", "broadcast", "reshape", "power of 2"),
     (sixteen, as_flag)),
)  # fmt: skip


def change_role(
    roles: list[Role], fault: CaseFault, chance: random.Random, seen: set[tuple[Role, ...]],
    allowed: tuple[Change, ...],
) -> list[Role]:  # fmt: skip
    """One parameter (of shapes that don't fit: all near ones) in another role, never tried yet."""
    options = list(candidates(roles, fault, allowed))
    chance.shuffle(options)
    options.sort(key=lambda one: one[0])
    for weight, made in options:
        if tuple(made) not in seen and chance.random() < (0.85 if weight < 40 else 0.5):
            seen.add(tuple(made))
            return made
    return roles


def candidates(
    roles: list[Role], fault: CaseFault, allowed: tuple[Change, ...]
) -> Iterator[tuple[int, list[Role]]]:
    """Role lists with one change each, with a weight: the near and the likely first."""
    found = next((changes for words, changes in RULES
                  if any(word in fault.message for word in words)), ())  # fmt: skip
    wanted = [one for one in found if one in allowed]
    if sixteen in wanted:
        near_ = [sixteen(one) or one if one.name in fault.near else one for one in roles]
        if near_ != roles:
            yield 1, near_
    for place, role in enumerate(roles):
        distance = fault.near.index(role.name) if role.name in fault.near else 20
        others = (one for one in allowed if one not in wanted and one not in ASKED_FOR)
        for rank, change in enumerate((*wanted, *others)):
            made = change(role)
            if made is None:
                continue
            likely = rank if rank < len(wanted) else 40
            yield distance + likely, [*roles[:place], made, *roles[place + 1 :]]

"""Who names a device under the vendor's run-time shim: torch, or the program itself.

The shim changes what torch does, not what the program wrote. A tensor's device is the chip's
(`x.device.type`), `torch.device("cuda")` and options keep the origin's word. What is compared with
the first moves, with the second stays; a value that may be either is asked for both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.device_places import annotation, compared_with, special_place
from joymigrate.rewrite.device_texts import literals
from joymigrate.rewrite.flow_sinks import BACKEND
from joymigrate.rewrite.scopes import FUNCTIONS

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

CHIP, PROGRAM, EITHER = "chip", "program", "either"
YES = "true under the vendor's shim: {reason}"
BY_NUMBER = "the vendor's shim takes a card's number here, and this is a device: write `.to()`"
# Names of the origin's module that programs for the host call as well.
ANYWHERE = ("is_available", "manual_seed", "manual_seed_all", "empty_cache", "synchronize")
CAPABILITY = "JM107"
MEETS = (
    "under the vendor's shim this program comes to `{place}`, which asks what the chip has no "
    "answer to"
)
DEPTH = 5  # assignments that a value is followed through
SELVES = ("self", "cls")
# Objects whose `device` is a setting, made by the program.
SETTINGS = re.compile(r"arg|opt|cfg|conf|param|flag|setting|hps", re.I)
# Attributes and methods that say that a variable is a tensor.
OF_TENSORS = frozenset(
    (
        *("shape", "size", "dtype", "ndim", "dim", "numel", "view", "reshape", "contiguous"),
        *("stride", "requires_grad", "unsqueeze", "squeeze", "is_contiguous", "element_size"),
        *("data_ptr", "is_cuda", "permute", "transpose", "detach"),
    )
)
TENSORS = ("weight", "bias", "data", "grad")  # attributes that are tensors by their names


def find_speaker(module: Module, value: ast.expr, kind: str, depth: int = 0) -> str:
    """Who names the device or backend that an expression gives: CHIP, PROGRAM or EITHER."""
    if kind == BACKEND:
        return speaker_of_backend(module, value, depth)
    return Speaker(module).of(value, typed=False, depth=depth)


def speaker_of_backend(module: Module, value: ast.expr, depth: int) -> str:
    """The same for a backend: what torch is asked for it answers in the chip's words."""
    if isinstance(value, ast.Call):
        if module.names.dotted(value.func) in module.sinks.backend_calls:
            return CHIP
        if isinstance(value.func, ast.Attribute) and value.func.attr in ("lower", "upper"):
            return speaker_of_backend(module, value.func.value, depth)
    if isinstance(value, ast.Name) and depth < DEPTH:
        given, others = find_given(module, value)
        if given and not others:
            return combine(speaker_of_backend(module, each, depth + 1) for each in given)
    return PROGRAM


class Speaker:
    """Follows values of one module back to who named them."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def of(self, value: ast.expr, *, typed: bool, depth: int = 0) -> str:
        """The speaker of a device or its name.

        `typed`: it is a device for sure, as its `.type` or its text is asked; else it may be a
        plain text, and a text that is not followed is the program's.
        """
        unknown = EITHER if typed else PROGRAM
        if depth > DEPTH or isinstance(value, ast.Constant):
            return unknown if depth > DEPTH else PROGRAM
        if isinstance(value, ast.Call):
            return self._of_call(value, typed, depth)
        if isinstance(value, ast.Subscript):
            cut = isinstance(value.slice, ast.Slice) or isinstance(value.value, ast.Call)
            return self.of(value.value, typed=typed, depth=depth) if cut else unknown
        if isinstance(value, ast.IfExp):
            return combine(
                self.of(each, typed=typed, depth=depth + 1)
                for each in (value.body, value.orelse)
                if not is_host(each)
            )
        if isinstance(value, ast.BoolOp):
            return combine(self.of(each, typed=typed, depth=depth + 1) for each in value.values)
        if isinstance(value, ast.NamedExpr):
            return self.of(value.value, typed=typed, depth=depth)
        if isinstance(value, ast.FormattedValue):
            return self.of(value.value, typed=True, depth=depth)
        if isinstance(value, ast.JoinedStr):
            first = value.values[0] if value.values else None
            inner = first.value if isinstance(first, ast.FormattedValue) else None
            return self.of(inner, typed=True, depth=depth) if inner is not None else PROGRAM
        if isinstance(value, ast.Attribute):
            if value.attr == "type":
                return self.of(value.value, typed=True, depth=depth)
            if not is_own(value.value) and value.attr in self.module.sinks.device_attributes:
                return self._of_owner(value.value, typed)
        if isinstance(value, (ast.Name, ast.Attribute)):
            return self._of_variable(value, typed, depth)
        return unknown

    def _of_call(self, call: ast.Call, typed: bool, depth: int) -> str:
        func = call.func
        if getattr(func, "id", "") == "str" and len(call.args) == 1:
            return self.of(call.args[0], typed=True, depth=depth)
        if self.module.flow.dotted(func) == "torch.device":
            return self.of(call.args[0], typed=False, depth=depth + 1) if call.args else PROGRAM
        unchanged = (*self.module.sinks.through_methods, "split", "replace", "lower", "strip")
        if isinstance(func, ast.Attribute) and func.attr in unchanged:
            return self.of(func.value, typed=typed, depth=depth)
        return EITHER if typed else PROGRAM

    def _of_owner(self, owner: ast.expr, typed: bool) -> str:
        """The speaker of `x.device`: a tensor's is the chip's, a setting's the program's.

        Compared as it is, without `.type`, it can only be a text: the program's.
        """
        if not typed or SETTINGS.search(getattr(owner, "attr", getattr(owner, "id", ""))):
            return PROGRAM
        return CHIP if is_tensor(self.module, owner) else EITHER

    def _of_variable(self, value: ast.Name | ast.Attribute, typed: bool, depth: int) -> str:
        unknown = EITHER if typed else PROGRAM
        given, others = find_given(self.module, value)
        found = [self.of(each, typed=typed, depth=depth + 1) for each in given if not is_host(each)]
        if isinstance(value, ast.Name) and others:
            handed = list(find_handed(self.module, value))
            found += [self.of(each, typed=typed, depth=depth + 1) for each in handed]
            if not handed or typed:
                found.append(unknown)
        return combine(found) if found else unknown


def combine(speakers: Iterable[str]) -> str:
    """One speaker for a value that is given in several places."""
    found = set(speakers)
    return found.pop() if len(found) == 1 else EITHER if found else PROGRAM


def is_own(node: ast.AST) -> bool:
    """Whether an expression is the object or class itself: `self`."""
    return getattr(node, "id", "") in SELVES


def is_host(value: ast.expr) -> bool:
    """Whether a value is the host's device or none: `"cpu"`, `torch.device("cpu")`, `None`."""
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        named = getattr(value.func, "attr", getattr(value.func, "id", "")) == "device"
        return named and is_host(value.args[0])
    return isinstance(value, ast.Constant) and value.value in ("cpu", None)


def is_tensor(module: Module, owner: ast.expr) -> bool:
    """Whether an expression is a tensor by its form, its annotation, or how it is used."""
    if isinstance(owner, ast.Call):
        if getattr(owner.func, "id", "") == "next":
            return True  # `next(model.parameters())`
        dotted = module.names.dotted(owner.func) or ""
        return dotted.startswith("torch.") and module.project.locate(dotted) is None
    if isinstance(owner, ast.Attribute):
        return owner.attr in TENSORS
    if isinstance(owner, ast.Subscript):
        return is_tensor(module, owner.value)
    if not isinstance(owner, ast.Name):
        return False
    found = module.names.lookup(owner.id, owner)
    for binding in found[1] if found is not None else ():
        annotated = getattr(binding.node, "annotation", None)
        if annotated is not None and "Tensor" in ast.unparse(annotated):
            return True
    home = module.names.enclosing(owner, FUNCTIONS)
    return any(
        isinstance(each, ast.Attribute)
        and each.attr in OF_TENSORS
        and getattr(each.value, "id", "") == owner.id
        for each in (ast.walk(home) if home is not None else ())
    )


def find_given(module: Module, value: ast.Name | ast.Attribute) -> tuple[list[ast.expr], bool]:
    """What a variable or an own attribute is given in the file, and whether it has other sources.

    Properties give what they return.
    """
    if isinstance(value, ast.Name):
        found = module.names.lookup(value.id, value)
        bindings = found[1] if found is not None else []
        given = [each.value for each in bindings if each.kind == "assign" and each.value]
        return given, len(given) < len(bindings) or not bindings
    if not is_own(value.value):
        return [], True
    home = module.names.enclosing(value, (ast.ClassDef,))
    given = []
    for node in ast.walk(home) if home is not None else ():
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                named = getattr(target, "attr", getattr(target, "id", "")) == value.attr
                if named and (isinstance(target, ast.Name) or is_own(target.value)):  # type: ignore[attr-defined]
                    given.append(node.value)
        elif isinstance(node, FUNCTIONS[:2]) and node.name == value.attr:
            returned = (e.value for e in ast.walk(node) if isinstance(e, ast.Return) and e.value)
            given += returned
    return given, not given


def find_handed(module: Module, name: ast.Name) -> Iterator[ast.expr]:
    """What calls in the file hand to a parameter of a function of the file."""
    function = module.names.enclosing(name, FUNCTIONS[:2])
    if function is None:
        return
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if name.id not in (*names, *(each.arg for each in function.args.kwonlyargs)):
        return
    bound = names[:1] == ["self"] or names[:1] == ["cls"]
    at = names.index(name.id) - bound if name.id in names else None
    for call in module.names.nodes[ast.Call]:
        if getattr(call.func, "attr", getattr(call.func, "id", "")) != function.name:
            continue
        yield from (each.value for each in call.keywords if each.arg == name.id)
        if at is not None and at < len(call.args):
            yield call.args[at]


# -- what the shim does with other places --------------------------------------------------------


def find_yes(module: Module, question: ast.expr, reason: str) -> Finding:
    """The report of a question that the shim answers with yes before code of the origin's."""
    found = module.find("JM111", question, tier=Tier.REPORT, reason=Text(YES, reason=reason))
    module.unreached.add((found.line, found.column))
    return found


def takes_device(module: Module, call: ast.Call) -> bool:
    """Whether `x.cuda(device)` is given a device or its name where the shim takes a number."""
    return any(is_made_device(module, each) for each in given_by_number(module, call))


def given_by_number(module: Module, call: ast.Call) -> list[ast.expr]:
    """What a method gets as its device that takes a card's number on the chip (`by_number`)."""
    if getattr(call.func, "attr", "") not in (module.context.chip.shim.get("by_number") or ()):
        return []
    return [*call.args[:1], *(each.value for each in call.keywords if each.arg == "device")]


def is_made_device(module: Module, value: ast.expr, depth: int = 0) -> bool:
    """Whether a value is surely a device that the program made, or the name of one."""
    if isinstance(value, (ast.Constant, ast.JoinedStr)):
        text = value if isinstance(value, ast.Constant) else value.values[0]
        said = getattr(text, "value", None)
        return isinstance(said, str) and module.vocabulary.device in said
    if isinstance(value, ast.Call):
        return module.flow.dotted(value.func) == "torch.device"
    if isinstance(value, ast.IfExp):
        return any(is_made_device(module, each, depth) for each in (value.body, value.orelse))
    if not isinstance(value, (ast.Name, ast.Attribute)) or depth > DEPTH:
        return False
    given, others = find_given(module, value)
    return bool(given) and not others and all(is_made_device(module, e, depth + 1) for e in given)


# -- whether there is anything to serve ----------------------------------------------------------


def device_lines(module: Module) -> tuple[int, ...]:
    """Lines with code for the origin's device, which the shim may well cover."""
    word = f"{module.vocabulary.module}."
    method = module.context.origin.tensor["cuda"]
    named = module.names.imported_chains()
    found = {
        chain.lineno for chain, dotted in named
        if f"{dotted}.".startswith(word) and dotted.removeprefix(word) not in ANYWHERE
    }  # fmt: skip
    calls = module.names.nodes[ast.Call]
    found |= {call.lineno for call in calls if getattr(call.func, "attr", "") == method}
    for text in literals(module):
        parent = getattr(text.whole, "parent", None)
        placed = not annotation(text.node) and compared_with(text.whole) is None
        if placed and special_place(module, text, parent) != "silent":
            found.add(text.node.lineno)
    return tuple(sorted(found))


def find_failing(module: Module, findings: list[Finding]) -> str | None:
    """What in a file asks for the card's capability, itself or by another package; None if none."""
    for one in findings:
        if one.rule == CAPABILITY and not one.edits:
            return one.before
    fails = module.context.chip.shim.get("fails") or ()
    for _, dotted in module.names.imported_chains():
        if any(f"{dotted}.".startswith(f"{name}.") for name in fails):
            return dotted
    return None


def asks_tensors(module: Module) -> bool:
    """Whether a file asks tensors whether they are on the origin's device."""
    flag = module.context.origin.tensor["is_cuda"]
    return any(node.attr == flag for node in module.names.nodes[ast.Attribute])


def loads_anywhere(module: Module) -> bool:
    """Whether a file loads what was saved, to the device that it was saved from."""
    return any(
        module.names.dotted(call.func) == "torch.load"
        and len(call.args) == 1
        and not any(each.arg in ("map_location", None) for each in call.keywords)
        for call in module.names.nodes[ast.Call]
    )


def asks_early(module: Module) -> bool:
    """Whether a file asks for the origin's platform while it is imported."""
    word = f"{module.vocabulary.module}."
    return any(
        dotted.startswith(word)
        and isinstance(getattr(chain, "parent", None), ast.Call)
        and module.names.enclosing(chain, (*FUNCTIONS, ast.Lambda)) is None
        for chain, dotted in module.names.imported_chains()
    )

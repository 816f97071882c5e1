"""Places that work otherwise under the vendor's run-time shim, which patches torch as it runs.

A tensor's device compared with one that the program made: they are never equal. A device in a
variable that goes where the shim does not reach. A text that is no device and that the shim
changes all the same, as it changes every text that a function is given by its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.under_shim import CHIP, PROGRAM, Speaker, find_given, is_made_device

NEVER_EQUAL = (
    "under the vendor's shim a tensor's device has the chip's name, and `{made}` the program's: "
    "they are never equal"
)
UNLISTED = (
    "under the vendor's shim a tensor's device has the chip's name, which is not in this list"
)
UNREACHED = "the vendor's shim does not reach {call}(): give it the chip's device"
REWORDED = (
    "under the vendor's shim {call}() changes the device's name in this text, which is none here: "
    "give it as `{keyword}=`"
)


def find(module: Module) -> Iterator[Finding]:
    """Findings of one file; none in the other styles."""
    if module.context.style is not Style.SHIM or module.vocabulary.same_device:
        return
    for compare in module.names.nodes[ast.Compare]:
        yield from find_unequal(module, compare)
        yield from find_unlisted(module, compare)
    shim = module.context.chip.shim
    unreached, reworded = shim.get("unreached") or (), shim.get("reworded") or {}
    for call in module.names.nodes[ast.Call]:
        callee = module.names.dotted(call.func)
        if callee in unreached:
            yield from find_unreached(module, call)
        elif callee in reworded:
            yield from find_reworded(module, call, reworded[callee])


def find_unequal(module: Module, compare: ast.Compare) -> Iterator[Finding]:
    """`x.device == self.device`, where the second was made by the program."""
    if not isinstance(compare.ops[0], (ast.Eq, ast.NotEq)) or len(compare.comparators) > 1:
        return
    sides = (compare.left, compare.comparators[0])
    asked = any(
        isinstance(each, ast.Attribute) and each.attr in ("type", *module.sinks.device_attributes)
        for each in sides
    )
    if not asked or any(isinstance(each, ast.Constant) for each in sides):
        return
    speaker = Speaker(module)
    said = {speaker.of(each, typed=True): each for each in sides}
    if said.keys() == {CHIP, PROGRAM} and not any(is_literal(module, each) for each in sides):
        made = " ".join(module.text(said[PROGRAM]).split())
        reason = Text(NEVER_EQUAL, made=made if len(made) < 60 else made[:59] + "…")
        yield module.find("JM111", compare, tier=Tier.REPORT, reason=reason)


def find_unlisted(module: Module, compare: ast.Compare) -> Iterator[Finding]:
    """`x.device.type in KNOWN`, where the list has the program's words."""
    if not isinstance(compare.ops[0], (ast.In, ast.NotIn)):
        return
    left, listed = compare.left, compare.comparators[0]
    if not isinstance(left, (ast.Attribute, ast.Call)) or isinstance(listed, ast.Constant):
        return
    if not isinstance(listed, (ast.Name, ast.Attribute)):
        return
    given = find_given(module, listed)[0]
    words = (e for g in given for e in ast.walk(g) if isinstance(e, ast.Constant))
    listed_there = any(word.value == module.vocabulary.device for word in words)
    if listed_there and Speaker(module).of(left, typed=False) != PROGRAM:
        yield module.find("JM111", compare, tier=Tier.REPORT, reason=UNLISTED)


def is_literal(module: Module, value: ast.expr) -> bool:
    """Whether a device is written out: `torch.device("cuda:0").type`."""
    while isinstance(value, ast.Attribute):
        value = value.value
    made = isinstance(value, ast.Call) and module.flow.dotted(value.func) == "torch.device"
    return made and all(isinstance(each, ast.Constant) for each in value.args)  # type: ignore[attr-defined]


def find_unreached(module: Module, call: ast.Call) -> Iterator[Finding]:
    """A device in a variable; one that is written out is moved with the other texts."""
    named = (each.value for each in call.keywords if each.arg in ("device", "map_location"))
    for value in (*call.args[:2], *named):
        if not isinstance(value, (ast.Constant, ast.JoinedStr)) and is_made_device(module, value):
            reason = Text(UNREACHED, call=module.names.dotted(call.func))
            yield module.find("JM120", value, tier=Tier.REPORT, reason=reason)


def find_reworded(module: Module, call: ast.Call, keywords: list[str | None]) -> Iterator[Finding]:
    """A text with the device's name in it; `keywords` are those of the parameters, by place."""
    for value, keyword in zip(call.args, keywords, strict=False):
        if keyword is not None and holds_word(module, value):
            reason = Text(REWORDED, call=module.names.dotted(call.func), keyword=keyword)
            yield module.find("JM121", value, tier=Tier.REPORT, reason=reason)


def holds_word(module: Module, value: ast.expr, depth: int = 0) -> bool:
    """Whether a text has the device's name in it, as far as the file tells."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str) and module.vocabulary.device in value.value
    if isinstance(value, (ast.JoinedStr, ast.FormattedValue, ast.BinOp)):
        return any(holds_word(module, each, depth) for each in ast.iter_child_nodes(value)
                   if isinstance(each, ast.expr))  # fmt: skip
    if isinstance(value, ast.Call):
        dotted = module.names.dotted(value.func) or ""
        return dotted in ("os.path.join", "str") and any(
            holds_word(module, each, depth) for each in value.args
        )
    if isinstance(value, (ast.Name, ast.Attribute)) and depth < 2:
        return any(holds_word(module, each, depth + 1) for each in find_given(module, value)[0])
    return False

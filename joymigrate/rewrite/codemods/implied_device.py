"""Calls of torch that mean the origin's device as long as they are given none.

`torch.amp.GradScaler()` is a scaler of the origin's cards: on any other it is off, in silence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.portable.names import write_typed
from joymigrate.rewrite.portable.table import PortableForm

MESSAGE = "given no device, this means {module}, and is off on other devices"


def find(module: Module) -> Iterator[Finding]:
    """Findings for such calls; the device goes in as the first argument."""
    yield from find_keywords(module)
    calls, message = module.sinks.implied, Text(MESSAGE, module=module.vocabulary.module)
    if module.vocabulary.same_device or module.context.style is Style.SHIM:
        return
    if not any(name.rpartition(".")[2] in module.source.text for name in calls):
        return
    for call in module.names.nodes[ast.Call]:
        starred = any(isinstance(each, ast.Starred) for each in call.args)
        named = {keyword.arg for keyword in call.keywords}
        if module.names.dotted(call.func) not in calls or call.args or starred:
            continue
        if named & {"device", None}:
            continue
        reason = module.guarded(call)
        if reason is not None:
            yield module.find("JM140", call, tier=Tier.REPORT, reason=reason, message=message)
            continue
        yield module.find(
            "JM140",
            call,
            edits=write_device(module, call),
            message=message,
            needs=need(module, call),
        )


def find_keywords(module: Module) -> Iterator[Finding]:
    """`StatefulDataLoader(rows, pin_memory=True)`: it pins where the origin's cards are."""
    for call in module.names.nodes[ast.Call]:
        asked, other = module.sinks.implied_by.get(module.names.dotted(call.func) or "", ("", ""))
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        value = given.get(asked)
        if not asked or other in given or getattr(value, "value", value) in (False, None):
            continue
        assert value is not None
        message = Text(MESSAGE, module=module.vocabulary.module)
        end = module.span(value)[1]
        reason = module.guarded(call) or Text("give it {keyword}=", keyword=other)
        if module.guarded(call) is None and module.context.style is Style.DIRECT:
            edits = [(end, end, f', {other}="{module.vocabulary.to_device}"')]
            yield module.find(
                "JM120", value, edits=edits, message=message, needs=need(module, value)
            )
            continue
        yield module.find("JM120", value, tier=Tier.REPORT, message=message, reason=reason)


def write_device(module: Module, call: ast.Call) -> list[tuple[int, int, str]]:
    """The device as the style writes it."""
    if module.context.style is Style.ACCELERATOR:
        return write_typed(module, call, PortableForm("torch.amp.GradScaler", ""))
    device = f'"{module.vocabulary.to_device}"'
    if module.context.style is Style.AGNOSTIC:
        device = f"{module.helper}.accelerator()"
    at = module.source.text.index("(", module.span(call.func)[1]) + 1
    return [(at, at, device + (", " if call.keywords else ""))]

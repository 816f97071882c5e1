"""Device and backend strings: `"cuda:0"`, `f"cuda:{i}"`, `"nccl"`, `"cpu:gloo,cuda:nccl"`, ….

A string is rewritten when it is seen to reach a device (see `flow`), in the file or, through
another file of the project, after the question was answered there. Otherwise it is reported with
the reason, and where it plainly is something else it is left alone in silence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from joymigrate import language
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import boosted_trees, foreign, guards, own_kernels
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.codemods.error_messages import error_text
from joymigrate.rewrite.device_places import (
    ANNOTATED,
    TABLE_KEY,
    annotation,
    compared_with,
    condition_of,
    find_asserted,
    is_member,
    mixed_precision,
    special_place,
    where_available,
)
from joymigrate.rewrite.device_tests import is_test
from joymigrate.rewrite.device_texts import (
    DeviceText,
    device_literal,
    inside_fstring,
    last_name,
    literals,
    option_before,
)
from joymigrate.rewrite.expressions import calls_around
from joymigrate.rewrite.flow_graph import SINK, names_a_kind
from joymigrate.rewrite.flow_sinks import BACKEND, DEVICE
from joymigrate.rewrite.flow_tables import COMPARED
from joymigrate.rewrite.module import Module, Pending
from joymigrate.rewrite.option_calls import environment, find_offered, offers
from joymigrate.rewrite.portable.literals import literal
from joymigrate.rewrite.portable.table import unknown
from joymigrate.rewrite.under_shim import CHIP, EITHER, PROGRAM, Speaker, find_speaker

MATCHING = re.compile(r"raises|warns|match|search|regex|\blog", re.I)
MAY_BE_EITHER = "under the vendor's shim this may be the program's word or the chip's: ask for both"
MAPPED = (
    "the vendor's shim changes the words of this map as torch reads it: places of files that were "
    "saved on the origin are not found in it"
)
UNPROVEN = "not seen to reach a device: {why}"
NO_CALL = "`{word}` is a collective backend; no torch.distributed call receives it here"


def find(module: Module) -> Iterator[Finding | Pending]:
    """Findings for every string literal that may name the origin's device or backend."""
    if module.vocabulary.same_device:
        return
    found = [(text, item) for text in literals(module) for item in judge(module, text)]
    settled = [(text, with_values(module, item)) for text, item in found]
    moved = {
        (home, text.value)
        for text, item in settled
        if isinstance(item, Finding) and item.edits
        if (home := test_around(module, text.node)) is not None
    }
    for text, item in settled:
        no = item.no if isinstance(item, Pending) else item
        _, _, yes = module.doubts.get((no.line, no.column), (None, None, None))
        alike = (
            yes is not None
            and text.shape == "index"  # the bare word is a folder's or a language's as well
            and (test_around(module, text.node), text.value) in moved
        )
        if text.value.isupper() and not alike and not no.edits:
            module.handled.add(text.node)  # `"NCCL"` is a backend where one is taken, else a title
            if isinstance(item, Finding):
                continue
        yield yes if alike and yes is not None and not no.edits else item


def test_around(module: Module, node: ast.AST) -> ast.AST | None:
    """The test that a node stands in: one name in it means one device, wherever it is written."""
    if module.context.style is Style.SHIM:
        return None
    if any(MATCHING.search(module.text(call.func)) for call in calls_around(node)):
        return None  # a part of an error's text
    found = module.names.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return found if found is not None and found.name.startswith("test_") else None


def with_values(module: Module, item: Finding | Pending) -> Finding | Pending:
    """A doubt as a fix, where its value is one that elsewhere in the file is seen to be a device.

    A value and every comparison with it are one group: both move.
    """
    no = item.no if isinstance(item, Pending) else item
    keys, kind, yes = module.doubts.get((no.line, no.column), (frozenset(), "", None))
    if yes is None or no.edits or no.rule not in ("JM121", "JM111", "JM123", yes.rule):
        return item
    return yes if keys & find_connected(module, kind) else item


def find_connected(module: Module, kind: str) -> set[str]:
    """Keys of the file that share values with what is seen to be of a kind."""
    known = module.closure.get(kind)
    if known is None:
        known = module.flow.connected(module.proven.get(kind, ()))
        module.closure[kind] = known
    return known


# -- where it goes -----------------------------------------------------------------------------


def judge(module: Module, text: DeviceText) -> Iterator[Finding | Pending]:
    """Rewrite, report, leave to another file, or pass over one literal."""
    node, parent = text.node, getattr(text.whole, "parent", None)
    if guards.is_listed(module, text.whole) or node in module.handled:
        return
    guard = module.guarded(node)
    if guard is not None:
        yield report(module, text, guard)
        return
    if told_in_text(module, text.whole, text.value):
        reason = "the name comes from a text in this function, which stays"
        yield report(module, text, reason, "JM111")
        return
    boosted = boosted_trees.library(module, text.whole) if text.kind == DEVICE else None
    if boosted is not None:
        reason = language.Text(
            "a device of {library}, which is no device of torch", library=boosted
        )
        yield report(module, text, reason, "JM111")
        return
    held = find_offered(text.whole)
    if held is not None and offers(held, module.vocabulary.string(text.value)):
        return
    if text.shape == "pieces":
        if special_place(module, text, parent) != "silent":
            yield report(module, text, "written in pieces")
        return
    if text.shape == "tensor":
        yield from typed_tensor(module, text)
        return
    compared = compared_with(text.whole)
    if compared is not None:
        yield from comparison(module, text, compared)
        return
    if isinstance(parent, ast.Dict) and text.whole in parent.keys and device_map(module, parent):
        if module.context.style is Style.SHIM:
            yield report(module, text, MAPPED, "JM123")
            return
        to_host = parent.values[parent.keys.index(text.whole)]
        if is_host(module, to_host) and text.shape in ("exact", "index"):
            yield add_entry(module, text, to_host)
            return
        yield fix(module, text, text.rule)
        return
    if attribute_of_torch(module, text, parent):
        yield fix(module, text, "JM101", compare=True)
        return
    special = special_place(module, text, parent)
    if special == TABLE_KEY:
        yield from table_key(module, text)
        return
    if special == "silent":
        return
    if special == ANNOTATED and module.context.style is Style.SHIM:
        return  # callers keep the word
    writable = module.context.style is Style.DIRECT or held is not None
    if special == ANNOTATED and writable and fitting(module, text):
        yield fix(module, text, text.rule)
        return
    if special is not None:
        rule = text.rule if special == ANNOTATED else "JM123"
        yield report(module, text, special, "JM900" if "attribute" in special else rule)
        return
    if module.context.style is Style.SHIM and text.shape != "composite":
        yield from keep_word(module, text, parent)
        return
    if text.shape == "option" or module.sinks.names.get(option_before(node) or "") == text.kind:
        yield rewrite_sent(module, text, fix(module, text, text.rule))
        return
    if module.by_kind and for_accelerator(module, text):
        yield report(module, text, own_kernels.KIND, "JM121")
        return
    if where_available(module, text.whole):
        yield rewrite_sent(
            module, text, fix(module, text, "JM121" if text.rule == "JM120" else text.rule)
        )
        return
    if arrives(module, text):
        yield fix(module, text, text.rule, compare=beside_host(module, text.whole))
        return
    targets = module.flow.literals.get(node, set())
    kinds, outside = module.flow.reach(targets)
    if text.kind in kinds:
        direct = any(target == SINK + text.kind for target in targets)
        rule = "JM121" if text.rule == "JM120" and not direct else text.rule
        listed = (
            COMPARED in kinds or beside_host(module, text.whole) or made_to_compare(module, text)
        ) or is_denied(module, targets)
        yield rewrite_sent(module, text, fix(module, text, rule, compare=listed))
        return
    unproven = language.Text(UNPROVEN, why=why(module, text, targets))
    if text.kind == BACKEND:
        unproven = language.Text(NO_CALL, word=text.value)
    rule = text.rule if text.kind == BACKEND else "JM121"
    doubt = report(module, text, unproven, rule)
    fixed = fix(module, text, rule, compare=COMPARED in kinds)
    yes = rewrite_sent(module, text, fixed, proven=False)
    module.doubts[doubt.line, doubt.column] = (frozenset(targets), text.kind, yes)
    asked = condition_of(module, text.whole) if text.kind == DEVICE else None
    if outside or asked:
        yield Pending(yes, doubt, text.kind, asked)
        return
    yield doubt


def keep_word(module: Module, text: DeviceText, parent: ast.AST | None) -> Iterator[Finding]:
    """A literal under the vendor's shim, which reads it where it arrives: it stays, but where
    the shim does not reach, and in a device that is made to be compared with a tensor's."""
    call = getattr(parent, "parent", None) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return
    callee = module.names.dotted(call.func)
    if callee in (module.context.chip.shim.get("unreached") or ()):
        yield fix(module, text, text.rule)
        return
    made: ast.expr = call
    typed = callee == "torch.device"
    while isinstance(getattr(made, "parent", None), ast.Attribute):
        made = made.parent  # type: ignore[attr-defined]
        typed = typed and made.attr == "type"  # type: ignore[attr-defined]
    other = compared_with(made) if typed else None
    if other is None or not isinstance(getattr(made, "parent", None), (ast.Compare, ast.Call)):
        return
    speaker = Speaker(module).of(other, typed=True)
    if speaker == CHIP:
        yield fix(module, text, text.rule)
    elif speaker == EITHER:
        yield report(module, text, MAY_BE_EITHER, "JM111")


def for_accelerator(module: Module, text: DeviceText) -> bool:
    """Whether a literal names an accelerator of Lightning's: `Trainer(accelerator="cuda")`."""
    at = getattr(text.whole, "parent", None)
    while isinstance(at, (ast.IfExp, ast.BoolOp)):
        at = getattr(at, "parent", None)
    if isinstance(at, ast.keyword):
        return at.arg == "accelerator"
    targets = module.flow.literals.get(text.node, set())
    return bool(targets) and all(names_a_kind(target) for target in targets)


def beside_host(module: Module, node: ast.expr) -> bool:
    """Whether a literal is one of several devices, the host among them: `["cpu", "cuda"]`,
    `[torch.device("cpu"), torch.device("cuda")]`.

    A program that goes through them skips the device where there is none.
    """
    outer = getattr(node, "parent", None)
    made = isinstance(outer, ast.Call) and module.names.dotted(outer.func) == "torch.device"
    if made or getattr(getattr(outer, "func", None), "attr", "") == "param":
        outer = getattr(outer, "parent", None)
    if not isinstance(outer, (ast.List, ast.Tuple, ast.Set)):
        return False
    parts = [part for each in outer.elts for part in (each, *positional(each)[:1])]
    return any(isinstance(part, ast.Constant) and part.value == "cpu" for part in parts)


def is_denied(module: Module, targets: set[str]) -> bool:
    """Whether a value is asked not to be the device: `def load(device="cuda"): if device != …`.

    On a machine without one the default then stays what the question is about.
    """
    return any(
        isinstance(compare.ops[0], ast.NotEq)
        and module.vocabulary.exact_device.match(str(getattr(compare.comparators[0], "value", "")))
        and not targets.isdisjoint(e for e in module.flow.leaves(compare.left) if type(e) is str)
        for compare in module.names.nodes[ast.Compare]
    )


def made_to_compare(module: Module, text: DeviceText) -> bool:
    """Whether a device is made for a comparison alone: `x.device == torch.device("cuda")`.

    An assertion's is held to what was written for it.
    """
    made = getattr(text.whole, "parent", None)
    if not isinstance(made, ast.Call) or module.names.dotted(made.func) != "torch.device":
        return False
    whole: ast.AST = made
    while isinstance(getattr(whole, "parent", None), ast.Attribute):
        whole = whole.parent  # type: ignore[attr-defined]
    compared = isinstance(getattr(whole, "parent", None), ast.Compare)
    return compared and not is_claimed(whole)  # type: ignore[arg-type]


def positional(node: ast.expr) -> list[ast.expr]:
    """What is given by position to a call; nothing for other expressions."""
    return node.args if isinstance(node, ast.Call) else []


def attribute_of_torch(module: Module, text: DeviceText, parent: ast.AST | None) -> bool:
    """Whether a literal is the name of the device's module: `getattr(torch, "cuda")`."""
    if not isinstance(parent, ast.Call) or text.shape != "exact" or text.whole not in parent.args:
        return False
    asked = getattr(parent.func, "id", "") in ("getattr", "hasattr")
    named = asked and parent.args.index(text.whole) == 1
    return named and module.names.dotted(parent.args[0]) == "torch"


def table_key(module: Module, text: DeviceText) -> Iterator[Finding | Pending]:
    """A key of a table: it moves where the table is looked up by a device, here or elsewhere."""
    flow = module.flow
    targets = flow.literals.get(text.node, set())
    kinds, outside = flow.reach(targets)
    doubt = report(module, text, TABLE_KEY, "JM123")
    if text.shape not in ("exact", "index", "fstring", "backend"):
        yield doubt
        return
    if module.context.style is Style.SHIM:
        yield doubt
        return
    if text.kind in kinds:
        yield fix(module, text, "JM111" if text.kind == DEVICE else text.rule, compare=True)
        return
    yes = fix(module, text, "JM111" if text.kind == DEVICE else text.rule, compare=True)
    module.doubts[doubt.line, doubt.column] = (frozenset(targets), text.kind, yes)
    yield Pending(yes, doubt, text.kind) if outside else doubt


def arrives(module: Module, text: DeviceText) -> bool:
    """Whether a literal is itself the device of a call that is not the project's.

    `torch.zeros(2, device="cuda")`, `x.to("cuda")`: most are, and need no flow of values.
    """
    node, parent = text.whole, getattr(text.whole, "parent", None)
    call = getattr(parent, "parent", None) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return False
    callee = module.names.dotted(call.func)
    if isinstance(parent, ast.keyword):
        known = callee is not None and callee.startswith("torch.")
        foreign = known and module.project.locate(callee or "") is None
        return foreign and module.sinks.keyword(parent.arg or "") == text.kind
    if callee is not None or not isinstance(call.func, ast.Attribute) or node not in call.args:
        return False
    if isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls"):
        return False
    at = call.args.index(node)
    starred = any(isinstance(each, ast.Starred) for each in call.args[:at])
    return not starred and module.sinks.methods.get(call.func.attr, {}).get(at) == text.kind


def rewrite_sent(
    module: Module, text: DeviceText, fixed: Finding, *, proven: bool = True
) -> Finding:
    """The rewritten literal, with a note of the keys that take its value to other files."""
    targets = module.flow.literals.get(text.node, set())
    if proven:
        module.proven.setdefault(text.kind, set()).update(targets)
    _, outside = module.flow.reach(targets)
    if outside:
        module.sent[fixed.line, fixed.column] = (text.kind, frozenset(outside))
    return fixed


def why(module: Module, text: DeviceText, targets: set[str]) -> str:
    """One phrase on where an unproven literal goes."""
    if targets:
        names = sorted(re.split(r"[#.:]", key)[-1].rstrip("()") for key in targets)
        return language.Text("it is kept in {names}", names=", ".join(dict.fromkeys(names)))
    parent = getattr(text.whole, "parent", None)
    if isinstance(parent, ast.Call):
        return language.Text("it is passed to {call}()", call=short(module, parent.func))
    if isinstance(parent, ast.keyword):
        return language.Text("it is passed as {arg}=", arg=parent.arg)
    return language.Text("it stands in a {kind}", kind=type(parent).__name__.lower())


def short(module: Module, node: ast.expr) -> str:
    """A callee's text, shortened."""
    found = " ".join(module.text(node).split())
    return found if len(found) <= 40 else "…" + found[-39:]


def fitting(module: Module, text: DeviceText) -> bool:
    """Whether the parameter or attribute of an annotation is of this kind by its name."""
    owner = module.names.enclosing(text.node, (ast.arg, ast.AnnAssign))
    name = getattr(owner, "arg", None) or last_name(getattr(owner, "target", text.node))
    return module.sinks.names.get(name) == text.kind


def device_map(module: Module, node: ast.Dict) -> bool:
    """Whether a dictionary leads from devices to devices (`map_location={"cuda:0": "cuda:1"}`)."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.keyword) and parent.arg == "map_location":
        return True
    if not all(key is not None and device_literal(module, key) for key in node.keys):
        return False
    targets: set[str] = set()
    for value in node.values:
        for leaf in module.flow.leaves(value):
            if not isinstance(leaf, str) and device_literal(module, leaf):
                targets |= module.flow.literals.get(leaf, set())
    kinds, _ = module.flow.reach(targets)
    return DEVICE in kinds


# -- comparisons -------------------------------------------------------------------------------


def comparison(module: Module, text: DeviceText, other: ast.expr) -> Iterator[Finding | Pending]:
    """A literal that a value is compared with: rewritten when that value is a device."""
    flow = module.flow
    speaker = CHIP
    by_shim = module.context.style is Style.SHIM
    if by_shim:
        speaker = find_speaker(module, other, text.kind)
        if speaker == PROGRAM or pretends(module):
            return  # the program's own strings keep the origin's words, and what a test plays
    kernel = own_kernels.decides(module, text.node, tensor=True) if text.kind == DEVICE else None
    refused = kernel or foreign.refuse_portable(module, other)
    if refused is not None:
        yield report(module, text, refused, "JM111")
        return
    # A test may put a device of its own in the chip's place.
    if speaker == EITHER or (by_shim and is_claimed(text.whole) and is_test(module.source.path)):
        yield ask_both(module, text)
        return
    keys = {leaf for leaf in flow.leaves(other) if isinstance(leaf, str)}
    if by_shim or evident(module, other, text.kind):
        yield matching(module, text, other)
        return
    kinds, outside = flow.reach(keys)
    if text.kind in kinds:
        module.proven.setdefault(text.kind, set()).update(keys)
        yield matching(module, text, other)
        return
    rule = "JM111" if text.kind == DEVICE else text.rule
    doubt = report(
        module,
        text,
        language.Text(
            "compared with {other}, not seen to be a {kind}",
            other=short(module, other),
            kind=text.kind,
        ),
        rule,
    )
    yes = matching(module, text, other)
    module.doubts[doubt.line, doubt.column] = (frozenset(keys), text.kind, yes)
    waiting = Pending(yes, doubt, text.kind)
    if keys:
        module.watched.append(waiting)
    yield waiting if outside else doubt


def ask_both(module: Module, text: DeviceText) -> Finding:
    """A comparison with a value that may be the program's word or the chip's: both are asked for.

    `device.type == "cuda"` becomes `device.type in ("cuda", …)`.
    """
    rule = "JM111" if text.kind == DEVICE else text.rule
    start, end = text.span
    parent, source = getattr(text.whole, "parent", None), module.source.text
    here = source[start:end]
    other = re.sub(rf"\b{module.vocabulary.device}\b", module.vocabulary.to_device, here, count=1)
    plain = text.shape in ("exact", "index", "prefix") and text.whole is text.node
    edits: list[tuple[int, int, str]] = []
    if plain and isinstance(parent, ast.Compare) and parent.comparators == [text.whole]:
        asked = {ast.Eq: "==", ast.NotEq: "!="}.get(type(parent.ops[0]), "")
        at = source.find(asked, module.span(parent.left)[1], start) if asked else -1
        if at >= 0:
            among = f"{'not ' * (asked == '!=')}in"
            edits = [(at, at + 2, among), (start, end, f"({here}, {other})")]
    elif plain and isinstance(parent, (ast.Tuple, ast.List, ast.Set)):
        if isinstance(getattr(parent, "parent", None), ast.Compare):
            edits = [(start, end, f"{here}, {other}")]
    elif plain and isinstance(parent, ast.MatchValue):
        edits = [(start, end, f"{here} | {other}")]
    elif plain and getattr(getattr(parent, "func", None), "attr", "") == "startswith":
        edits = [(start, end, f"({here}, {other})")]
    if not edits:
        return report(module, text, MAY_BE_EITHER, rule)
    return module.find(rule, parent if len(edits) > 1 else (start, end), edits=edits)  # type: ignore[arg-type]


def matching(module: Module, text: DeviceText, other: ast.expr) -> Finding:
    """The rewritten literal of a comparison, with the number of letters that a text is cut to for
    it: `device[:4] == "cuda"`."""
    rule = "JM111" if text.kind == DEVICE else text.rule
    # An assertion holds a value of the program's own to what was written for it.
    # A tensor's device is no text: what is compared with one as it is, the program made itself.
    plain = isinstance(other, ast.Attribute) and other.attr in module.sinks.device_attributes
    own = is_claimed(text.whole) and (plain or not real(module, other, text.kind))
    fixed = fix(module, text, rule, compare=not own)
    cut = other.slice if isinstance(other, ast.Subscript) else None
    end = cut.upper if isinstance(cut, ast.Slice) else None
    begins = getattr(cut, "lower", None) is None or getattr(cut.lower, "value", None) == 0  # type: ignore[union-attr]
    if not fixed.edits or not begins or getattr(end, "value", None) != len(text.value):
        return fixed
    edit = fixed.edits[0]
    written = edit.text.decode(module.source.encoding)
    if module.context.style.portable:
        to = f"len({written})"
    else:
        to = str(len(text.value) + len(written) - (edit.end - edit.start))
    at = module.source.edit(*module.span(end), to)  # type: ignore[arg-type]
    return replace(fixed, edits=tuple(sorted((*fixed.edits, at), key=lambda e: e.start)))


def is_claimed(node: ast.expr) -> bool:
    """Whether a comparison is an assertion's: `assert cfg.device == "cuda:0"`."""
    parent = getattr(node, "parent", None)
    while isinstance(parent, (ast.Dict, ast.List, ast.Tuple)):
        node, parent = parent, getattr(parent, "parent", None)
    if isinstance(parent, ast.Call):
        return find_asserted(parent, node) is not None
    if isinstance(parent, ast.Compare) and isinstance(parent.ops[0], (ast.In, ast.NotIn)):
        return False  # `assert device in ("cuda", "cpu")` says what may be
    return isinstance(parent, ast.Compare) and isinstance(
        getattr(parent, "parent", None), ast.Assert
    )


def told_in_text(module: Module, node: ast.expr, value: str) -> bool:
    """Whether the name that an assertion claims comes from a text of the same function.

    `path.write_text("device: cuda:1")`, then `assert load(path).device == "cuda:1"`.
    """
    home = module.names.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if home is None or not is_claimed(node):
        return False
    word = re.compile(rf"[:=][ \t\"']*{re.escape(value)}(?![\w:])")
    first, last = home.lineno, home.end_lineno
    return any(
        isinstance(each.value, str)
        and first <= each.lineno <= last
        and len(each.value) > len(value)
        and word.search(each.value)
        and not isinstance(getattr(each, "parent", None), ast.Assert)
        for each in module.names.nodes[ast.Constant]
    )


def evident(module: Module, other: ast.expr, kind: str) -> bool:
    """Whether an expression is a device (or a backend) by its own form or name."""
    flow = module.flow
    if isinstance(other, ast.Subscript) and environment(other.value):
        return flow.sinks.names.get(last_name(other).lower()) == kind  # `os.environ["DEVICE"]`
    if kind == BACKEND:
        if isinstance(other, ast.Call):
            callee = module.names.dotted(other.func)
            if callee in flow.sinks.backend_calls:
                return True
            if isinstance(other.func, ast.Attribute) and other.func.attr == "lower":
                return evident(module, other.func.value, kind)
        return flow.sinks.names.get(last_name(other)) == BACKEND
    if flow.is_device(other) or error_text(module, other):
        return True
    if isinstance(other, ast.Call) and getattr(other.func, "id", "") == "str" and other.args:
        return evident(module, other.args[0], kind)
    if isinstance(other, ast.Subscript) and isinstance(other.slice, ast.Slice):
        # `device[:4]` is compared with as many letters; another name may have more.
        return False
    if isinstance(other, ast.Call) and isinstance(other.func, ast.Attribute):
        return evident(module, other.func.value, kind)
    if isinstance(other, ast.Attribute) and other.attr == "type":
        return isinstance(other.value, ast.Call) or "dev" in last_name(other.value).lower()
    return flow.sinks.names.get(last_name(other)) == DEVICE


def pretends(module: Module) -> bool:
    """Whether a file puts something else in the place of names of the origin's module."""
    platform = re.escape(module.vocabulary.module)
    replaced = rf"\b(?:patch|setattr)\w*\(\s*[\"']?{platform}\b"
    return re.search(replaced, module.source.text) is not None


def real(module: Module, other: ast.expr, kind: str) -> bool:
    """Whether an expression comes from torch itself, so that it speaks of the target."""
    if kind == BACKEND:
        return isinstance(other, ast.Call) and evident(module, other, kind)
    if isinstance(other, ast.Call) and getattr(other.func, "id", "") == "str" and other.args:
        return real(module, other.args[0], kind)
    return isinstance(other, ast.Attribute) and module.flow.is_device(other)


# -- what is written ---------------------------------------------------------------------------


def report(module: Module, text: DeviceText, reason: str, rule: str | None = None) -> Finding:
    """A literal that stays, with the reason."""
    return module.find(rule or text.rule, text.span, tier=Tier.REPORT, reason=reason)


def fix(module: Module, text: DeviceText, rule: str, *, compare: bool = False) -> Finding:
    """The literal in the target's words, in the style of the scan."""
    words = module.vocabulary
    start, _ = text.body
    if find_offered(text.whole) is not None:
        return add_value(module, text, rule)
    if module.context.style is Style.ACCELERATOR:
        return literal(module, text, rule, compare or speaks_of_device(module, text.node))
    if module.context.style is Style.AGNOSTIC:
        return agnostic(module, text, rule, compare)
    edits = [
        (start + m.start(), start + m.end(), words.string(m.group()))
        for m in re.finditer(
            rf"\b({words.device}|{words.backend}|{words.backend.upper()})\b", text.value
        )
    ]
    return module.find(rule, text.span, edits=edits, needs=need(module, text.node))


def add_value(module: Module, text: DeviceText, rule: str) -> Finding:
    """A value that an option allows, with the target's behind it: both stay allowed."""
    start, end = module.span(text.whole)
    left, right = text.body
    source, words = module.source.text, module.vocabulary
    other = source[start:left] + words.string(source[left:right]) + source[right:end]
    edits = [(start, end, f"{source[start:end]}, {other}")]
    agnostic_style = module.context.style is Style.AGNOSTIC
    return module.find(
        rule, (start, end), edits=edits, needs=None if agnostic_style else need(module, text.node)
    )


def is_host(module: Module, value: ast.expr) -> bool:
    """Whether an expression is the host: `"cpu"`, `torch.device("cpu")`."""
    if isinstance(value, ast.Call) and module.names.dotted(value.func) == "torch.device":
        return len(value.args) == 1 and is_host(module, value.args[0])
    return getattr(value, "value", None) == "cpu"


def add_entry(module: Module, text: DeviceText, host: ast.expr) -> Finding:
    """`map_location={"cuda:0": "cpu"}`: the same for the target; files may come from either."""
    start, end = module.span(text.whole)
    left, right = text.body
    source, words = module.source.text, module.vocabulary
    other = source[start:left] + words.string(source[left:right]) + source[right:end]
    edits = [(start, end, f"{source[start:end]}: {module.text(host)}, {other}")]
    return module.find(text.rule, (start, end), edits=edits)


def agnostic(module: Module, text: DeviceText, rule: str, compare: bool) -> Finding:
    """The helper's expression for a literal."""
    words, jm = module.vocabulary, module.helper
    compare = compare or mixed_precision(module, text) or speaks_of_device(module, text.node)
    compare = compare or is_member(module, text.whole)
    device = f"{jm}.accelerator()" if compare else f"{jm}.device_type()"
    if isinstance(getattr(text.node, "parent", None), ast.MatchValue):
        return pattern(module, text, rule)
    quoted = text.shape not in ("exact", "backend")
    if (quoted and inside_fstring(module, text.node)) or annotation(text.node):
        return report(module, text, "a call can't stand here", rule)
    start, end = text.span
    if text.shape == "exact":
        written = device
    elif text.shape == "index":
        index = text.value[len(words.device) + 1 :]
        written = f'f"{{{device}}}:{index}"' if compare else f"{jm}.device({index})"
    elif text.shape == "option":
        return option(module, text, rule)
    elif text.shape == "expression":
        source, (left, right) = module.source.text, text.body
        head, quote = source[start:left].lower().replace("u", ""), source[right:end]
        between = re.split(rf"\b{words.device}\b", source[left:right])
        parts = [f"{head}{each}{quote}" if each else "" for each in between]
        joined = [part for each in parts for part in (device, each)][1:]
        written = " + ".join(filter(None, joined))
    elif text.shape == "backend":
        written = f"{jm}.accelerator_backend()" if compare else f"{jm}.dist_backend()"
        written += ".upper()" if text.value.isupper() else ""
    elif text.shape == "composite":
        if compare or text.value != f"cpu:gloo,{words.device}:{words.backend}":
            return report(module, text, "no helper form of this combination", rule)
        written = f"{jm}.dist_backend(with_cpu=True)"
    elif text.shape == "fstring":
        at = text.body[0]
        edits = [(at, at + len(words.device), f"{{{device}}}")]
        return module.find(rule, text.span, edits=edits, needs="helper")
    elif text.shape == "template" and "{" in text.value:
        written = f'({device} + "{text.value[len(words.device) :]}")'
    else:
        written = f'f"{{{device}}}{text.value[len(words.device) :]}"'
    return module.find(rule, text.span, edits=[(start, end, written)], needs="helper")


def speaks_of_device(module: Module, node: ast.AST) -> bool:
    """Whether the code around a literal is for the device alone, so that a CPU never runs it.

    A class that is named for it (`CUDAAccelerator`); a test that puts other answers in the place of
    its questions (`@patch("torch.cuda.is_available")`, a fixture `cuda_count_2`). The tests of a
    machine without the device then see its name, as before.
    """
    word = module.vocabulary.device
    owner = module.names.enclosing(node, (ast.ClassDef,))
    if owner is not None and re.search(
        rf"(?:^|_){word}|{word.capitalize()}(?=[A-Z]|$)", owner.name, re.I
    ):
        return True
    test = module.names.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if test is None or not test.name.startswith("test"):
        return False
    if any(each.arg.startswith(f"{word}_") for each in test.args.args):
        return True
    asked = (each for part in test.decorator_list for each in ast.walk(part))
    texts = (each.value for each in asked if isinstance(each, ast.Constant))
    return any(isinstance(t, str) and t.startswith(f"{module.vocabulary.module}.") for t in texts)


def pattern(module: Module, text: DeviceText, rule: str) -> Finding:
    """`case "cuda:0":` with a name of the helper's, as a pattern takes no call."""
    names = {"exact": "ACCELERATOR", "backend": "ACCELERATOR_BACKEND"}
    name = None if text.value.isupper() else names.get(text.shape)
    if text.shape == "index":
        name = "ACCELERATOR_" + text.value.partition(":")[2]
    if name is None:
        return report(module, text, "a pattern takes no call; compare before the match", rule)
    edits = [(*text.span, f"{module.helper}.{name}")]
    return module.find(rule, text.span, edits=edits, needs="helper")


def option(module: Module, text: DeviceText, rule: str) -> Finding:
    """`"--device=cuda:1"` with the helper's value."""
    jm, (left, right), (start, end) = module.helper, text.body, text.span
    value = f"{jm}.dist_backend()" if text.kind == BACKEND else f"{jm}.device_type()"
    index = text.value.partition(":")[2]
    if index:
        value = f"{jm}.device({index})"
    source = module.source.text
    head = source[start:left].removeprefix("u").removeprefix("U")  # neither is for f-strings
    prefix = "" if head[0] in "fF" else "f"
    return module.find(
        rule,
        text.span,
        edits=[(start, end, f"{prefix}{head}{{{value}}}{source[right:end]}")],
        needs="helper",
    )


def typed_tensor(module: Module, text: DeviceText) -> Iterator[Finding]:
    """`"torch.cuda.FloatTensor"` as a string."""
    kind = text.value.rpartition(".")[2]
    advice = module.vocabulary.name(kind)
    if advice.to != kind:
        yield report(
            module,
            text,
            advice.note
            or language.Text("{chip} has no {kind}", chip=module.context.chip.name, kind=kind),
        )
        return
    if module.context.style is Style.ACCELERATOR:
        yield report(module, text, unknown(kind))
        return
    if module.context.style is Style.AGNOSTIC:
        if inside_fstring(module, text.node):
            yield report(module, text, "a call can't stand here")
            return
        written = f'f"torch.{{{module.helper}.accelerator()}}.{kind}"'
        yield module.find("JM106", text.span, edits=[(*text.span, written)], needs="helper")
        return
    yield fix(module, text, "JM106")

"""`torch.cuda.X` in every spelling: calls, annotations, decorators, base classes, aliases.

Only the token that names the platform is edited. What a name becomes, and whether the target has
it, is data of the chips.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.chips import NameAdvice
from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import own_kernels, under_shim
from joymigrate.rewrite.guards import names_device, negative
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.moved_names import moved_part
from joymigrate.rewrite.portable.names import root_of, write_name
from joymigrate.rewrite.portable.table import unknown
from joymigrate.rewrite.portable.words import torch_at

# Names of the origin's module whose meaning differs between chips: reported by their own rule.
AGNOSTIC = {
    "torch.distributed.is_nccl_available": "is_backend_available",
    "torch.get_autocast_gpu_dtype": "get_autocast_dtype",
    "torch.set_autocast_gpu_dtype": "set_autocast_dtype",
    "torch.is_autocast_enabled": "is_autocast_enabled",
    "torch.set_autocast_enabled": "set_autocast_enabled",
}


# Names that ask whether the origin's platform is there.
QUESTIONS = ("is_available", "device_count")


def find(module: Module) -> Iterator[Finding]:
    """Findings for every reference to the origin's module and to names that moved."""
    if module.vocabulary.same_device:
        return
    listed = module.vocabulary.packages
    for top, dotted in module.names.imported_chains():
        if dotted.partition(".")[0] in listed and top not in module.handled:
            yield from site(module, top, dotted)


def site(module: Module, top: ast.expr, dotted: str) -> Iterator[Finding]:
    """The finding of one attribute chain, if it is a site."""
    words = module.vocabulary
    moved = moved_part(module, top, dotted)
    if moved is not None:
        found = move(module, *moved)
        if found is not None:
            yield found
        return
    if private(module, dotted):
        yield module.find("JM105", top, reason="a private name of torch, of that platform only")
        return
    if dotted != words.module and not dotted.startswith(words.module + "."):
        return
    rest = dotted[len(words.module) + 1 :]
    if not rest:
        yield from bare(module, top)
        return
    known = words.known_prefix(rest)
    node = cut(top, dotted, f"{words.module}.{known}")
    if capability(module, known) and not is_probe(node):
        yield module.find("JM107", node, reason=words.name(known).note or None)
        return
    yield from find_name(module, node, known)


def private(module: Module, dotted: str) -> bool:
    """Whether a name is one of torch's own that only a build for the origin has."""
    return dotted.startswith(f"torch._C._{module.vocabulary.device}")


def find_name(module: Module, node: ast.expr, known: str) -> Iterator[Finding]:
    """The finding of `torch.cuda.<known>`; `node` is the chain up to that name."""
    words = module.vocabulary
    advice = words.name(known)
    rule = rule_of(known, advice)
    guard = module.guarded(node)
    if guard is None and isinstance(getattr(node, "ctx", None), ast.Store):
        guard = (
            "a name of the old platform's module is replaced; decide what that means on the target"
        )
    if guard is None and known in QUESTIONS:
        guard = own_kernels.decides(module, node, tensor=False)
        if guard is not None and module.context.style is Style.SHIM:
            yield under_shim.find_yes(module, node, guard)
            return
    if guard is not None:
        yield module.find(rule, node, tier=Tier.REPORT, reason=guard)
        return
    if module.context.style is Style.ACCELERATOR:
        if not hides_platform(module, node):  # the import statement carries the edit
            yield write_name(module, rule, node, known)
        return
    if advice.to is None or advice.tier is Tier.REPORT:
        yield module.find("JM105", node, tier=Tier.REPORT, reason=advice.note or None)
        return
    if advice.to.startswith("torch"):
        yield replace(module, rule, node, advice)
        return
    if module.context.style is Style.AGNOSTIC and advice.to != known:
        reason = Text(
            "one name on each platform; on {chip}: {to}",
            chip=module.context.chip.name,
            to=advice.to,
        )
        yield module.find(rule, node, tier=Tier.REPORT, reason=reason)
        return
    owner = platform_node(module, node)
    if owner is None:
        return  # the import statement carries the edit
    edits = rename(module, node, owner, known, advice.to)
    if edits is None:
        yield module.find(rule, node, tier=Tier.REPORT, reason="inside a multi-line f-string")
        return
    yield module.find(
        rule,
        node,
        edits=edits,
        tier=advice.tier,
        reason=advice.note or None,
        needs=need(module, node),
    )


def rule_of(known: str, advice: NameAdvice) -> str:
    """The rule that a name belongs to."""
    if known.startswith("amp."):
        return "JM140"
    if known.endswith("Tensor"):
        return "JM106"
    if known.split(".")[0] in ("nvtx", "nccl"):
        return "JM104"
    if known.split(".")[-1] == "OutOfMemoryError":
        return "JM108"
    return "JM101" if advice.to == known else "JM103"


def capability(module: Module, known: str) -> bool:
    """Whether a name asks for the origin's compute capability or marketing name."""
    names = module.rule("JM107").match
    return any(known in item.get("names", ()) for item in names)  # type: ignore[operator]


def is_probe(node: ast.expr) -> bool:
    """Whether a call's result is dropped: it only sees whether the card is there."""
    call = getattr(node, "parent", None)
    called = isinstance(call, ast.Call) and call.func is node
    return called and isinstance(getattr(call, "parent", None), ast.Expr)


def need(module: Module, node: ast.AST) -> str | None:
    """What the file must import for an edit of this style at a place."""
    if module.context.style is Style.ACCELERATOR:
        return torch_at(module, node)[1]
    return "helper" if module.context.style is Style.AGNOSTIC else "package"


def cut(top: ast.expr, dotted: str, wanted: str) -> ast.expr:
    """The part of the chain `top` (standing for `dotted`) that stands for `wanted`."""
    extra = dotted.count(".") - wanted.count(".")
    node = top
    for _ in range(extra):
        if not isinstance(node, ast.Attribute):
            break
        node = node.value
    return node


def platform_node(module: Module, node: ast.expr) -> ast.Attribute | None:
    """The attribute of a chain that stands for the origin's module; None if an alias hides it."""
    while isinstance(node, ast.Attribute):
        if module.names.dotted(node) == module.vocabulary.module:
            return node
        node = node.value
    return None


def hides_platform(module: Module, node: ast.expr) -> bool:
    """Whether an import of the origin's module, or from it, binds the start of a chain."""
    bound = module.names.dotted(root_of(node))
    return bound is not None and module.vocabulary.below(bound) is not None


def rename(
    module: Module, node: ast.expr, owner: ast.Attribute, known: str, to: str
) -> list[tuple[int, int, str]] | None:
    """Edits that turn the chain into the target's; None when a position can't be trusted."""
    token = module.token(owner)
    if token is None:
        return None
    if module.context.style is Style.AGNOSTIC:
        start, _ = module.span(owner)
        edits = [(start, token[1], f"{module.helper}.device_module()")]
    else:
        edits = [(*token, module.vocabulary.to_device)]
    if to != known:
        _, end = module.span(node)
        edits.append((token[1], end, f".{to}"))
    return edits


def replace(module: Module, rule: str, node: ast.expr, advice: NameAdvice) -> Finding:
    """A name that lives elsewhere on the target: the whole chain is written anew."""
    start, end = module.span(node)
    if not text_is_chain(module.source.text[start:end]):
        return module.find(rule, node, tier=Tier.REPORT, reason="written over several lines")
    assert advice.to is not None
    text = render(module, advice.to)
    needs = "package" if text.startswith(str(module.context.chip.package)) else None
    if module.context.style is Style.AGNOSTIC and needs:
        return module.find(
            rule,
            node,
            tier=Tier.REPORT,
            reason=Text("on {chip}: {to}", chip=module.context.chip.name, to=advice.to),
        )
    return module.find(
        rule,
        node,
        edits=[(start, end, text)],
        tier=advice.tier,
        reason=advice.note or None,
        needs=needs,
    )


def text_is_chain(text: str) -> bool:
    """Whether a chain is written without line breaks or comments."""
    return all(part.strip().isidentifier() for part in text.split(".")) and "\n" not in text


def render(module: Module, dotted: str) -> str:
    """`dotted` in the module's own words: through the longest import that leads to it."""
    best = dotted
    for name, bindings in module.names.root.names.items():
        target = bindings[0].dotted if bindings[0].kind == "import" else None
        if target and len(bindings) == 1 and f"{dotted}.".startswith(f"{target}."):
            candidate = name + dotted[len(target) :]
            best = min(best, candidate, key=lambda text: (text.count("."), len(text)))
    return best


def through_import(module: Module, node: ast.expr, to: str) -> str | None:
    """`to` through an import of the moved name itself, which is rewritten at its statement."""
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    bound = module.names.dotted(root)
    base = module.vocabulary.moved(bound) if bound and bound not in module.unmoved else None
    if base is None or not base.to or not to.startswith(base.to + "."):
        return None
    return module.text(root) + to[len(base.to) :]


def move(module: Module, node: ast.expr, name: str, advice: NameAdvice) -> Finding | None:
    """The finding for a name outside the module that the target has elsewhere."""
    if advice.keeps and advice.tier is Tier.SAFE:
        return None  # it does nothing there, and no harm
    rule = moved_rule(name)
    guard = module.guarded(node)
    if guard is not None:
        return module.find(rule, node, tier=Tier.REPORT, reason=guard)
    if advice.to is None or advice.keeps or advice.tier is Tier.REPORT:
        return module.find(rule, node, tier=Tier.REPORT, reason=advice.note or None)
    if module.context.style is Style.ACCELERATOR:
        return module.find(rule, node, tier=Tier.REPORT, reason=unknown(name))
    if module.context.style is Style.AGNOSTIC:
        return move_agnostic(module, rule, node, name, advice)
    if not isinstance(node, ast.Attribute) and name not in module.unmoved:
        return None  # a name imported by itself: the import statement carries the edit
    before = module.text(node)
    if not text_is_chain(before):
        return module.find(rule, node, tier=Tier.REPORT, reason="written over several lines")
    tier, reason = advice.tier, advice.note or None
    text = through_import(module, node, advice.to)
    if text is None:
        text = render(module, advice.to)
        if tier is Tier.SAFE and render(module, name) != before:
            tier, reason = (
                Tier.UNSAFE,
                "spelled in a way that a rewrite in the other direction would not restore",
            )
    start, end = module.span(node)
    return module.find(
        rule, node, edits=[(start, end, text)], tier=tier, reason=reason, needs="package"
    )


def move_agnostic(
    module: Module, rule: str, node: ast.expr, name: str, advice: NameAdvice
) -> Finding:
    """The helper's form of a moved name, where it has one."""
    helper = AGNOSTIC.get(name)
    if name.startswith("torch.profiler."):
        rest = name[len("torch.profiler.") :]
        device = rest == f"ProfilerActivity.{module.context.origin.device.upper()}"
        helper = "profiler_activity()" if device else f"profiler().{rest}"
    if helper is None:
        there = Text("on {chip}: {to}", chip=module.context.chip.name, to=advice.to)
        return module.find(
            rule,
            node,
            tier=Tier.REPORT,
            reason=Text.join("; ", (advice.note, there)),
        )
    start, end = module.span(node)
    return module.find(
        rule,
        node,
        edits=[(start, end, f"{module.helper}.{helper}")],
        tier=advice.tier,
        needs="helper",
    )


MOVED_RULES = (
    ("torch.profiler", "JM160"),
    ("torch.backends.cudnn.allow_tf32", "JM151"),
    ("torch.backends.cuda.matmul", "JM151"),
    ("torch.backends.cudnn", "JM150"),
    ("torch.backends", "JM152"),
    ("torch.distributed", "JM131"),
    ("torch.version", "JM109"),
)


def moved_rule(name: str) -> str:
    """The rule that a moved name belongs to; names of the way back fall under the general one."""
    for prefix, rule in MOVED_RULES:
        if name.startswith(prefix):
            return rule
    return "JM140" if "autocast" in name else "JM103"


REPLACING = ("object", "setattr", "delattr")  # of mock.patch and pytest's monkeypatch


def replacing(call: ast.Call) -> bool:
    """Whether a call replaces an attribute in a test: `patch.object(o, "name")`."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in REPLACING


def asked_by_name(module: Module, call: ast.Call) -> bool:
    """Whether a call is `getattr(torch.cuda, "name")` with a name that means the same there."""
    asked = getattr(call.func, "id", "") in ("getattr", "hasattr") or replacing(call)
    if not asked or len(call.args) < 2:
        return False
    name = call.args[1]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return False
    advice = module.vocabulary.name(name.value)
    return advice.to == name.value and advice.tier is Tier.SAFE


def bare(module: Module, top: ast.expr) -> Iterator[Finding]:
    """`torch.cuda` itself: passed on, bound to a name, or asked for attributes by string."""
    parent = getattr(top, "parent", None)
    token = module.token(top) if isinstance(top, ast.Attribute) else None
    if not isinstance(top, ast.Attribute) or token is None:
        return
    guard = module.guarded(top)
    if guard is not None:
        yield module.find("JM101", top, tier=Tier.REPORT, reason=guard)
        return
    if isinstance(parent, ast.Call) and top in parent.args and not asked_by_name(module, parent):
        if getattr(parent.func, "id", "") in ("getattr", "hasattr", "setattr", "delattr"):
            return  # reported with the call
        yield module.find(
            "JM900",
            top,
            tier=Tier.REPORT,
            reason="the module is passed on; its use is not visible here",
        )
        return
    if module.context.style is Style.ACCELERATOR:
        torch, needs = torch_at(module, top)
        edits = [(*module.span(top), f"{torch}.get_device_module()")]
        # `torch.cuda if use_cuda else torch`: a card is there, and so torch's module is its own.
        test = parent.test if isinstance(parent, ast.IfExp) and parent.body is top else None
        chosen = test is not None and names_device(test) and not negative(test)
        tier = Tier.SAFE if chosen else Tier.UNSAFE
        yield module.find("JM101", top, edits=edits, tier=tier, needs=needs)
        return
    if module.context.style is Style.AGNOSTIC:
        written = f"{module.helper}.device_module()"
        if isinstance(parent, ast.Call) and top in parent.args and replacing(parent):
            # The module itself: without an accelerator the helper's stand-in asks it.
            written = f"getattr({module.text(top.value)}, {module.helper}.accelerator())"
        edits = [(module.span(top)[0], token[1], written)]
    else:
        edits = [(*token, module.vocabulary.to_device)]
    yield module.find("JM101", top, edits=edits, needs=need(module, top))

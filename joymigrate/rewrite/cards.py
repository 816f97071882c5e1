"""`rewrite --multi-card`: a training script for one card becomes one for several.

The result still speaks of the origin's device, so that it can be tried there first; the ordinary
rewrite takes it to another chip afterwards.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor

from joymigrate import __version__
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.model import Case, Patch, Scan, Tier
from joymigrate.rewrite import cards_helper
from joymigrate.rewrite.cards_helper import NAME
from joymigrate.rewrite.codemod import Codemod, CodemodView
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.patch import patches

LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
# Packages that bring several cards themselves.
OTHERS = (
    "accelerate", "deepspeed", "horovod", "lightning", "pytorch_lightning", "colossalai", "ray",
    "fairscale", "mmengine", "ignite", "composer", "megatron", NAME,
)  # fmt: skip
PARALLEL = ("torch.distributed", "torch.nn.parallel", "torch.nn.DataParallel")
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class CardPlan:
    """What changes: by the offset where a statement or call starts."""

    model: str = ""
    before: dict[int, list[str]] = field(default_factory=dict)  # statement → lines before it
    calls: dict[int, str] = field(default_factory=dict)  # call → the helper's function


class Stays(Exception):
    """Why a script stays as it is, and the place that decides it."""

    def __init__(self, node: ast.AST, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


class MultiCard(Codemod):
    """One card to several: processes, samplers, averaged gradients, one writer of checkpoints."""

    RULE = "JM301"
    NAME = "multi-card"
    TITLE = "A training script for one card"
    MESSAGE = "trains on one card: `{before}`"
    WHY = "A process per card, each with its share of the data, is what torchrun starts."
    AREA = "distributed"
    TIER = Tier.SAFE
    TOGETHER = True
    WORDS = ("optim",)
    CASES: ClassVar = (
        Case(
            before="import torch\nfrom torch.utils.data import DataLoader\n\n"
            "net = torch.nn.Linear(2, 2).cuda()\n"
            "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
            "for x in DataLoader(samples, 8, shuffle=True):\n"
            "    net(x.cuda()).sum().backward()\n"
            "    opt.step()\n"
            "torch.save(net.state_dict(), 'net.pt')\n",
            after="import torch\nfrom torch.utils.data import DataLoader\n"
            "import joymigrate_cards\n\n"
            "joymigrate_cards.setup()\n\n"
            "net = torch.nn.Linear(2, 2).cuda()\n"
            "net = joymigrate_cards.parallel(net)\n"
            "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
            "for x in joymigrate_cards.DataLoader(samples, 8, shuffle=True):\n"
            "    net(x.cuda()).sum().backward()\n"
            "    opt.step()\n"
            "joymigrate_cards.save(net.state_dict(), 'net.pt')\n",
        ),
    )

    def __init__(self, context: CodemodContext, view: CodemodView) -> None:
        super().__init__(context, view)
        self.plan = CardPlan()
        try:
            self.plan = plan(view.module)
        except Stays as stays:
            self.report(view.module.span(stays.node), stays.reason)
        if self.plan.model:
            AddImportsVisitor.add_needed_import(context, NAME)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Calls of torch that the helper answers."""
        becomes = self.plan.calls.get(self.view.span(original_node)[0])
        if becomes is None:
            return updated_node
        return updated_node.with_changes(func=cst.parse_expression(f"{NAME}.{becomes}"))

    def statement(
        self, original_node: cst.BaseStatement, updated_node: cst.BaseStatement
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """A statement with what comes before it."""
        lines = self.plan.before.get(self.view.span(original_node)[0])
        if not lines:
            return updated_node
        return cst.FlattenSentinel([*map(cst.parse_statement, lines), updated_node])

    leave_SimpleStatementLine = statement
    leave_If = leave_For = leave_While = leave_With = leave_Try = statement


def plan(module: Module) -> CardPlan:
    """What to change in one script; nothing for a file that trains nothing. Raises `Stays`."""
    makers = [*optimisers(module)]
    if not makers:
        return CardPlan()
    single_card(module)
    names = {name for _, name in makers}
    call, model = makers[0]
    if len(names) > 1:
        raise Stays(
            makers[1][0], Text("trains several models: {names}", names=", ".join(sorted(names)))
        )
    maker = statement_of(call)
    scope: Scope = (
        module.names.enclosing(call, (ast.FunctionDef, ast.AsyncFunctionDef)) or module.tree
    )
    if not any(binds(one, model) for one in own_statements(scope)):
        raise Stays(call, Text("`{name}` is made elsewhere", name=model))
    for later in own_statements(scope):
        if later.lineno > maker.lineno and moves(later, model):
            raise Stays(later, "the model moves to a device after its optimiser is made")
    found = CardPlan(model=model)
    start = module.span(beginning(scope, maker))[0]
    found.before.setdefault(start, []).append(f"{NAME}.setup()")
    for each, name in makers:
        at = module.span(statement_of(each))[0]
        if each is call:
            found.before.setdefault(at, []).append(f"{name} = {NAME}.parallel({name})")
    loaders = [*training_loaders(module)]
    if not loaders:
        raise Stays(call, "no DataLoader with shuffle=True, and none that a training loop reads")
    for loader in loaders:
        found.calls[module.span(loader)[0]] = "DataLoader"
    for one in module.names.nodes[ast.Call]:
        if module.names.dotted(one.func) == "torch.save":
            found.calls[module.span(one)[0]] = "save"
    return found


def optimisers(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Calls that make an optimiser of torch, each with the model whose parameters it takes.

    Raises `Stays` where no model is seen behind what it takes.
    """
    for call in module.names.nodes[ast.Call]:
        dotted = module.names.dotted(call.func) or ""
        if not re.fullmatch(r"torch\.optim\.(?:\w+\.)?[A-Z]\w+", dotted):
            continue
        if dotted.startswith(("torch.optim.lr_scheduler", "torch.optim.swa_utils")):
            continue
        named = {word.arg: word.value for word in call.keywords}
        given = call.args[0] if call.args else named.get("params")
        if given is None:
            raise Stays(call, "the arguments of its optimiser are not seen")
        models = [*dict.fromkeys(models_behind(module, given))]
        if not models:
            text = module.text(given)
            raise Stays(call, Text("no model is seen behind `{text}`, which it trains", text=text))
        yield from ((call, name) for name in models)


def models_behind(module: Module, given: ast.expr) -> Iterator[str]:
    """Models whose parameters an optimiser gets: directly, or in lists of groups made before.

    `net.parameters()`, `[{"params": decay}]` with `decay.append(p)` in a loop over
    `net.named_parameters()`, `make_groups(net, 0.1)`.
    """
    waiting: list[ast.AST] = [given]
    seen: set[str] = set()
    while waiting:
        at = waiting.pop(0)
        asked = [part for part in ast.walk(at) if isinstance(part, ast.Attribute)]
        asked = [part for part in asked if part.attr in ("parameters", "named_parameters")]
        for part in asked:
            name = variable(part.value)
            if name is None:
                raise Stays(part, "the model is no variable of its own")
            if is_list(module, part, name):
                text = Text("`{name}` is a list of models, which none of them knows of", name=name)
                raise Stays(part, text)
            yield name
        for read in ast.walk(at):
            if (name := variable(read)) and is_parameter(module, read, name):
                text = Text("it trains `{name}` too, which is in no model", name=name)
                raise Stays(read, text)
        for read in () if asked else ast.walk(at):
            name = variable(read)
            if name is None or name in seen:
                continue
            seen.add(name)
            outer = getattr(read, "parent", None)
            if isinstance(outer, ast.Call) and read in outer.args and is_model(module, name):
                yield name  # `make_groups(net, 0.1)`
                continue
            waiting += values_put_into(module, read, name)


def values_put_into(module: Module, node: ast.AST, name: str) -> Iterator[ast.AST]:
    """What the function around a place puts into a variable, and loops around that."""
    home: Scope = (
        module.names.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or module.tree
    )
    for one in own_statements(home):
        puts = isinstance(one, ast.AugAssign) and variable(one.target) == name
        value = getattr(one, "value", None)
        if isinstance(one, ast.Expr) and isinstance(value, ast.Call):  # `decay.append(p)`
            owner = getattr(value.func, "value", value.func)  # `(a if x else b).append(p)`
            puts = name in map(variable, ast.walk(owner))
        if not puts and not binds(one, name):
            continue
        yield value  # type: ignore[misc]
        around = getattr(one, "parent", None)
        while around is not None and around is not home:
            if isinstance(around, ast.For):
                yield around.iter
            around = getattr(around, "parent", None)


def is_list(module: Module, node: ast.AST, name: str) -> bool:
    """Whether a variable is a list of modules: nobody calls it, so no gradient is averaged."""
    return any(
        (module.names.dotted(each) or "").endswith((".ModuleList", ".ModuleDict"))
        for value in values_put_into(module, node, name)
        for each in (value.func if isinstance(value, ast.Call) else value,)
        if isinstance(each, (ast.Name, ast.Attribute))
    )


def is_parameter(module: Module, node: ast.AST, name: str) -> bool:
    """Whether a variable is a parameter that stands alone, whose gradient nobody averages."""
    for value in values_put_into(module, node, name):
        for each in ast.walk(value) if isinstance(value, ast.Call) else ():
            if isinstance(each, ast.Attribute) and each.attr == "requires_grad_":
                return True
            if isinstance(each, ast.keyword) and each.arg == "requires_grad":
                return getattr(each.value, "value", True) is not False
            if isinstance(each, ast.Call):
                made = module.names.dotted(each.func) or ""
                if made.startswith("torch.nn.") and made.endswith((".Parameter", ".ParameterList")):
                    return True
    return False


def is_model(module: Module, name: str) -> bool:
    """Whether a variable is used as a model: `net.train()`, `net.state_dict()`."""
    asked = ("train", "eval", "state_dict", "load_state_dict", "named_modules", "parameters")
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in asked
        and variable(call.func.value) == name
        for call in module.names.nodes[ast.Call]
    )


def single_card(module: Module) -> None:
    """Raise `Stays` for a script that knows several cards, or that names one of them."""
    for node in (*module.names.nodes[ast.Import], *module.names.nodes[ast.ImportFrom]):
        package = getattr(node, "module", None) or node.names[0].name
        if package.split(".")[0] in OTHERS:
            raise Stays(node, Text("{package} brings several cards itself", package=package))
    for node, dotted in module.names.imported_chains():
        if dotted.startswith(PARALLEL):
            raise Stays(node, "knows several cards already")
        if dotted.endswith(".cuda.set_device"):
            raise Stays(node, "chooses its card itself")
    device = re.escape(module.context.origin.device)
    card = re.compile(rf"{device}:\d+")
    for text in module.names.nodes[ast.Constant]:
        if isinstance(text.value, str) and card.fullmatch(text.value):
            raise Stays(text, "names one card; every process would use it")
    method = module.context.origin.tensor["cuda"]
    for call in module.names.nodes[ast.Call]:
        numbered = any(
            isinstance(arg, ast.Constant) and isinstance(arg.value, int) for arg in call.args
        )
        named = isinstance(call.func, ast.Attribute) and call.func.attr == method
        device_call = module.names.dotted(call.func) == "torch.device" and len(call.args) > 1
        if (named and numbered) or device_call:
            raise Stays(call, "names one card; every process would use it")


def training_loaders(module: Module) -> Iterator[ast.Call]:
    """DataLoaders that shuffle, or that a loop with a backward pass reads."""
    loops = [
        loop for loop in module.names.nodes[ast.For]
        if any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(loop))
    ]  # fmt: skip
    parts = [node for loop in loops for node in ast.walk(loop.iter)]
    read = {(name, home_of(module, node, name)) for node in parts if (name := variable(node))}
    for call in module.names.nodes[ast.Call]:
        if module.names.dotted(call.func) not in LOADERS:
            continue
        given = {word.arg: word.value for word in call.keywords}
        shuffle = given.get("shuffle", call.args[2] if len(call.args) > 2 else None)
        shuffles = shuffle is not None and not (
            isinstance(shuffle, ast.Constant) and not shuffle.value
        )
        statement = statement_of(call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        named = {
            (name, home)
            for target in targets
            if (name := variable(target))
            for home in (home_of(module, target, name), None)
        }
        if not shuffles and not named & read and call not in parts:
            continue
        if None in given or {"sampler", "batch_sampler"} & set(given) or len(call.args) > 3:
            raise Stays(call, "a DataLoader with a sampler, or with arguments that are not seen")
        yield call


def statement_of(node: ast.AST) -> ast.stmt:
    """The statement that a node is part of."""
    while not isinstance(node, ast.stmt):
        node = node.parent  # type: ignore[attr-defined]
    return node


def own_statements(scope: Scope) -> Iterator[ast.stmt]:
    """Statements of a function or module, those of functions and classes inside left out."""
    waiting = list(scope.body)
    while waiting:
        one = waiting.pop(0)
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting += [each for each in ast.iter_child_nodes(one) if isinstance(each, ast.stmt)]


def binds(statement: ast.stmt, name: str) -> bool:
    """Whether an assignment binds a name."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(variable(node) == name for target in targets for node in ast.walk(target))


def moves(statement: ast.stmt, name: str) -> bool:
    """Whether a statement moves a model: `net.to(device)`, `net = net.cuda()`."""
    value = getattr(statement, "value", None)
    func = getattr(value, "func", None)
    owner = getattr(func, "value", None)
    moved = isinstance(func, ast.Attribute) and func.attr in ("to", "cuda", "half", "bfloat16")
    return moved and owner is not None and variable(owner) == name


def variable(node: ast.AST) -> str | None:
    """The text of a plain name or of an attribute of `self`; None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return f"self.{node.attr}" if own and node.value.id == "self" else None  # type: ignore[attr-defined]


def home_of(module: Module, node: ast.AST, name: str) -> ast.AST | None:
    """The function, class or module whose own variable a name is; None where it is handed in.

    Another function's `loader`, or another class's `self.loader`, is another one.
    """
    if isinstance(node, ast.Attribute):
        owner = module.names.enclosing(node, (ast.ClassDef,))
        set_here = owner is not None and any(
            isinstance(one, ast.Attribute)
            and isinstance(one.ctx, ast.Store)
            and variable(one) == name
            for one in ast.walk(owner)
        )
        return owner if set_here else None
    found = module.names.lookup(name, node)
    if found is None or any(one.kind == "parameter" for one in found[1]):
        return None
    return found[0].node


def beginning(scope: Scope, maker: ast.stmt) -> ast.stmt:
    """The statement before which the processes join."""
    statements: list[ast.stmt] = scope.body
    top: ast.AST = maker
    while getattr(top, "parent", scope) is not scope:
        top = top.parent  # type: ignore[attr-defined]
    if isinstance(top, ast.If) and "__name__" in ast.dump(top.test):
        return top.body[0]
    passed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for one in statements:
        text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        if not text and not isinstance(one, passed):
            return one
    return maker


def multi_card(scan: Scan) -> list[Patch]:
    """The scripts' patches, with the helper and a launch script beside each.

    Raises `JoyError` where another file has one of their names.
    """
    made = patches(scan)
    added: dict[Path, Patch] = {}
    for patch in made:
        name, text = cards_helper.launcher(patch.path.name, __version__)
        wanted = {f"{NAME}.py": cards_helper.source(__version__), name: text}
        for place, content in ((patch.path.parent / file, text) for file, text in wanted.items()):
            if not place.exists():
                added[place] = Patch(place, None, content.encode())
            elif cards_helper.MARK.encode() not in place.read_bytes()[:100]:
                raise JoyError(
                    "a file of this name is there, and is not the generated one",
                    where=str(place),
                    help="rename it",
                )
    return [*made, *added.values()]

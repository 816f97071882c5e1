"""Libraries of boosted trees, with devices of their own: `lightgbm.train({"device": "cuda"})`."""

from __future__ import annotations

import ast
import functools
import re

from joymigrate.rewrite.expressions import calls_around
from joymigrate.rewrite.module import Module

BOOSTERS = ("lightgbm", "xgboost", "catboost")
BOOSTING = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(lightgbm|xgboost|catboost)\b"
    r"|\btry_import_(xgboost|lightgbm|catboost)\b",
    re.M,
)


def library(module: Module, node: ast.expr) -> str | None:
    """The library of boosted trees whose device a text names: they have names of their own.

    `xgboost.XGBClassifier(device="cuda")`, settings that such a call is given, and all of a file
    that does not speak of torch but for what it sends to a device or gives to other packages.
    """
    found = find_import(module.source.text)
    if found is None:
        return None
    for call in calls_around(node):
        dotted = module.names.dotted(call.func)
        if dotted is not None and dotted.partition(".")[0] in BOOSTERS:
            return dotted.partition(".")[0]
        named = any(k.value is node and "device" in (k.arg or "") for k in call.keywords)
        others = named and dotted is not None and "." in dotted
        if getattr(call.func, "attr", "") == "to" or (
            others and module.project.locate(dotted or "") is None
        ):
            return None
    given = find_given(module, node)
    if given is not None or "torch" in module.source.text:
        return given
    return str(next(filter(None, found.groups())))


@functools.lru_cache(maxsize=1)  # asked for each text of a file
def find_import(text: str) -> re.Match[str] | None:
    """The import of such a library in a file."""
    return BOOSTING.search(text) if any(name in text for name in BOOSTERS) else None


def find_given(module: Module, node: ast.AST) -> str | None:
    """The library of boosted trees that is given a variable with the settings around a text."""
    statement = module.names.enclosing(node, (ast.stmt,))
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    named = [each for each in targets if isinstance(each, ast.Name)]
    scopes = {each.id: module.names.lookup(each.id, each) for each in named}
    for use in module.names.nodes[ast.Name] if scopes else ():
        if not isinstance(use, ast.Name) or scopes.get(use.id) is None:
            continue
        if module.names.lookup(use.id, use) != scopes[use.id]:
            continue
        for call in calls_around(use):
            library = (module.names.dotted(call.func) or "").partition(".")[0]
            if library in BOOSTERS:
                return library
    return None

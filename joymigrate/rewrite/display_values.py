"""Values that people read: logs, messages of errors, helps of options."""

from __future__ import annotations

import ast

from joymigrate.rewrite.expressions import called_name
from joymigrate.rewrite.kernel_tests import SKIPS

# Functions whose arguments are for people, and words of arguments and functions of that kind.
SPOKEN = (
    "print", "echo", "debug", "info", "warn", "warning", "error", "critical", "exception", "log",
    "skip", "exit", "fail",
)  # fmt: skip
MESSAGES = ("help", "reason", "msg", "message", "description")


def is_for_eyes(node: ast.AST) -> bool:
    """Whether a value is shown to people: a log, the message of an error, a help."""
    at, parent = node, getattr(node, "parent", None)
    while parent is not None:
        if isinstance(parent, ast.Raise) or (isinstance(parent, ast.Assert) and at is parent.msg):
            return True
        if isinstance(parent, ast.keyword) and parent.arg in MESSAGES:
            return True
        if isinstance(parent, ast.Call) and at is not parent.func:
            name = called_name(parent)
            if name in SPOKEN or name in SKIPS or name.endswith(("Warning", "Error", "Exception")):
                return True
        if isinstance(parent, ast.stmt):
            return isinstance(parent, ast.Expr) and isinstance(at, ast.Constant)
        at, parent = parent, getattr(parent, "parent", None)
    return False

"""Programs that turn their models into graphs: what of them a recording must keep out of, and which
modules are hidden inside of a graph.

A graph of `torch.jit` or `torch.compile` runs as a whole: no module inside of it is called. What it
is given and what it makes are compared where it begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from joymigrate.verify.align import parents

SCRIPT, COMPILED, EXPORTED = "torch.jit", "torch.compile", "torch.fx"
SEEN = "watch.py"  # its functions stand in for torch's own, and are compiled with the model


def is_tracing() -> bool:
    """Whether calls of torch in this thread make a graph and no values: `torch.jit.trace`,
    `make_fx`, `torch.export`, and everything under fake tensors."""
    if torch._C._is_tracing():
        return True
    keys: Any = torch._C._TorchDispatchModeKey
    modes = (torch._C._get_dispatch_mode(key) for key in (keys.FAKE, keys.PROXY))
    return any(mode is not None for mode in modes)


def class_name(module: torch.nn.Module) -> str:
    """A module's class as the program wrote it, also of one that was scripted or traced."""
    if isinstance(module, torch.jit.ScriptModule):
        try:
            return str(module.original_name)
        except (AttributeError, RuntimeError):
            pass
    return type(module).__name__


def graph_of(module: torch.nn.Module) -> tuple[str, int]:
    """Which kind of graph runs this module (empty for plain code), and how many modules below it
    are hidden in there. A graph of `torch.fx` calls its modules, but for those that it holds as
    weights alone (`torch.export`)."""
    below = sum(1 for _ in module.modules()) - 1
    if isinstance(module, torch.jit.ScriptModule):
        return SCRIPT, below
    if type(module).__name__ == "OptimizedModule":
        return COMPILED, below - 1
    if getattr(module, "_compiled_call_impl", None) is not None:
        return COMPILED, below
    if isinstance(module, torch.fx.GraphModule):
        called = {str(n.target) for n in module.graph.nodes if n.op == "call_module"}
        paths = [path for path, _ in module.named_modules() if path]
        free = [p for p in paths if called.isdisjoint((p, *parents(p)))]
        apart = [p for p in free if not any(c.startswith(f"{p}.") for c in called)]
        return (EXPORTED, len(apart)) if apart else ("", 0)
    return "", 0


def keep_out(after_import: Callable[..., None]) -> None:
    """Code of ours is not compiled with the program's, but for what stands in for torch's own."""
    folder = Path(__file__).parent
    files = [str(file) for file in folder.iterdir() if file.name not in (SEEN, "__init__.py")]
    files.append(str(folder.parent / "modes.py"))

    def exclude() -> None:
        for name in ("trace_rules", "skipfiles"):
            rules: Any = sys.modules.get(f"torch._dynamo.{name}")
            if hasattr(rules, "SKIP_DIRS") and hasattr(rules, "_recompile_re"):
                rules.SKIP_DIRS.extend(files)
                rules._recompile_re()
                return

    after_import("torch._dynamo", exclude, who="torch._dynamo")

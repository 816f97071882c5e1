"""The graph of a module's values: what reaches a sink, where values come from, who sees them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable

from joymigrate.rewrite.flow_sinks import Sinks

NAMES_OF_KINDS = re.compile(r"[.#](?:_\w*)?accelerator(?:_flag|_name|_type|_backend)?(?:\(\))?$")
SINK = "sink:"  # SINK + kind is the end of a flow


class FlowGraph:
    """Keys of variables and the edges between them; `flow` says what a key is and draws edges."""

    def __init__(self, sinks: Sinks) -> None:
        self.sinks = sinks
        self.edges: dict[str, set[str]] = defaultdict(set)
        self.functions: dict[str, ast.AST] = {}
        self.forwards: dict[str, set[str]] = defaultdict(set)  # function → where its **kwargs go
        self._attributes: dict[str, list[str]] | None = None
        self.by_kind = False  # the file knows a framework that names its accelerators

    def reach(self, keys: Iterable[str]) -> tuple[set[str], set[str]]:
        """Kinds of sink that `keys` flow to, and the keys on the way that other files can see.

        Those are keys of other files (with `::`), `.name` keys, which all files share, and this
        file's own module variables and return values.
        """
        kinds: set[str] = set()
        outside: set[str] = set()
        seen = set(keys)
        todo = list(seen)
        while todo:
            key = todo.pop()
            if key.startswith(SINK):
                kinds.add(key[len(SINK) :])
                continue
            if self.by_kind and names_a_kind(key):
                continue
            if self.visible(key):
                outside.add(key)
            onward = (*self.edges.get(key, ()), *self._same_attribute(key), *self._forwarded(key))
            for target in onward:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return kinds, outside

    def _forwarded(self, key: str) -> Iterable[str]:
        """What a keyword that a function has no parameter for becomes: `f(**kwargs)` inside it."""
        function, _, name = key.partition("#")
        callees = self.forwards.get(function) if name and "::" not in key else None
        arguments = getattr(self.functions.get(function), "args", None) if callees else None
        if not callees or arguments is None:
            return ()
        own = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if any(each.arg == name for each in own):
            return ()
        return [f"{callee}#{name}" for callee in callees]

    def _back(self) -> dict[str, set[str]]:
        """The graph, turned round."""
        back: dict[str, set[str]] = defaultdict(set)
        for source, targets in self.edges.items():
            for target in targets:
                back[target].add(source)
        return back

    def _same_attribute(self, key: str) -> tuple[str, ...]:
        """Other keys of one attribute: `Class.x` is `.x` of its instances and its subclasses."""
        if "::" in key or "#" in key or key.endswith("()") or "." not in key:
            return ()
        name = key.rpartition(".")[2]
        if name in self.sinks.everyday:
            return ()
        if not key.startswith("."):
            return (f".{name}",)
        if self._attributes is None:
            self._attributes = defaultdict(list)
            for each in self.edges:
                if "." in each[1:] and not each.endswith("()") and not set("#:") & set(each):
                    self._attributes[each.rpartition(".")[2]].append(each)
        return tuple(self._attributes.get(name, ()))

    def connected(self, keys: Iterable[str]) -> set[str]:
        """All keys that share values with `keys`, in both directions, everyday names left out."""
        back = self._back()
        found: set[str] = set()
        todo = list(keys)
        while todo:
            key = todo.pop()
            name = key.strip("()").rpartition(".")[2].rpartition("#")[2]
            if key in found or key.startswith(SINK) or name in self.sinks.everyday:
                continue
            if self.by_kind and names_a_kind(key):
                continue
            found.add(key)
            todo += [*self.edges.get(key, ()), *back[key], *self._same_attribute(key)]
        return found

    def visible(self, key: str) -> bool:
        """Whether code of another file can read what this key holds."""
        if "<" in key:
            return False  # inside a lambda or a comprehension
        if "::" in key:
            return True
        last = key.strip(".#()").rpartition(".")[2]
        if key[0] == "." or key.endswith("()"):
            # Sinks by name are settled already, everyday names say nothing.
            return last not in self.sinks.everyday and last not in self.sinks.names
        return key[0] == "#"


def names_a_kind(key: str) -> bool:
    """Whether a key holds the name of a class that serves a device: `accelerator="cuda"`.

    Lightning and frameworks like it look such names up in tables of their own.
    """
    return "accelerator" in key and NAMES_OF_KINDS.search(key) is not None

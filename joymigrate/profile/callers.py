"""Which calls of a recording the program makes by itself, not through torch.

Inside of others, torch calls one backend's operators (`_scaled_dot_product_efficient_attention`),
and another one on another chip. A program that calls such an operator itself gets that very one on
every chip.
"""

from __future__ import annotations

import re

from joymigrate.profile.readers.sweep import BACKWARD
from joymigrate.profile.table import NONE, PHASES, Trace

COMPILER = re.compile("[Cc]ompiled|[Ii]nductor|FxGraph")  # marks around what a compiler calls
BY_GRAPH = frozenset((BACKWARD, PHASES.index("export")))


class Callers:
    """Who calls the rows of one trace. A row whose caller is not known is nobody's."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.timed = trace.kind == "recorded" and trace.steps > 0
        self.known = self.timed or (trace.tree and trace.kind != "joined")
        self.own: set[str] = set()  # what the program calls; their gradients are theirs, too

    def is_program(self, row: int) -> bool:
        """Whether the program itself asks for this call."""
        if not self.known:
            return False
        table = self.trace.ops
        name = table.names[table.name[row]].partition(".")[0]
        if table.phase[row] in BY_GRAPH:
            return name.removesuffix("_backward") in self.own
        if self.timed and (not table.self_us[row] or self.trace.inside.get(row)):
            return False  # only timed calls have those around them recorded
        above = table.parent[row]
        while above != NONE:
            if table.operator[above] or COMPILER.search(table.names[table.name[above]]):
                return False
            above = table.parent[above]
        self.own.add(name)
        return True

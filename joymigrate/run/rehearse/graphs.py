"""Captured graphs: what the program puts into a capture is kept as nodes and replayed in order.

A chip computes nothing while it captures. Here each operator is computed once all the same, so that
its results have a form and plausible numbers; at the end what was written is put back, and what the
capture made is poisoned: a program that reads a result before the first replay sees that.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.chips import Chip
from joymigrate.chips.codes import look_up_code
from joymigrate.language import Text
from joymigrate.run.rehearse import aliases
from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.run.rehearse.shim import Shim

BEGAN, ENDED, ABANDONED, DESTROYED = range(1, 5)  # as in shim/capture.c
FAILED = 507899  # of a replay: an inner error of the driver, in the runtime's published list


class GraphCaptures:
    """The graphs of one process. `active` counts captures that are under way."""

    def __init__(self, shim: Shim, record: RehearsalRecord, chip: Chip) -> None:
        self.record = record
        self.chip = chip
        self.runtime = shim.runtime
        self.active = 0
        self.last = 0
        self.current = 0
        self.nodes: dict[int, Callable[[], None]] = {}
        self.of_graph: dict[int, list[int]] = {}
        self.before: list[tuple[Any, Any]] = []  # what was there before it was written
        self.made: list[Tensor] = []
        # Kept: C holds only their addresses.
        self.hooks = (
            ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int64)(self.tell),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(self.replay),
            ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)(self.refused),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)(self.save_bytes),
        )
        self.runtime.joy_capture_hooks(*self.hooks)
        self.runtime.joy_capture_node.argtypes = [ctypes.c_void_p, ctypes.c_int64]

    def captures(self) -> bool:
        """Whether the current stream is being captured."""
        import torch_npu

        return bool(self.active and torch_npu._C._npu_isCurrentStreamCapturing())

    def tell(self, event: int, graph: int) -> None:
        """A capture began or ended, or a graph is gone."""
        if event == BEGAN:
            self.active += 1
            self.current = graph
            self.of_graph.setdefault(graph, [])
        elif event == DESTROYED:
            for number in self.of_graph.pop(graph, ()):
                self.nodes.pop(number, None)
        else:
            self.active -= 1
            self.put_back(poison=event == ENDED)

    def put_back(self, *, poison: bool) -> None:
        """Undo what was computed while capturing."""
        if poison:
            for made in self.made:
                aliases.poison(made)
        for target, saved in reversed(self.before):
            if isinstance(saved, bytes):
                ctypes.memmove(target, saved, len(saved))
            else:
                target.copy_(saved)
        self.before.clear()
        self.made.clear()

    def save(self, written: Sequence[Tensor]) -> None:
        """Keep what is about to be written."""
        with torch.inference_mode(False), torch.no_grad():
            self.before += [(tensor, tensor.clone()) for tensor in written]

    def save_bytes(self, address: int, count: int) -> None:
        """The same of memory that the runtime writes by itself."""
        if count:
            self.before.append((address, ctypes.string_at(address, count)))

    def add(self, run: Callable[[], None], made: Sequence[Tensor]) -> None:
        """One more node of the current stream's capture; `made` are aliases of its new results."""
        import torch_npu

        self.last += 1
        stream = torch_npu.npu.current_stream().npu_stream
        if self.runtime.joy_capture_node(stream, self.last):
            self.nodes[self.last] = run
            self.of_graph[self.current].append(self.last)
            self.made += made

    def replay(self, number: int) -> int:
        """Run a node; 0, or the code of an error that its traceback explains."""
        try:
            with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
                self.nodes[number]()
        except Exception:
            print("rehearsal: a node of a replayed graph failed", file=sys.stderr)
            traceback.print_exc()
            return FAILED
        return 0

    def refused(self, code: int, what: bytes) -> None:
        """The chip refuses something because a graph is being captured."""
        known = look_up_code(self.chip, str(code))
        reason = Text(f"{known.meaning} ({code})" if known else str(code))
        self.record.refuse(
            "graph capture", what.decode(), reason, code=code, dtype="", where=call_site(),
            source=known.source if known else "", grade="documented",
            remedy=known.do if known else "",
        )  # fmt: skip


def wait_for_the_stream() -> None:
    """What the package does to learn how many elements an operator found: refused in a capture."""
    torch.npu.current_stream().synchronize()  # type: ignore[attr-defined]

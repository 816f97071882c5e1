"""Builds the tree of operators from events with start and duration, thread by thread.

Events nest by time. One pass over the events, sorted by thread and start, keeps the open ones on a
stack: the parent is what is on top. Points (runtime calls) are placed into the same pass to find
the operator that a kernel belongs to.
"""

from __future__ import annotations

from array import array

import numpy as np

from joymigrate.profile.readers.names import is_operator
from joymigrate.profile.table import NONE, OpTable

EVENT, FRAME, POINT, MARK = 0, 1, 2, 3
BACKWARD, OPTIMISER, FORWARD = 2, 3, 1


class EventColumns:
    """Events as columns, filled by a reader.

    `kind` is an event (an operator, or bookkeeping by the name of it), a mark (never an operator,
    whatever its name), a Python frame (a call site of the user's), or a point (a runtime call,
    looked up later by its number in `owner`).
    """

    def __init__(self, table: OpTable) -> None:
        self.table = table
        self.kind = array("b")
        self.name = array("l")
        self.signature = array("l")
        self.place = array("l")
        self.thread = array("l")
        self.ts = array("d")
        self.dur = array("d")
        self.order = array("q")  # breaks ties: the number that the profiler gave the event
        self.threads: dict[tuple[object, object], int] = {}
        self.owner: dict[int, int] = {}  # point's number → row
        self.numbers = array("q")  # row → the number that the profiler gave the event
        self.shared: set[int] = set()  # points of several processes with one number: nobody's

    def thread_id(self, pid: object, tid: object) -> int:
        """The number of a thread. `5` and `"5"` are the same."""
        found = self.threads.get((pid, tid))
        if found is None:
            key = (str(pid), str(tid))
            found = self.threads.setdefault(key, len(self.threads))
            self.threads[(pid, tid)] = found
        return found

    def add(
        self,
        kind: int,
        thread: int,
        ts: float,
        dur: float,
        *,
        name: int = 0,
        signature: int = 0,
        place: int = 0,
        order: int = 0,
    ) -> None:
        """Take one event in."""
        self.kind.append(kind)
        self.name.append(name)
        self.signature.append(signature)
        self.place.append(place)
        self.thread.append(thread)
        self.ts.append(ts)
        self.dur.append(dur)
        self.order.append(order)

    def span_us(self) -> float:
        """From the first to the last begin of an event."""
        return max(self.ts) - min(self.ts) if len(self.ts) else 0.0

    def sorted(self) -> array[int]:
        """Numbers of the events: by thread, start, the longer first, then as recorded."""
        if not len(self.ts):
            return array("q")
        keys = (
            np.frombuffer(self.order, dtype=np.int64),
            -np.frombuffer(self.dur, dtype=np.float64),
            np.frombuffer(self.ts, dtype=np.float64),
            np.asarray(self.thread),
        )
        return array("q", np.lexsort(keys).astype(np.int64).tobytes())

    def build(self) -> None:
        """Fill the table: parents, own times, call sites and phases."""
        table = self.table
        phase_of = [phase_by_name(name) for name in table.names]
        operators = [is_operator(name) for name in table.names]
        stack: list[tuple[float, int, int, int]] = []  # end, row, place, phase
        last = NONE
        child_time = array("d")
        process = self.processes()
        launcher: dict[int, int] = {}  # point's number → process, where there are several
        for index in self.sorted():
            thread, ts, dur = self.thread[index], self.ts[index], self.dur[index]
            if thread != last:
                stack.clear()
                last = thread
            while stack and stack[-1][0] <= ts:
                stack.pop()
            _, parent, place, phase = stack[-1] if stack else (0.0, NONE, 0, 0)
            kind = self.kind[index]
            if kind == POINT:
                number = self.order[index]
                if process and launcher.setdefault(number, process[thread]) != process[thread]:
                    self.shared.add(number)
                    parent = NONE
                self.owner[number] = parent
                continue
            if kind == FRAME:
                stack.append((ts + dur, parent, self.place[index], phase))
                continue
            name = self.name[index]
            phase = phase_of[name] or phase
            own = self.place[index] or place
            row = table.add(
                name,
                signature=self.signature[index],
                parent=parent,
                tid=thread,
                ts=ts,
                dur=dur,
                self_us=dur,
                place=own,
                phase=phase,
                operator=kind == EVENT and operators[name],
            )
            self.numbers.append(self.order[index])
            child_time.append(0.0)
            if parent != NONE:
                child_time[parent] += dur
            stack.append((ts + dur, row, own, phase))
        for row, used in enumerate(child_time):
            table.self_us[row] = max(0.0, table.dur[row] - used)
        mark_forward(table)

    def processes(self) -> dict[int, int]:
        """The process of each thread that launches; empty where there is only one process."""
        points = np.frombuffer(self.kind, dtype=np.int8) == POINT if len(self.kind) else []
        launching = set(np.asarray(self.thread)[points].tolist())
        numbers: dict[str, int] = {}
        found = {
            thread: numbers.setdefault(str(pid), len(numbers))
            for (pid, _), thread in self.threads.items()
            if thread in launching
        }
        return found if len(numbers) > 1 else {}


def phase_by_name(name: str) -> int:
    """The phase that an event opens: a node of autograd, or an optimiser's step."""
    if name.startswith(("autograd::engine::evaluate_function", "torch::autograd::")):
        return BACKWARD
    if name.startswith("Optimizer.step") or name.endswith("optimizer.step"):
        return OPTIMISER
    if "::" not in name and "#" not in name and name.rstrip("0123456789").endswith("Backward"):
        return BACKWARD
    return 0


def mark_forward(table: OpTable) -> None:
    """What is neither backward nor optimiser is forward, where the trace tells them apart."""
    if not any(table.phase):
        return
    for row, phase in enumerate(table.phase):
        if not phase and table.operator[row]:
            table.phase[row] = FORWARD

"""Captured graphs: batches padded to buckets and replayed, where the device can capture.

A batch has four sizes: candidates, users, the padded length, and the tokens of jagged sequences.
Buckets of each are chosen from the traffic (`buckets`), and the combinations that come often are
captured, most frequent first, by a thread that waits until no batch runs, and compared with eager
before they answer. Everything else runs as before. `padding` says how a batch is padded.

Not run on a card: padding and buffers are tested with a capture that computes.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joymigrate.run.serve.ranking.buckets import Traffic
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.merge import Batch, merge
from joymigrate.run.serve.ranking.padding import Key, blank, least_sizes, pad_batch
from joymigrate.run.serve.ranking.program import Program, first_line
from joymigrate.run.serve.ranking.results import Gate
from joymigrate.run.serve.ranking.signature import FIXED, JAGGED, PADDED, SEQUENCE
from joymigrate.run.serve.ranking.tensors import as_arrays, close, outputs_of

if TYPE_CHECKING:
    import numpy as np
    import torch

log = logging.getLogger("joymigrate.serve")
Compute = Callable[[], Any]
Capture = Callable[[Compute, str], tuple[Compute, Any]]
BUDGET = 8  # buckets of each size
OFTEN = 16  # batches of a combination before it is captured
MOST = 64  # captured combinations: each holds its own outputs and workspace


def why_not(program: Program, alone: str) -> str:
    """Why batches cannot be captured; empty: they can."""
    if alone:
        return alone
    if program.split is not None or program.users is not None:
        return "the program runs in parts"
    for one in program.signature.inputs:
        if one.axis == FIXED:
            return f"'{one.name}' cannot be padded: it has no row for each candidate or user"
        if one.role == SEQUENCE and one.layout == PADDED and one.pad is None:
            return f"padding of '{one.name}' changes scores, or none is declared"
    if program.device == "cpu":
        return "a CPU launches nothing that could be replayed"
    return "" if graph_class(program.device) else f"torch has no graphs for {program.device}"


def graph_class(device: str) -> Any:
    """The device's own graphs: `CUDAGraph`, `NPUGraph`, …; None without."""
    import torch

    module = torch.get_device_module(device)
    kind = device.partition(":")[0].upper()
    found = getattr(module, f"{kind}Graph", None)
    return found if hasattr(module, "graph") else None


def capture(compute: Compute, device: str) -> tuple[Compute, Any]:
    """Capture on the device, after a run that lets libraries set themselves up."""
    import torch

    module: Any = torch.get_device_module(device)
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        compute()
    module.current_stream().wait_stream(side)
    graph = graph_class(device)()
    with module.graph(graph):
        result = compute()
    return graph.replay, result


@dataclass(slots=True)
class Slot:
    """A combination: its buffers, its captured computation, and where that leaves its result."""

    buffers: dict[str, torch.Tensor]
    replay: Compute
    result: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


class Captures:
    """Runs batches from captured graphs where their combination is there."""

    def __init__(self, program: Program, gate: Gate, capture: Capture = capture) -> None:
        self.program, self.gate, self.capture = program, gate, capture
        self.traffic = [Traffic(BUDGET) for _ in Key._fields]
        self.seen: Counter[Key] = Counter()
        self.slots: dict[Key, Slot] = {}
        self.unproven: set[Key] = set()
        self.failed = ""
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.stopping = False
        self.thread = threading.Thread(target=self.work, name="captures", daemon=True)

    def start(self) -> None:
        """Capture in the background."""
        self.thread.start()

    def stop(self) -> None:
        """Capture no more."""
        self.stopping = True
        self.wake.set()
        if self.thread.is_alive():
            self.thread.join(timeout=10)

    def run(self, batch: Batch) -> tuple[np.ndarray[Any, Any], ...] | None:
        """Outputs of a batch by replay; None where its combination is not captured (yet)."""
        key = self.place(least_sizes(self.program.signature, batch))
        slot = self.slots.get(key) if key is not None else None
        return None if key is None or slot is None else self.replayed(batch, key, slot)

    def replayed(self, batch: Batch, key: Key, slot: Slot) -> tuple[np.ndarray[Any, Any], ...]:
        """Outputs of a batch from a captured combination that holds it."""
        import torch

        padded = pad_batch(self.program.signature, batch.arrays, key)
        with slot.lock, torch.inference_mode():
            for name, buffer in slot.buffers.items():
                buffer.copy_(torch.from_numpy(padded[name]))
            slot.replay()
            # Copies: the next replay writes into the same memory.
            found = [one[: batch.sizes.candidates].clone() for one in as_list(slot.result)]
            return as_arrays(outputs_of(found))

    def place(self, own: Key) -> Key | None:
        """The combination that holds these sizes; counts it. None while there are no buckets."""
        with self.lock:
            for traffic, size in zip(self.traffic, own, strict=True):
                if traffic.add(max(1, size)) is not None:
                    self.drop_stale()
            found = [traffic.present.holding(max(1, size))
                     for traffic, size in zip(self.traffic, own, strict=True)]  # fmt: skip
            if None in found:
                return None
            key = Key(*(size or 0 for size in found))
            self.seen[key] += 1
            if self.seen[key] == OFTEN and not self.failed:
                self.wake.set()
        return key

    def drop_stale(self) -> None:
        """Forget combinations whose buckets are gone. Holds the lock."""
        sizes = [set(traffic.present.sizes) for traffic in self.traffic]
        for key in list(self.slots):
            if any(size not in there for size, there in zip(key, sizes, strict=True)):
                del self.slots[key]
        self.seen.clear()

    def work(self) -> None:
        """The thread: a capture that fails ends capturing, and eager goes on."""
        while True:
            self.wake.wait()
            self.wake.clear()
            if self.stopping:
                return
            try:
                while self.extend() and not self.stopping:
                    pass
            except Exception as error:
                self.failed = first_line(error)
                self.slots.clear()
                log.warning("batches are no longer captured: %s", self.failed)

    def extend(self) -> bool:
        """Capture the most frequent combination that is wanted; False: there is none."""
        with self.lock:
            known = self.slots.keys() | self.unproven
            wanted = [(count, key) for key, count in self.seen.items()
                      if count >= OFTEN and key not in known]  # fmt: skip
            if not wanted or len(self.slots) >= MOST:
                return False
            key = max(wanted)[1]
        with self.gate.change():  # no batch runs while the device records
            slot = self.make(key)
        trouble = self.disagreement(key, slot)
        if trouble is None:
            log.info("batches of %s stay eager: none could be compared", tuple(key))
            self.unproven.add(key)
            return True
        if trouble:
            raise RuntimeError(trouble)
        with self.lock:
            self.slots[key] = slot
        return True

    def disagreement(self, key: Key, slot: Slot) -> str | None:
        """Where a replay answers otherwise than eager on a random batch; empty: nowhere. None
        where no batch could be compared."""
        signature, compared = self.program.signature, 0
        jagged = any(one.layout == JAGGED for one in signature.inputs)
        most = max(1, min(3, key.users - 1, key.candidates - 1))
        # Candidates with tokens of their own: one a user, or their tokens are too many.
        for users, several in itertools.product(sorted({1, most}), (True, False)):
            each = max(1, (key.candidates - 1) // users) if several else 1
            tokens = max((key.tokens - 1) // users, min(1, key.tokens // users))
            length = min(key.length, tokens) if jagged else key.length
            batch = merge(signature, [draw(signature, each, length, seed) for seed in range(users)])
            wanted = least_sizes(signature, batch)
            if any(mine > size for mine, size in zip(wanted, key, strict=True)):
                continue  # too small a combination for this one
            with self.gate.batch():  # no version comes between the two
                try:
                    expected = as_arrays(self.program.run(batch.arrays))
                except Exception:
                    continue  # a size that this program does not take
                found = self.replayed(batch, key, slot)
            if not all(close(left, right) for left, right in zip(expected, found, strict=True)):
                return f"a captured batch of {tuple(key)} answers otherwise than eager"
            compared += 1
        return "" if compared else None

    def make(self, key: Key) -> Slot:
        """Buffers and the captured computation of one combination."""
        import torch

        program = self.program
        empty = pad_batch(program.signature, blank(program.signature), key)
        buffers = {name: torch.from_numpy(array).to(program.device)
                   for name, array in empty.items()}  # fmt: skip
        with torch.inference_mode():
            replay, result = self.capture(lambda: program.eager(**buffers), program.device)
        return Slot(buffers, replay, result)


def as_list(found: Any) -> Sequence[Any]:
    """A program's outputs, one or many."""
    import torch

    return [found] if isinstance(found, torch.Tensor) else list(found)

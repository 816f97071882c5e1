"""Captured graphs: batches padded to buckets and replayed, where the device can capture.

A batch has three sizes: candidates, users, and the padded length. Buckets of each are chosen from
the traffic (`buckets`), and the combinations that come often are captured, most frequent first, by
a thread that waits until no batch runs. Everything else runs as before. Padded candidates belong to
user 0, padded users have no history; their rows are cut off again.

Not run on a card: padding and buffers are tested with a capture that computes.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from joymigrate.run.serve.ranking.buckets import Traffic
from joymigrate.run.serve.ranking.cost import Sizes
from joymigrate.run.serve.ranking.program import Program, first_line
from joymigrate.run.serve.ranking.request import Arrays
from joymigrate.run.serve.ranking.results import Gate
from joymigrate.run.serve.ranking.signature import (
    CANDIDATE,
    LENGTHS,
    PADDED,
    SEQUENCE,
    USER,
    Signature,
)
from joymigrate.run.serve.ranking.tensors import as_arrays, outputs_of

if TYPE_CHECKING:
    import torch

log = logging.getLogger("joymigrate.serve")
Key = tuple[int, int, int]  # candidates, users, length
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
        if one.axis not in (CANDIDATE, USER) or one.role == "offsets":
            return f"'{one.name}' cannot be padded: it has no row for each candidate or user"
        if one.role == SEQUENCE and one.pad is None:
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


def captured(compute: Compute, device: str) -> tuple[Compute, Any]:
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

    def __init__(self, program: Program, gate: Gate, capture: Capture = captured) -> None:
        self.program, self.gate, self.capture = program, gate, capture
        self.traffic = [Traffic(BUDGET) for _ in range(3)]
        self.seen: Counter[Key] = Counter()
        self.slots: dict[Key, Slot] = {}
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

    def run(self, arrays: Arrays, sizes: Sizes) -> tuple[np.ndarray[Any, Any], ...] | None:
        """Outputs of a batch by replay; None where its combination is not captured (yet)."""
        key = self.place(sizes)
        slot = self.slots.get(key) if key is not None else None
        if key is None or slot is None:
            return None
        import torch

        padded = pad_batch(self.program.signature, arrays, key)
        with slot.lock, torch.inference_mode():
            for name, buffer in slot.buffers.items():
                buffer.copy_(torch.from_numpy(padded[name]))
            slot.replay()
            # Copies: the next replay writes into the same memory.
            found = [one[: sizes.candidates].clone() for one in as_list(slot.result)]
            return as_arrays(outputs_of(found))

    def place(self, sizes: Sizes) -> Key | None:
        """The combination of a batch; counts it. None while the traffic has no buckets yet."""
        own = (sizes.candidates, sizes.users, sizes.length)
        with self.lock:
            for traffic, size in zip(self.traffic, own, strict=True):
                if traffic.add(max(1, size)) is not None:
                    self.drop_stale()
            found = [traffic.present.holding(max(1, size))
                     for traffic, size in zip(self.traffic, own, strict=True)]  # fmt: skip
            if None in found:
                return None
            key: Key = tuple(size or 0 for size in found)  # type: ignore[assignment]
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
            wanted = [(count, key) for key, count in self.seen.items()
                      if count >= OFTEN and key not in self.slots]  # fmt: skip
            if not wanted or len(self.slots) >= MOST:
                return False
            key = max(wanted)[1]
        with self.gate.change():  # no batch runs while the device records
            slot = self.make(key)
        with self.lock:
            self.slots[key] = slot
        return True

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


def blank(signature: Signature) -> Arrays:
    """Arrays of no candidate, no user and no length."""
    return {
        one.name: np.zeros([0, *(0 if size is None else size for size in one.shape[1:])], one.held)
        for one in signature.inputs
    }


def pad_batch(signature: Signature, arrays: Arrays, key: Key) -> Arrays:
    """Arrays with exactly these sizes: more candidates of user 0, users without a history."""
    candidates, users, length = key
    found = {}
    for one in signature.inputs:
        array = arrays[one.name]
        shape = list(array.shape)
        shape[0] = candidates if one.axis == CANDIDATE else users
        if one.role == SEQUENCE and one.layout == PADDED and one.shape[1] is None:
            shape[1] = length
        value = one.pad if one.role == SEQUENCE and one.pad is not None else 0
        whole = np.full(shape, 0 if one.role == LENGTHS else value, one.held)
        whole[tuple(slice(0, size) for size in array.shape)] = array
        found[one.name] = whole
    return found

"""`--mode async`: what is done on which stream, seen in one process, and reported where nothing
orders it.

The clocks are kept by the simulated runtime (shim/order.c), which sees every event, wait and copy
of the package. Operators tell here what they read and write. Copies that the program need not wait
for arrive late, and pages of pinned memory are protected until then: whoever touches them, also
through numpy, is reported.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.language import Text
from joymigrate.run.rehearse.callsite import call_site, is_users, program_site
from joymigrate.run.rehearse.operator import RehearsedOperator
from joymigrate.run.rehearse.ordering import Access, Clocks, Ordering, Race, runs_of
from joymigrate.run.rehearse.record import RehearsalRecord
from joymigrate.run.rehearse.shim import Shim

CLOCK = 512  # as in shim/order.h
Stamp = tuple[int, int, Sequence[int]]  # number of the stream, number of the work in it, its clock
FRAME = re.compile(r'^  File "(.*)", line (\d+) in ')
TO_DEVICE, TO_HOST = 1, 2
AT_ONCE = 16  # entries of the runtime's list that are read at a time
COPIES_KEPT = 8192
# Models on which a non-blocking copy to the device is not ordered before what its own stream does
# next, by the beginning of the name.
UNORDERED_COPIES: Mapping[str, str] = {
    "Ascend310P": "vllm-project/vllm-ascend#11678, 2026-07-10",
}
# Copies of these are computed in the runtime, others by torch.
PLAIN = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
# These look at the form of a tensor, not at its elements.
FORM_ONLY = ("_like", "new_")
COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "all_to_all", "all_to_all_single"),
    *(
        "all_gather_single",
        "reduce_scatter_single",
        "isend",
        "irecv",
        "send",
        "recv",
        "batch_isend_irecv",
    ),
)
UNSEEN = "unknown"
HELP = {
    "order": Text("let the later stream wait: wait_stream, or an event that is recorded after it"),
    "host": Text("synchronise an event that is recorded after the copy before the host goes on"),
    "reuse": Text("record_stream before the tensor goes, or wait for the stream that uses it"),
    "loose": Text("copy with non_blocking=False, or synchronise the stream, on this model"),
}
SAYS = {
    (True, False): Text("{second} reads what {first} writes on another stream: no order"),
    (False, True): Text("{second} overwrites what {first} reads on another stream: no order"),
    (True, True): Text("{second} overwrites what {first} writes on another stream: no order"),
}


class _Logged(ctypes.Structure):
    """One entry of the runtime's list: joy_access in shim/order.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("stream", ctypes.c_uint32),
        ("sequence", ctypes.c_uint32),
        ("read", ctypes.c_uint64),
        ("read_bytes", ctypes.c_uint64),
        ("written", ctypes.c_uint64),
        ("written_bytes", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("what", ctypes.c_char_p),
        ("clock", ctypes.c_uint32 * CLOCK),
    )


class _Touch(ctypes.Structure):
    """The host touched memory that a copy uses: joy_touch in shim/order.h."""

    _fields_ = (("number", ctypes.c_uint64), ("begin", ctypes.c_uint64), ("end", ctypes.c_uint64))


class Streams:
    """The order of the work of one process."""

    def __init__(
        self, shim: Shim, record: RehearsalRecord, soc: str, nested: Callable[[], bool]
    ) -> None:
        self.runtime = shim.runtime
        self.record = record
        self.ordering = Ordering()
        self.lock = threading.RLock()
        self.loose = next((why for b, why in UNORDERED_COPIES.items() if soc.startswith(b)), "")
        self.copies: dict[int, tuple[str, str]] = {}
        self.seen: set[int] = set()  # streams
        self.counts = record.ordered
        self.nested = nested  # inside the vendor's C++, which is only looked at
        self.keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
        clock = ctypes.c_uint32 * CLOCK
        self.sequence, self.own, self.host, self.pool = ctypes.c_uint32(), clock(), clock(), clock()
        self.taken = (_Logged * AT_ONCE)()
        self.touches = (_Touch * 256)()
        import torch_npu

        self.raw_stream = torch_npu._C._npu_getCurrentRawStream
        self.enter = self.runtime.joy_order_enter
        self.enter.argtypes = [ctypes.c_void_p] * 3
        self.runtime.joy_order_waits.argtypes = [ctypes.c_void_p]
        self.runtime.joy_order_follow.argtypes = [ctypes.c_void_p] * 2
        self.listen()
        self.watch_queries(torch_npu.npu)
        self.watch_collectives()
        os.register_at_fork(after_in_child=self.forget)
        record.sources.append(self.finish)

    # ---- what operators do

    def watched(
        self, operator: RehearsedOperator, kernel: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`kernel`, with what it reads and writes told."""
        base = operator.base
        silent = operator.views and not operator.writes
        reads = not (base.endswith(FORM_ONLY[0]) or base.startswith(FORM_ONLY[1]))
        waits = operator.data_dependent

        def watching(*args: Any, **kwargs: Any) -> Any:
            if self.nested() or silent:
                return kernel(*args, **kwargs)
            values = (*args, *kwargs.values())
            given = device_tensors(values)
            index = given[0].get_device() if given else torch.npu.current_device()  # type: ignore[attr-defined]
            stream = self.raw_stream(index)
            stamp = self.begin(stream)
            result = kernel(*args, **kwargs)
            written = device_tensors(
                [kwargs.get(p) if isinstance(p, str) else args[p] if p < len(args) else None
                 for p in operator.writes]
            )  # fmt: skip
            made = [] if operator.writes else fresh(device_tensors((result,)), given)
            place = call_site()
            with self.lock:
                self.log(place, operator.name)
                outs = {id(one) for one in written}  # to write meets all that to read would
                for tensor in given if reads else ():
                    if id(tensor) not in outs:
                        self.access(tensor, False, stamp, operator.name, place)
                for tensor in written:
                    self.access(tensor, True, stamp, operator.name, place)
                for tensor in made:
                    self.allocate(tensor)
                    self.access(tensor, True, stamp, operator.name, place)
            if waits:
                self.runtime.joy_order_waits(stream)
            return result

        return watching

    def copying(
        self, operator: RehearsedOperator, kernel: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`copy_`: between host and device it is the package that copies, waits, or does not."""
        inside = self.watched(operator, kernel)

        def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
            ends = target.get_device(), source.get_device()
            plain = target.dtype in PLAIN and source.dtype in PLAIN
            if self.nested() or ends[0] == ends[1] or not plain:
                return inside(target, source, non_blocking)
            if min(ends) >= 0:
                return self.between(operator.name, kernel, target, source, non_blocking)
            to_device = ends[0] >= 0
            device = target if to_device else source
            stamp = self.begin(self.raw_stream(device.get_device()))
            place = call_site()
            with self.lock:
                self.log(place, operator.name)
                self.access(device, to_device, stamp, operator.name, place)
            result = operator.vendor.call_boxed(self.keys, target, source, non_blocking)
            with self.lock:
                self.log(place, operator.name)
                if to_device and non_blocking and self.loose:
                    after = self.begin(self.raw_stream(device.get_device()))
                    self.access(device, True, after, operator.name, place, self.loose)
            return result

        return copy

    def between(
        self, name: str, kernel: Callable[..., Any], target: Tensor, source: Tensor, *more: Any
    ) -> Any:
        """A copy from one device to another: both streams wait for each other, as the package
        makes them."""
        into, out_of = (self.raw_stream(one.get_device()) for one in (target, source))
        self.runtime.joy_order_follow(into, out_of)
        stamp = self.begin(into)
        result = kernel(target, source, *more)
        place = call_site()
        with self.lock:
            self.log(place, name)
            self.access(source, False, stamp, name, place)
            self.access(target, True, stamp, name, place)
        self.runtime.joy_order_follow(out_of, into)
        return result

    def passing(self, name: str, real: Any) -> Callable[..., Any]:
        """A kernel of the package that copies by itself: only its line is noted."""

        def pass_on(*args: Any, **kwargs: Any) -> Any:
            result = real.call_boxed(self.keys, *args, **kwargs)
            if not self.nested():
                with self.lock:
                    self.log(call_site(), name)
            return result

        return pass_on

    def allocating(self, real: Any) -> Callable[..., Any]:
        """A kernel of the package that makes memory."""

        def allocate(*args: Any, **kwargs: Any) -> Any:
            result = real.call_boxed(self.keys, *args, **kwargs)
            if not self.nested():
                with self.lock:
                    self.allocate(result)
            return result

        return allocate

    # ---- the tables

    def begin(self, stream: int) -> Stamp:
        """One more piece of work of a stream: the stream's number, the work's, and its clock."""
        with self.lock:
            number = self.enter(stream, ctypes.byref(self.sequence), self.own)
            self.see(number)
            return number, self.sequence.value, self.own[:]

    def see(self, number: int) -> None:
        """Count the streams; 0 is the host."""
        if number and number not in self.seen:
            self.seen.add(number)
            self.counts["streams"] = len(self.seen)

    def clocks(self, own: Sequence[int]) -> Clocks:
        """What a piece of work with this clock comes after, as is known now."""
        self.runtime.joy_order_known(self.host, self.pool)
        return Clocks(own, self.host, self.pool)

    def allocate(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start:
            self.ordering.allocate(start, start + storage.nbytes())

    def access(
        self,
        tensor: Tensor,
        writes: bool,
        stamp: Stamp,
        operator: str,
        place: str,
        loose: str = "",
    ) -> None:
        """A tensor is read or written by the work `stamp`."""
        size, stride, item = tuple(tensor.size()), tensor.stride(), tensor.element_size()
        low = tensor.data_ptr()
        length, runs = runs_of(size, stride, item)
        if not length or not low:
            return
        stream, sequence, own = stamp
        form = (size, stride, item)
        one = Access(
            low, low + length, runs, form, writes, stream, sequence, operator, place, loose
        )
        self.counts["accesses"] += 1
        for race in self.ordering.check(one, self.clocks(own)):
            self.tell(race)

    def log(self, place: str, operator: str) -> None:
        """What the runtime did since the last time: copies, collectives, touches by the host."""
        if self.runtime.joy_order_touched():
            self.note_touches()
        while self.runtime.joy_order_logged():
            count = self.runtime.joy_order_take(self.taken, AT_ONCE)
            for entry in self.taken[:count]:
                self.note(entry, place, operator)

    def note(self, entry: Any, place: str, operator: str) -> None:
        """One entry of the runtime's list."""
        what = entry.what.decode()
        name = operator if what.startswith("acl") else what
        clocks = self.clocks(entry.clock[:])
        self.see(entry.stream)
        if entry.number:
            self.counts["copies"] += entry.kind in (TO_DEVICE, TO_HOST)
            self.copies[entry.number] = (name, place)
            if len(self.copies) > COPIES_KEPT:
                del self.copies[next(iter(self.copies))]
        elif not what.startswith("acl"):
            self.counts["collectives"] += 1
        for low, length, writes, near in (
            (entry.read, entry.read_bytes, False, TO_DEVICE),
            (entry.written, entry.written_bytes, True, TO_HOST),
        ):
            if low and length:
                one = Access(
                    low, low + length, (), (low, length), writes, entry.stream, entry.sequence,
                    name, place,
                )  # fmt: skip
                for race in self.ordering.check(one, clocks, shared=entry.kind == near):
                    self.tell(race)

    # ---- the host

    def listen(self) -> None:
        """Be called soon after the host touched memory that a copy still uses."""

        def report(_: Any) -> int:
            try:
                with self.lock:
                    self.note_touches()
            except Exception:  # nothing may go up from here
                pass
            return 0

        self.report = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(report)
        api = ctypes.pythonapi
        say = getattr(api, "_Py_DumpTraceback", None)  # not in all versions of Python
        asked = (api.Py_AddPendingCall, self.report, say, api.PyGILState_GetThisThreadState)
        self.lines: int = self.runtime.joy_order_listen(
            *(None if one is None else ctypes.cast(one, ctypes.c_void_p) for one in asked)
        )

    def note_touches(self) -> None:
        """Who touched memory of the host before its copy was over, and where."""
        if self.runtime.joy_order_logged():
            self.log(call_site(), UNSEEN)
        for touch in self.touches[: self.runtime.joy_order_touches(self.touches)]:
            operator, where = self.copies.get(touch.number, (UNSEEN, UNSEEN))
            text = Text("the host uses a buffer before {first} on it is over", first=operator)
            place = self.stack_of(touch) or call_site()
            self.record.race("host", text, HELP["host"], (where, operator), (place, ""))

    def stack_of(self, touch: Any) -> str:
        """Where the program was, as the runtime noted it; empty where it could not."""
        if touch.end <= touch.begin:
            return ""
        text = os.pread(self.lines, touch.end - touch.begin, touch.begin).decode(errors="replace")
        found = [match.groups() for match in map(FRAME.match, text.splitlines()) if match]
        users = [(name, line) for name, line in found if is_users(name)]
        own = [(name, line) for name, line in users if "-packages" not in name] or users
        return f"{own[0][0]}:{own[0][1]}" if own else ""

    def watch_queries(self, npu: Any) -> None:
        """A program that polls an event or a stream waits for it; an allocator that does, not."""
        for kind in (npu.Event, npu.Stream):
            real = kind.query

            def query(this: Any, _real: Any = real) -> Any:
                self.runtime.joy_order_user(1)
                try:
                    return _real(this)
                finally:
                    self.runtime.joy_order_user(0)

            kind.query = query

    def watch_collectives(self) -> None:
        """Collectives run below the dispatcher: note the lines that start them."""
        import torch.distributed as dist

        for name in COLLECTIVES if dist.is_available() else ():
            real = getattr(dist, name, None)
            if real is None:
                continue

            def started(*args: Any, _real: Any = real, _name: str = name, **kwargs: Any) -> Any:
                result = _real(*args, **kwargs)
                with self.lock:
                    self.log(program_site(), _name)
                return result

            functools.update_wrapper(started, real)
            # The package compares functions that it imported with those that a program hands over.
            package = [m for n, m in list(sys.modules.items()) if n.startswith("torch_npu.")]
            for module in (dist, dist.distributed_c10d, *package):
                if vars(module).get(name) is real:
                    setattr(module, name, started)

    # ---- the report

    def tell(self, race: Race) -> None:
        """Note one race."""
        first, second = race.first, race.second
        names = {"first": first.operator, "second": second.operator}
        if race.reused:
            kind = "reuse"
            said = "{second} uses memory of a tensor that is gone while {first} still uses it"
            text = Text(said, **names)
        elif first.loose and first.stream == second.stream:
            kind = "loose"
            said = (
                "{second} uses what {first} brings to the device; on this model nothing orders "
                "the two ({source})"
            )
            text = Text(said, source=first.loose, **names)
        else:
            kind = "order"
            text = Text(SAYS[first.writes, second.writes], **names)
        self.record.race(
            kind, text, HELP[kind], (first.where, first.operator), (second.where, second.operator)
        )

    def finish(self, record: RehearsalRecord) -> None:
        """At the end of the process: what was done since the last operator."""
        if not record.finished:
            return  # a thread that only saves: the line would be lost
        with self.lock:
            self.log(UNSEEN, UNSEEN)

    def forget(self) -> None:
        """In a forked child: the parent's streams and copies are not its own."""
        self.lock = threading.RLock()
        self.ordering = Ordering()
        self.copies.clear()
        self.runtime.joy_order_forget()
        self.counts = self.record.ordered
        self.seen.clear()


def device_tensors(values: Sequence[Any]) -> list[Tensor]:
    """The tensors on a device, also in sequences."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.get_device() >= 0 and value.layout is torch.strided:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += device_tensors(value)
    return found


def fresh(results: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """The results that have memory of their own."""
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    return [one for one in results if one.untyped_storage().data_ptr() not in known]

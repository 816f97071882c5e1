"""Times of the recorded steps: torch's own profiler, and its trace joined to the operators."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.profile.recorder.arguments import TensorKey
from joymigrate.profile.recorder.loading import MARK
from joymigrate.profile.recorder.operators import RecordedCall

BACKWARD = "autograd::engine::evaluate_function"
OPTIMISER = "Optimizer.step#"
LOADER = "enumerate(DataLoader)#"


class Timer:
    """torch.profiler over a number of steps. One export, no tables: those cost seconds."""

    def __init__(self, *, stack: bool) -> None:
        import torch
        from torch.profiler import profile, supported_activities

        options: dict[str, Any] = {}
        make = getattr(torch._C._profiler, "_ExperimentalConfig", None)
        if make is not None:
            try:
                options["experimental_config"] = make(capture_overload_names=True, verbose=stack)
            except TypeError:  # before overload names were recorded
                options["experimental_config"] = make(verbose=stack)
        self.profile = profile(
            activities=supported_activities(),  # type: ignore[no-untyped-call]
            record_shapes=True,
            with_stack=stack,
            **options,
        )
        self.step_us: list[float] = []
        self.began = 0.0
        self.mark_of_step: Any = None

    def start(self) -> None:
        """Start before the first timed step."""
        with quiet():
            self.profile.start()
        self.open_step()
        self.began = time.perf_counter()

    def step(self) -> None:
        """One step is over, another begins."""
        self.mark()
        self.close_step()
        self.open_step()
        self.began = time.perf_counter()

    def open_step(self) -> None:
        """Mark the step in the trace, as torch's own schedule would."""
        import torch

        name = f"ProfilerStep#{len(self.step_us)}"
        self.mark_of_step = torch.autograd.profiler.record_function(name)
        self.mark_of_step.__enter__()

    def close_step(self) -> None:
        """End the step's mark."""
        if self.mark_of_step is not None:
            self.mark_of_step.__exit__(None, None, None)
            self.mark_of_step = None

    def mark(self) -> None:
        """Note how long the step took."""
        self.step_us.append((time.perf_counter() - self.began) * 1e6)

    def stop(self, path: Path) -> None:
        """Stop, and write the Chrome trace (gzip)."""
        self.close_step()
        with quiet():
            self.profile.stop()
        scratch = path.with_name(f".{path.name}.new.json.gz")
        self.profile.export_chrome_trace(str(scratch))
        scratch.replace(path)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the profiler prints about itself off the program's stderr; pass the rest on."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # a program without stderr
        yield
        return
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            lines = [line for line in said if not line.startswith(b"USDT:")]
            if lines:
                os.write(2, b"".join(lines))


@dataclass(slots=True)
class TraceEvent:
    """One operator of the trace, with what it contains."""

    name: str
    start_us: float
    end_us: float
    phase: str
    dims: Any
    device_us: float
    parents: tuple[str, ...]


@dataclass(slots=True)
class Times:
    """Time per (operator, phase, shapes), and of what is no operator; all of one step."""

    by_key: dict[Any, list[TraceEvent]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[str, float] = field(default_factory=dict)
    device: bool = False


def join(path: Path, signatures: Iterable[RecordedCall], steps: int) -> dict[str, float]:
    """Give each signature its share of the trace's time. Returns µs per step of other spans."""
    signatures = list(signatures)
    wanted = {full(s.op, s.overload) for s in signatures} | {s.op for s in signatures}
    # Names of Python frames that are gone by the end may hold any bytes.
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        events = json.load(file)["traceEvents"]
    times = read(events, wanted)
    fuller = any("." in name for name in (e.get("name", "") for e in events) if "aten::" in name)
    levels: list[dict[Any, list[RecordedCall]]] = [defaultdict(list), defaultdict(list)]
    for signature in signatures:
        name = full(signature.op, signature.overload) if fuller else signature.op
        phase = signature.phase if signature.phase in ("backward", "optimiser") else "forward"
        levels[0][(name, phase, dims(signature.args))].append(signature)
        levels[1][(name, phase)].append(signature)
    for key, found in times.by_key.items():
        takers = levels[0].get(key) or levels[1].get(key[:2])
        if not takers:
            continue
        calls = sum(s.calls for s in takers)
        cpu = sum(e.end_us - e.start_us for e in found) / steps
        device = sum(e.device_us for e in found) / steps
        for taker in takers:
            share = taker.calls / calls
            taker.cpu_us += cpu * share
            taker.self_us += (device if times.device else cpu) * share
            taker.parents = taker.parents or found[0].parents
    return {name: us / steps for name, us in times.spans.items()}


def full(op: str, overload: str) -> str:
    """The profiler's name of an operator with its overload."""
    return f"{op}.{overload}" if overload else op


def dims(args: Iterable[Any]) -> tuple[Any, ...]:
    """Shapes of the tensor arguments, in order: what a trace and a signature both have."""
    return tuple(arg[1] for arg in args if isinstance(arg, TensorKey))


def trace_dims(args: dict[str, Any]) -> tuple[Any, ...]:
    """The same of a trace's event; arguments that are no tensor have an empty type there."""
    shapes, types = args.get("Input Dims") or [], args.get("Input type") or []
    return tuple(
        tuple(shape)
        for shape, kind in zip(shapes, types, strict=False)
        if kind not in ("", "Scalar", "ScalarList", "TensorList", "GenericList")
        and not any(isinstance(n, list) for n in shape)
    )


def read(events: list[dict[str, Any]], wanted: set[str]) -> Times:
    """The wanted operators of each thread, topmost ones only, with their phase."""
    times = Times()
    kernels: dict[int, float] = defaultdict(float)
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") != "X":
            continue
        kind = event.get("cat")
        if kind in ("cpu_op", "user_annotation"):
            threads[event.get("tid")].append(event)
        elif kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            times.device = True
            kernels[event.get("args", {}).get("External id", -1)] += event["dur"]
    for found in threads.values():
        found.sort(key=lambda e: (e["ts"], -e["dur"]))
        walk(found, wanted, kernels, times)
    return times


def walk(
    events: list[dict[str, Any]], wanted: set[str], kernels: dict[int, float], times: Times
) -> None:
    """One thread's events, in order of start; what is open is a stack."""
    stack: list[
        tuple[float, str, TraceEvent | None]
    ] = []  # end, name, the wanted operator it is in
    for event in events:
        start, name = event["ts"], event["name"]
        while stack and stack[-1][0] <= start:
            stack.pop()
        end = start + event["dur"]
        inside = stack[-1][2] if stack else None
        if inside is not None:
            inside.device_us += kernels.get(event.get("args", {}).get("External id", -2), 0.0)
        elif event["cat"] == "user_annotation":
            outer = not any(entry[1].startswith((LOADER, MARK)) for entry in stack)
            if outer or not name.startswith((LOADER, MARK)):
                note_span(name, event["dur"], times)
        elif name in wanted:
            names = [entry[1] for entry in stack]
            args = event.get("args", {})
            inside = TraceEvent(
                name,
                start,
                end,
                phase_of(names),
                trace_dims(args),
                kernels.get(args.get("External id", -2), 0.0),
                tuple(n for n in names if "::" in n and not n.startswith("autograd::")),
            )
            times.by_key[(name, inside.phase, inside.dims)].append(inside)
        stack.append((end, name, inside))


def phase_of(names: list[str]) -> str:
    """The phase by what encloses an operator."""
    for name in names:
        if name.startswith(BACKWARD):
            return "backward"
        if name.startswith(OPTIMISER):
            return "optimiser"
    return "forward"


def note_span(name: str, us: float, times: Times) -> None:
    """Time of a named region: data loader, optimiser, zero_grad."""
    for prefix, key in (
        (LOADER, "loader_us"),
        (MARK, "loader_us"),
        (OPTIMISER, "optimiser_us"),
        ("Optimizer.zero_grad#", "zero_grad_us"),
    ):
        if name.startswith(prefix):
            times.spans[key] = times.spans.get(key, 0.0) + us

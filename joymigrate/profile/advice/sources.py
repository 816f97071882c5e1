"""From a file to what detectors look at: a recording, another trace, or a profile of the chip."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.profile import capture, readers
from joymigrate.profile.advice.advise import EMPTY, Advice, AdviceSubject, advise, rank
from joymigrate.profile.advice.rules import AdviceRule, load_rules
from joymigrate.profile.advice.support import ChipSupport
from joymigrate.profile.capture import Capture, CapturedOperator
from joymigrate.profile.oplist import lists
from joymigrate.profile.oplist.aten import AtenTable
from joymigrate.profile.recorder.loading import MARK
from joymigrate.profile.support import split_name
from joymigrate.profile.table import CallSignature, OperatorRow, Trace

SPANS = {
    "enumerate(DataLoader)#": "loader_us",
    MARK: "loader_us",
    "Optimizer.step#": "optimiser_us",
    "Optimizer.zero_grad#": "zero_grad_us",
}
COPY, STEP = "copy", "ProfilerStep"
LOADING = tuple(prefix for prefix, span in SPANS.items() if span == "loader_us")


def subjects(
    path: Path, chip: Chip, *, version: str | None = None
) -> Iterator[tuple[AdviceSubject, str]]:
    """What is at `path`, with what the rules need for it (`trace` or `chip_profile`)."""
    if not path.exists():
        raise JoyError("there is no such file", where=str(path))
    for reader in chip_profiles():
        if reader.find(path) is not None and path.name != reader.EVENTS:
            yield AdviceSubject(EMPTY, chip, profile=reader.read(path)), "chip_profile"
            return
        if folders := reader.find_ranks(path):
            ranks = [reader.read(folder) for folder in folders]
            group = reader.join_ranks(path, ranks)
            yield from ((AdviceSubject(EMPTY, chip, profile=one), "chip_profile") for one in ranks)
            yield AdviceSubject(EMPTY, chip, profile=group), "rank_profiles"
            return
    oplist = lists.of(chip, version)
    if path.is_file() and readers.detect(path) == "recorded":
        yield AdviceSubject(capture.load(path), chip, ChipSupport(oplist)), "trace"
        return
    for trace in readers.read_all([path]):
        support = ChipSupport(oplist, overloads=trace.overloads)
        made = from_trace(trace, oplist.resolver.table)
        if not made.operators and not made.copies:
            raise JoyError(
                "no operators in this recording: there is nothing to advise on",
                where=str(trace.path),
                help="record with CPU activities, or with joymigrate profile record",
            )
        yield AdviceSubject(made, chip, support), "trace"


@functools.cache
def chip_profiles() -> tuple[ModuleType, ...]:
    """Readers of profiles made on chips: the files `*_profile.py` of this folder."""
    package = __name__.rpartition(".")[0]
    names = [info.name for info in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    return tuple(
        importlib.import_module(f"{package}.{name}") for name in names if name.endswith("_profile")
    )


def advise_all(
    paths: Iterable[Path],
    chip: Chip,
    *,
    version: str | None = None,
    wanted: Iterable[str] = (),
    unwanted: Iterable[str] = (),
) -> list[Advice]:
    """The advice on all files, ranked. `wanted` and `unwanted` are ids of rules."""
    rules = select_rules(load_rules(chip), set(wanted), set(unwanted))
    found: list[Advice] = []
    for path in paths:
        for subject, needs in subjects(path, chip, version=version):
            found += advise(subject, rules, needs=needs)
    return rank(found)


def select_rules(
    rules: tuple[AdviceRule, ...], wanted: set[str], unwanted: set[str]
) -> tuple[AdviceRule, ...]:
    """The rules that were asked for; unknown ids are an error."""
    from joymigrate.errors import did_you_mean

    known = {rule.id for rule in rules}
    for name in sorted((wanted | unwanted) - known):
        raise JoyError(f"no advice is called '{name}'.{did_you_mean(name, known)}")
    return tuple(r for r in rules if r.id not in unwanted and (not wanted or r.id in wanted))


def from_trace(trace: Trace, table: AtenTable) -> Capture:
    """A trace of another tool as a recording. Order stands in for data flow.

    Composite operators are opened: what lies below them is what a device computes.
    """
    composites = {base for base in table.bases if implicit(table, base)}
    operators: dict[Any, list[Any]] = {}
    stream: list[tuple[int, tuple[int, ...]]] = []
    last: dict[int, int] = {}
    taken: dict[int, bool] = {}
    loading: dict[int, bool] = {}  # inside a loader: one in another is not counted again
    timed_on_device = any(us for us in trace.ops.device_us)
    steps = max(1, trace.steps)
    order: dict[Any, int] = {}
    header: dict[str, Any] = {"device": trace.device, "spans": {}, "step_us": []}
    optimiser: dict[int, str] = {}  # rows inside an optimiser's step, with its class
    updates: dict[str, Counter[str]] = {}
    for row in trace.ops.rows():
        inside = taken.get(row.parent, False)
        base = split_name(row.name)[1]
        own = row.operator and not inside and base not in composites
        taken[row.index] = inside or own
        loads = row.name.startswith(LOADING)
        loading[row.index] = loads or loading.get(row.parent, False)
        optimiser[row.index] = class_of(row.name) or optimiser.get(row.parent, "")
        if own and optimiser[row.index]:
            updates.setdefault(optimiser[row.index], Counter())[base] += row.calls
        if not row.operator and not (loads and loading.get(row.parent, False)):
            note(header, row, steps)
        time = row.device_us if timed_on_device else row.self_us
        if inside:
            key = top(trace, row, taken)
            if key in order:
                operators[key][1] += time / steps
            continue
        if not own:
            continue
        key = (row.name, row.signature, row.phase, row.place)
        if key not in operators:
            order[key] = len(order)
            operators[key] = [0, 0.0, parents(trace, row)]
        operators[key][0] += row.calls
        operators[key][1] += time / steps
        call = len(stream)
        stream.append((order[key], (last[row.tid],) if row.tid in last else ()))
        last[row.tid] = call
    made = tuple(build_operator(key, *values, steps=steps) for key, values in operators.items())
    header["optimisers"] = [describe_optimiser(*one, steps) for one in updates.items()]
    copies = tuple(
        replace(one, calls=max(1, round(one.calls / steps)), device_us=one.device_us / steps)
        for one in trace.kernels if one.core == COPY
    )  # fmt: skip
    return Capture(trace.path, header, made, tuple(stream), copies=copies, flow=False,
                   device_us=trace.device_us / steps, shapes=count_shapes(trace))  # fmt: skip


def class_of(name: str) -> str:
    """`AdamW` of `Optimizer.step#AdamW.step`; empty for what is no such mark."""
    return name.partition("#")[2].partition(".")[0] if name.startswith("Optimizer.step#") else ""


def describe_optimiser(name: str, updates: Counter[str], steps: int) -> dict[str, Any]:
    """How an optimiser goes through its tensors, by the operators inside its steps.

    One by one, each tensor takes every in-place operator at least once.
    """
    alone = [calls for base, calls in updates.items() if base.endswith("_") and base[0] != "_"]
    often = [calls for calls in alone if 2 * calls >= max(alone)]
    many = any(base.startswith("_foreach_") for base in updates)
    fused = any(base.startswith("_fused_") for base in updates)
    tensors = round(min(often, default=0) / steps)
    return {"class": name, "foreach": many, "fused": fused, "tensors": tensors, "seen": True}


def count_shapes(trace: Trace) -> tuple[int, int, str]:
    """Steps that bring an operator with new inputs, steps in all, and the place of the last one.

    Steps are the profiler's marks.
    """
    table, known, place = trace.ops, set(), ""
    inside: dict[int, int] = {}
    steps: dict[int, bool] = {}
    for row, parent in enumerate(table.parent):
        if table.names[table.name[row]].startswith(STEP):
            inside[row] = row
            steps[row] = False
        elif parent in inside:
            inside[row] = inside[parent]
            key = (table.name[row], table.signature[row])
            shaped = table.signatures[table.signature[row]].dims
            if table.operator[row] and shaped and key not in known:
                known.add(key)
                steps[inside[row]] = True
                place = table.places[table.place[row]] or place
    return sum(steps.values()), len(steps), place or STEP


def implicit(table: AtenTable, base: str) -> bool:
    """Whether torch makes all overloads of a name out of other operators, out variants aside."""
    plain = [name for name in table.bases[base] if not lists.is_out(name)]
    return bool(plain) and all(table.ops[name].composite == "implicit" for name in plain)


def note(header: dict[str, Any], row: OperatorRow, steps: int) -> None:
    """Marks of torch: steps, the data loader, the optimiser."""
    if row.name.startswith("ProfilerStep#"):
        header["step_us"].append(row.dur)
    for prefix, span in SPANS.items():
        if row.name.startswith(prefix):
            header["spans"][span] = header["spans"].get(span, 0.0) + row.dur / steps


def top(trace: Trace, row: OperatorRow, taken: dict[int, bool]) -> Any:
    """The key of the operator around `row` that stands in the recording."""
    index = row.parent
    ops = trace.ops
    while ops.parent[index] >= 0 and taken.get(ops.parent[index], False):
        index = ops.parent[index]
    found = ops.row(index)
    return (found.name, found.signature, found.phase, found.place)


def parents(trace: Trace, row: OperatorRow) -> tuple[str, ...]:
    """Operators around a row, outermost first."""
    names, index = [], row.parent
    while index >= 0:
        if trace.ops.operator[index]:
            names.append(trace.ops.names[trace.ops.name[index]].partition(".")[0])
        index = trace.ops.parent[index]
    return tuple(reversed(names))


def build_operator(
    key: Any, calls: int, us: float, around: tuple[str, ...], *, steps: int
) -> CapturedOperator:
    """One operator of a trace."""
    name, signature, phase, place = key
    namespace, base, overload = split_name(name)
    return CapturedOperator(
        op=f"{namespace}::{base}",
        overload=overload or "",
        args=arguments(signature),
        kwargs={},
        outputs=(),
        calls=max(1, round(calls / steps)),
        self_us=us,
        phase=phase or "forward",
        where=place or None,
        module=None,
        parents=around,
    )


def arguments(signature: CallSignature) -> tuple[Any, ...]:
    """Arguments as a recording has them; row-major strides where none were recorded."""
    found: list[Any] = []
    for index, dtype in enumerate(signature.dtypes):
        dims = signature.dims[index] if index < len(signature.dims) else None
        if not dtype or dims is None or any(isinstance(n, (list, tuple)) for n in dims):
            found.append(None)
            continue
        known = signature.strides[index] if index < len(signature.strides) else None
        stride = list(known) if known else row_major(dims)
        found.append(
            {
                "dtype": dtype,
                "shape": list(dims),
                "stride": stride,
                "device": "",
                "requires_grad": False,
            }
        )
    return tuple(found)


def row_major(shape: Any) -> list[int]:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(1, n)
    return strides[::-1]

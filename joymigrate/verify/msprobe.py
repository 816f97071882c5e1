"""Reads dumps of msprobe (`dump.json`, with `dump_tensor_data` where it was kept) as one side.

Written against mindstudio-probe 26.2.0. Only statistics are known of most dumps, and two runs that
are both free: errors add up along the way, so the first module whose inputs agree and whose
outputs don't is named, and what follows from it is no failure of its own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.verify.findings import follow
from joymigrate.verify.model import (
    Difference,
    Outcome,
    Record,
    RecordCoverage,
    RecordStatus,
    Verdict,
    one_stage,
    place_of,
)
from joymigrate.verify.tolerance import Tolerance

STAGE = "S5"
DUMP = "dump.json"
TENSORS = "dump_tensor_data"
STEP = re.compile(r"step(\d+)")
MODULE = re.compile(
    r"Module\.(?P<name>.+)\.\w+\.(?P<way>forward|backward|parameters_grad)\.(?P<n>\d+)"
)
API = re.compile(r"(?P<name>\w+\.\w+)\.(?P<n>\d+)\.(?P<way>forward|backward)")
# What msprobe calls the tensors of a call → our kinds; its backward input is the outputs' gradient.
KINDS = {
    ("forward", "input_args"): "in",
    ("forward", "input_kwargs"): "in",
    ("forward", "output"): "out",
    ("forward", "parameters"): "param",
    ("backward", "input"): "gout",
    ("backward", "output"): "gin",
}
INPUTS = {"in": "forward", "param": "forward", "gout": "backward"}

Key = tuple[str, int, str, str]


@dataclass(frozen=True, slots=True)
class DumpSide:
    """One run's records by place, and where tensors lie, if they were kept."""

    name: str
    records: Mapping[Key, Record]
    scalars: Mapping[Key, Any]
    tensors: Mapping[Key, Path]


def is_dump(path: Path) -> bool:
    """Whether `path` is such a dump: its file, a step's folder, or the whole folder."""
    if path.is_file():
        return path.name == DUMP
    return path.is_dir() and bool(found_dumps(path))


def found_dumps(path: Path) -> dict[int, Path]:
    """step → dump.json of the lowest rank below a folder."""
    found: dict[int, Path] = {}
    for file in sorted(path.glob(f"**/{DUMP}"), key=str):
        match = STEP.search(file.relative_to(path.parent).as_posix())
        found.setdefault(int(match.group(1)) if match else 0, file)
    return found


def read_dump(path: Path, step: int | None = None) -> DumpSide:
    """One step of a dump (default: the first); `JoyError` for what is none."""
    if path.is_dir():
        files = found_dumps(path)
        if not files or (step is not None and step not in files):
            have = ", ".join(map(str, files)) or "none"
            raise JoyError(
                f"no dump of step {step if step is not None else 0}; there is {have}",
                where=str(path),
            )
        path = files[min(files) if step is None else step]
    try:
        raw = json.loads(path.read_bytes())
        data = raw["data"]
        pairs = list(data.items())
    except OSError as error:
        raise JoyError(f"cannot read the dump: {error.strerror}", where=str(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise JoyError("not a dump.json of msprobe: it has no `data`", where=str(path)) from None
    if not pairs:
        raise JoyError("the dump is empty", where=str(path), help="was debugger.start() called?")
    return collect_dump(path, pairs, raw.get("dump_data_dir"))


def collect_dump(path: Path, pairs: Sequence[tuple[str, Any]], folder: str | None) -> DumpSide:
    """All tensors and scalars of a dump, in its order."""
    records: dict[Key, Record] = {}
    scalars: dict[Key, Any] = {}
    tensors: dict[Key, Path] = {}
    beside = path.parent / TENSORS
    for name, call in pairs:
        for key, value in leaves(str(name), call):
            if not isinstance(value, Mapping):
                continue
            if "dtype" not in value:
                scalars[key] = value.get("value")
                continue
            records[key] = record(key, value, len(records))
            file = beside / str(value.get("data_name") or "")
            if value.get("data_name") and file.parent == beside and file.is_file():
                tensors[key] = file
    return DumpSide(str(path), records, scalars, tensors)


def leaves(name: str, call: Any) -> Iterator[tuple[Key, Any]]:
    """(module, call, kind, leaf) of everything in one entry."""
    match = MODULE.fullmatch(name) or API.fullmatch(name)
    if match is None or not isinstance(call, Mapping):
        return
    module, number, way = match["name"], int(match["n"]), match["way"]
    if way == "parameters_grad":
        for leaf, values in call.items():
            for value in values if isinstance(values, list) else [values]:
                yield (module, number, "grad", str(leaf)), value
        return
    for part, values in call.items():
        kind = KINDS.get((way, part))
        if kind is None:
            continue
        yield from flat((module, number, kind), values, "kwargs" if part == "input_kwargs" else "")


def flat(place: tuple[str, int, str], values: Any, leaf: str) -> Iterator[tuple[Key, Any]]:
    """Leaves of nested lists and mappings; a mapping with a type is one."""
    if isinstance(values, list):
        for index, value in enumerate(values):
            yield from flat(place, value, f"{leaf}.{index}".lstrip("."))
    elif isinstance(values, Mapping) and "type" in values:
        yield (*place, leaf), values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield from flat(place, value, f"{leaf}.{name}".lstrip("."))


def record(key: Key, value: Mapping[str, Any], order: int) -> Record:
    """Statistics of one tensor."""
    module, call, kind, leaf = key
    numbers = tuple(real(value.get(name)) for name in ("Max", "Min", "Mean", "Norm"))
    return Record(
        step=0,
        module=module,
        call=call,
        kind=kind,
        leaf=leaf,
        dtype=str(value["dtype"]).removeprefix("torch."),
        shape=tuple(value.get("shape") or ()),
        stats=(numbers[0], numbers[1], numbers[2], numbers[3]),
        order=order,
    )


def real(value: Any) -> float:
    """A statistic as a number; texts such as "nan" too, nothing as NaN."""
    if isinstance(value, bool):
        return float(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def read_side(path: Path, step: int | None = None) -> DumpSide:
    """A dump, or a bundle's step (tensors of a bundle are not used here)."""
    if is_dump(path):
        return read_dump(path, step)
    from joymigrate.verify.bundle import open_bundle

    rank = open_bundle(path).rank(0)
    table = rank.table(rank.steps[0] if step is None else step)
    found = {(r.module, r.call, r.kind, r.leaf): r for r in table}
    return DumpSide(str(path), found, {}, {})


def compare(baseline: Path, target: Path, tolerance: Tolerance, step: int | None = None) -> Verdict:
    """The verdict of stage S5; at least one side is a dump."""
    ours, theirs = read_side(baseline, step), read_side(target, step)
    rows = [
        *scalar_rows(ours, theirs),
        *(row(key, ours, theirs, tolerance) for key in ours.records),
    ]
    rows = blame_first(rows)
    compared = sum(r.status.compared for r in rows)
    share = compared / len(rows) if rows else 0.0
    missing = tuple(dict.fromkeys(r.module for r in rows if not r.status.compared))
    coverage = RecordCoverage(share, compared, len(rows), tolerance.module_coverage, missing[:50])
    failed = next((r for r in rows if r.status.failed), None)
    outcome, reasons, place = Outcome.PASS, [], None
    if failed is not None:
        place = place_of(failed, evidence=failed.reason)
        outcome, reasons = Outcome.FAIL, [f"{failed.module} ({failed.phase}): {failed.metric}"]
    elif not coverage.enough:
        outcome = Outcome.INCONCLUSIVE
        reasons = [f"{compared} of {len(rows)} records are in both runs"]
    depth = [
        {"module": r.module, "order": r.order, "step": step or 0, "error": r.value}
        for r in rows
        if r.op == "out" and r.value is not None and math.isfinite(r.value)
    ]
    sides = [{"source": side.name} for side in (ours, theirs)]
    growth = {"depth": depth}
    return one_stage(
        STAGE, outcome, coverage, rows, place, reasons,
        baseline=sides[0], target=sides[1], growth=growth,
    )  # fmt: skip


def scalar_rows(ours: DumpSide, theirs: DumpSide) -> Iterator[Difference]:
    """Arguments that are no tensors and differ: eps, p, shapes."""
    for (module, call, kind, leaf), value in ours.scalars.items():
        other = theirs.scalars.get((module, call, kind, leaf), value)
        if other != value:
            yield Difference(
                module,
                call,
                "forward",
                leaf,
                "argument",
                None,
                None,
                RecordStatus.META_DIFF,
                STAGE,
                reason=f"{value!r} became {other!r}",
            )


def row(key: Key, ours: DumpSide, theirs: DumpSide, tolerance: Tolerance) -> Difference:
    """One tensor of the baseline against the target's."""
    module, call, kind, leaf = key
    base, other = ours.records[key], theirs.records.get(key)
    phase = INPUTS.get(kind) or ("forward" if kind == "out" else "backward")

    def made(
        status: RecordStatus,
        metric: str,
        value: float | None = None,
        limit: float | None = None,
        reason: str | None = None,
    ) -> Difference:
        return Difference(
            module, call, phase, kind, metric, value, limit, status, STAGE, step=base.step,
            reason=reason or f"{kind} {leaf}", order=base.order,
        )  # fmt: skip

    if other is None:
        return made(RecordStatus.UNCOMPARED, "not in the target")
    if base.shape != other.shape:
        return made(RecordStatus.FAIL, "shape", reason=f"{base.shape} became {other.shape}")
    odd = [math.isfinite(v) for v in base.stats] != [math.isfinite(v) for v in other.stats]
    if odd:
        return made(RecordStatus.NAN_MISMATCH, "inf or nan on one side alone")
    limit = tolerance.limit_of(STAGE, "statistics", base.dtype)
    fail = limit * tolerance.limit(STAGE, "statistics_fail")
    if key in ours.tensors and key in theirs.tensors:
        value, metric = distance(ours.tensors[key], theirs.tensors[key]), "relative L2 error"
    else:
        value, metric = statistics_apart(base, other), "relative difference of statistics"
    status = (
        RecordStatus.FAIL
        if value > fail
        else RecordStatus.WARN
        if value > limit
        else RecordStatus.PASS
    )
    if base.stats == other.stats and value == 0:
        status = RecordStatus.IDENTICAL
    return made(status, metric, value, fail)


def statistics_apart(a: Record, b: Record) -> float:
    """The largest difference among norm, extremes and mean, each in its own scale."""
    high, low, _, norm = a.stats
    if not all(map(math.isfinite, a.stats)):
        return 0.0
    count = math.prod(a.shape) or 1
    extreme = max(abs(high), abs(low)) or 1e-30
    scales = (extreme, extreme, max(norm / math.sqrt(count), 1e-30), norm or 1e-30)
    pairs = zip(a.stats, b.stats, scales, strict=True)
    # The mean of many values hides in rounding: it counts against the values' own size.
    return max(abs(x - y) / scale for x, y, scale in pairs)


def distance(a: Path, b: Path) -> float:
    """Relative L2 error of two kept tensors; inf where their sizes differ."""
    import numpy as np

    x, y = load(a), load(b)
    if x.shape != y.shape:
        return math.inf
    norm = float(np.linalg.norm(x)) or 1e-30
    return float(np.linalg.norm(x - y)) / norm


def load(path: Path) -> Any:
    """A kept tensor as float64; pickles are not executed."""
    import numpy as np

    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False).astype(np.float64).reshape(-1)
        import torch

        tensor = torch.load(path, map_location="cpu", weights_only=True)
        return tensor.detach().double().reshape(-1).numpy()
    except Exception as error:  # whatever a damaged file makes a reader say
        first = str(error).strip().splitlines()[:1]
        raise JoyError(f"cannot read the tensor: {' '.join(first)}", where=str(path)) from None


def blame_first(rows: Sequence[Difference]) -> list[Difference]:
    """The first failure stays one; those behind it are its consequences."""
    found = sorted(rows, key=lambda row: row.order)
    culprit = next((row for row in found if row.status.failed), None)
    if culprit is None:
        return found
    found = follow(found, culprit)
    if culprit.op in INPUTS and culprit.op != "param":
        # Nothing recorded made this input: the data themselves differ.
        told = replace(culprit, reason=f"{culprit.reason}: an input, before any module")
        found[found.index(culprit)] = told
    return found

"""Two traces of the same work on two devices: where the second one loses time.

Operators of the two sides go by different names (a fused kernel here, its parts there), so they
are compared at three heights: by operator, by module and by phase. Operators are paired by their
name behind the aliases of backends, so that `cudnn_convolution` meets `convolution`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile import aliases, capture, readers
from joymigrate.profile.aliases import Aliases
from joymigrate.profile.capture import Capture, CapturedOperator
from joymigrate.profile.support import split_name

HEIGHTS = ("operators", "modules", "phases")


@dataclass(frozen=True, slots=True)
class OperatorPair:
    """One thing on both sides; times in µs of one step. A side that lacks it has 0 calls."""

    name: str
    calls: tuple[int, int]
    us: tuple[float, float]
    where: str | None = None
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # as each side calls it

    @property
    def lost_us(self) -> float:
        """Time that the second side takes more."""
        return self.us[1] - self.us[0]

    @property
    def ratio(self) -> float | None:
        """How many times as long the second side takes; None where the first has nothing."""
        return self.us[1] / self.us[0] if self.us[0] else None


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """The comparison: pairs of each height, the largest loss first."""

    baseline: str
    target: str
    devices: tuple[str, str]
    total_us: tuple[float, float]
    pairs: Mapping[str, tuple[OperatorPair, ...]]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Sum:
    """Calls and time of one name on both sides."""

    calls: list[int]
    us: list[float]
    names: list[dict[str, float]]
    where: str | None = None


def diff(baseline: Path, target: Path, *, own: Path | None = None) -> TraceDiff:
    """Compare two traces of any known kind. `own` is a file of aliases of the target's chip."""
    sides = [read(path) for path in (baseline, target)]
    known = aliases.load(own)
    notes = [note for side in sides for note in doubts(side)]
    modules = [common_prefix(side) for side in sides]
    keys: dict[str, Any] = {
        "operators": lambda operator, side: plain(operator, known),
        "modules": lambda operator, side: module(operator, modules[side]),
        "phases": lambda operator, side: operator.phase,
    }
    pairs = {height: rank_pairs(sides, key) for height, key in keys.items()}
    if not any(operator.module for side in sides for operator in side.operators):
        notes.append("neither trace names modules: record with `joymigrate profile record`")
    return TraceDiff(
        str(baseline),
        str(target),
        (device(sides[0]), device(sides[1])),
        (total(sides[0]), total(sides[1])),
        pairs,
        tuple(notes),
    )


def read(path: Path) -> Capture:
    """One side: a recording, or another trace."""
    if not path.exists():
        raise JoyError("there is no such file", where=str(path))
    if path.is_file() and readers.detect(path) == "recorded":
        return capture.load(path)
    from joymigrate.profile.advice.sources import from_trace
    from joymigrate.profile.oplist.aten import read_table

    return from_trace(readers.read(path), read_table())


def doubts(side: Capture) -> Iterable[str]:
    """What makes a comparison of times worth less."""
    if side.header.get("rehearsal"):
        yield f"{side.path.name} is a rehearsal: it has no times, only calls"
    elif not side.timed:
        yield f"{side.path.name} has no times, only calls"


def device(side: Capture) -> str:
    """The device of a side."""
    return str(side.header.get("device") or "unknown")


def total(side: Capture) -> float:
    """Time of all operators of one step."""
    return sum(operator.self_us for operator in side.operators)


def plain(operator: CapturedOperator, known: Aliases) -> str:
    """The name both sides share: without overload and in-place sign, behind aliases."""
    namespace, base, _ = split_name(operator.op)
    alias = known.of(namespace, base)
    if alias is not None and alias.to:
        namespace, base, _ = split_name(alias.target(""))
    if base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    return f"{namespace}::{base}"


def common_prefix(side: Capture) -> str:
    """What all module names begin with: a wrapper that one side has and the other has not."""
    names = {operator.module for operator in side.operators if operator.module}
    heads = {name.split(".")[0] for name in names}
    wrapped = len(heads) == 1 and heads & {"module", "_orig_mod", "model"}
    return f"{heads.pop()}." if wrapped and all("." in name for name in names) else ""


def module(operator: CapturedOperator, prefix: str) -> str:
    """The module of an operator, without a wrapper's name."""
    name = operator.module
    if name is None:
        return f"(outside of modules, {operator.phase})"
    return name.removeprefix(prefix) or "(the model itself)"


def rank_pairs(sides: list[Capture], key: Any) -> tuple[OperatorPair, ...]:
    """Sums of both sides by key, the largest loss first; without times by calls gained."""
    sums: dict[str, Sum] = defaultdict(lambda: Sum([0, 0], [0.0, 0.0], [{}, {}]))
    for index, side in enumerate(sides):
        for operator in side.operators:
            entry = sums[key(operator, index)]
            entry.calls[index] += operator.calls
            entry.us[index] += operator.self_us
            times = entry.names[index]
            times[operator.name] = times.get(operator.name, 0.0) + operator.self_us
            entry.where = entry.where or operator.where
    pairs = [
        OperatorPair(
            name,
            (entry.calls[0], entry.calls[1]),
            (entry.us[0], entry.us[1]),
            entry.where,
            (names_of(entry.names[0]), names_of(entry.names[1])),
        )
        for name, entry in sums.items()
    ]
    return tuple(sorted(pairs, key=lambda p: (-p.lost_us, p.calls[0] - p.calls[1], p.name)))


def names_of(times: Mapping[str, float]) -> tuple[str, ...]:
    """Operators by time."""
    return tuple(sorted(times, key=lambda name: (-times[name], name))[:5])

"""Limits as data: `rules/common/tolerance.yaml` with a chip's own file over it, checked and typed.

It does not know how an error is measured: it says what may be measured and how much is allowed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from joymigrate.chips import Chip, calibration, get, rules_root
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.verify.tolerance_file import (
    CoverageLimits,
    JudgeLimits,
    OperatorParts,
    StageLimits,
    ToleranceFile,
    load,
)

FILE = "tolerance.yaml"
STAGES = ("S0", "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8")
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# In the norm, of what is rounded to 16 bits last: an eighth of the step between two values, as when
# one element in 16 goes to its neighbour; of small tensors one element alone moves it by a tenth.
ROUNDED_LAST = {name: EPSILON[name] / 8 for name in ("float16", "bfloat16")}
T = TypeVar("T", OperatorParts, CoverageLimits, JudgeLimits)


@dataclass(frozen=True, slots=True)
class OperatorLimit:
    """What one operator may deviate in one dtype.

    `ratios` bound error(target) / max(error(reference), `floor`); `single` bounds the target's
    error alone by `method` (allclose, matched, diff; see the chip's file). `small` is where a
    relative error becomes an absolute one. `notice` is the ratio of RMSE over `notice_floor` above
    which a result that is within the limits is still worth a warning. `narrowed` are types that the
    device replaces by others here, as `narrowed_source` says.
    """

    op: str
    dtype: str
    level: str
    exact: bool
    ratios: Mapping[str, float]
    floor: float
    method: str
    single: Mapping[str, float]
    small: float
    notice: float
    notice_floor: float
    source: str
    single_source: str
    narrowed: Mapping[str, str] = field(default_factory=dict)
    narrowed_source: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """All limits that hold for one chip (None: the common ones)."""

    chip: str | None
    parts: OperatorParts
    stages: Mapping[str, StageLimits]
    coverage: CoverageLimits
    judge: JudgeLimits
    measured: calibration.Calibration | None = None

    @classmethod
    def of(cls, chip: Chip | str | None = None) -> Tolerance:
        """The limits of a chip, given by object or name; None or "cpu": the common ones."""
        if chip is None or chip == "cpu":
            return read(None, None)
        found = get(chip) if isinstance(chip, str) else chip
        limits = read(found.name, found.folder / FILE)
        known = calibration.load(found.name)
        return replace(limits, measured=known) if known.rows else limits

    def operator(self, op: str, dtype: str, level: str | None = None) -> OperatorLimit:
        """The limits of `aten::NAME` in a dtype (`float32`); `level` overrules the list."""
        parts = self.parts
        exact, single, double, notice = parts.exact, parts.single, parts.double, parts.notice
        if not (exact and single and double and notice):
            raise JoyError("a part of the limits is missing", where=f"common/{FILE} operators")
        level = level or next((k for k, ops in double.of.items() if op in ops), double.default)
        if level not in double.levels:
            known = tuple(double.levels)
            raise JoyError(
                f"there is no level '{level}' for {self.chip or 'a common target'}."
                f"{did_you_mean(level, known)}",
                help=f"one of {', '.join(known)}",
            )
        floor, seen = self.measured_floor(op, dtype)
        source = "; ".join(filter(None, (double.source, seen)))
        narrowed = parts.narrowed if parts.narrowed and op in parts.narrowed.ops else None
        classes = (one.dtypes for one in single.classes if op in one.ops)
        return OperatorLimit(
            op=op,
            dtype=dtype,
            level=level,
            exact=op in exact.ops,
            ratios=double.levels[level],
            floor=max(of_dtype(double.floor, dtype), floor),
            method=single.method,
            single=of_dtype(next(classes, single.dtypes), dtype),
            small=of_dtype(single.small, dtype),
            notice=notice.rmse,
            notice_floor=of_dtype(notice.floor, dtype),
            source=source,
            single_source=single.source,
            narrowed=narrowed.dtypes if narrowed else {},
            narrowed_source=narrowed.source if narrowed else "",
        )

    def measured_floor(self, op: str, dtype: str) -> tuple[float, str]:
        """The largest relative error of the operator on real chips, where the kit found nothing
        wrong with it, and where that was seen; 0 where nobody measured.

        The kit counts errors in units of the dtype's precision at the largest value.
        """
        rows = [
            row
            for row in (self.measured.of_call(op, dtype) if self.measured else ())
            if row["grade"] == "measured" and not row["deviations"] and "error" in row["found"]
        ]
        if not rows or dtype not in EPSILON:
            return 0.0, ""
        worst = max(rows, key=lambda row: float(row["found"]["error"]))
        return float(worst["found"]["error"]) * EPSILON[dtype], calibration.provenance(worst)

    def limit(self, stage: str, name: str) -> float:
        """One figure of a stage: `limit("S6", "mean_relative_pass")`."""
        found = self.stages[stage].figures.get(name)
        if not isinstance(found, float):
            raise KeyError(f"{stage} has no limit {name}")
        return found

    def limit_of(self, stage: str, name: str, dtype: str) -> float:
        """One figure of a stage that is given by dtype."""
        found = self.stages[stage].figures[name]
        return found if isinstance(found, float) else float(of_dtype(found, dtype))

    def floor(self, stage: str, dtype: str) -> float:
        """The relative error below which a module's deviation is rounding, for S3 and S4."""
        return self.limit_of(stage, "floor", dtype)

    def source(self, stage: str) -> str:
        """Where a stage's figures come from."""
        return self.stages[stage].source

    @property
    def module_coverage(self) -> float:
        """Share of modules with parameters that must be compared for a verdict."""
        return self.coverage.modules or 0.0

    @property
    def operator_coverage(self) -> float:
        """Share of operator signatures that must be compared for a verdict."""
        return self.coverage.operators or 0.0


def of_dtype(table: Mapping[str, Any], dtype: str) -> Any:
    """The entry of a dtype; complex types take their parts', unknown ones the widest known."""
    parts = {"complex64": "float32", "complex128": "float64"}
    for name in (dtype, parts.get(dtype, ""), "float32"):
        if name in table:
            return table[name]
    return next(iter(table.values()))


@functools.cache
def read(chip: str | None, path: Path | None) -> Tolerance:
    """The common file with the chip's over it: part by part, figure by figure of a stage."""
    base = load(rules_root() / "common" / FILE)
    over = load(path) if path is not None and path.is_file() else ToleranceFile()
    return Tolerance(
        chip,
        laid_over(base.operators, over.operators),
        {
            name: stage_over(name, getattr(base.stages, name), getattr(over.stages, name), path)
            for name in STAGES
        },
        laid_over(base.coverage, over.coverage),
        laid_over(base.judge, over.judge),
    )


def laid_over(base: T, over: T) -> T:
    """The fields of `over` that say something, the rest from `base`."""
    values = {one.name: getattr(over, one.name) for one in fields(over)}
    return replace(base, **{key: value for key, value in values.items() if value not in (None, "")})


def stage_over(name: str, base: StageLimits, over: StageLimits, path: Path | None) -> StageLimits:
    """The common figures with the chip's over them. `JoyError` for one that decides nothing."""
    for figure in over.figures:
        if figure not in base.figures:
            raise JoyError(
                f"{name} has no figure '{figure}'.{did_you_mean(figure, tuple(base.figures))}",
                where=str(path),
                help="how far values on equal inputs may be apart is `judge: equal_inputs`",
            )
    return StageLimits({**base.figures, **over.figures}, over.source or base.source)

"""Limits as data: `rules/common/tolerance.yaml` with a chip's own file over it, checked and typed.

It does not know how an error is measured: it says what may be measured and how much is allowed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, calibration, get, read_yaml, rules_root
from joymigrate.errors import JoyError, did_you_mean

SCHEMA = "joymigrate.tolerance/1"
FILE = "tolerance.yaml"
STAGES = ("S0", "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8")
PARTS = {
    "exact": ("ops", "source"),
    "single": ("method", "dtypes", "classes", "small", "source"),
    "double": ("default", "levels", "of", "floor", "source"),
    "notice": ("rmse", "floor", "source"),
}
METHODS = {
    "allclose": ("rtol", "atol"),
    "matched": ("rtol", "atol", "matched", "max_abs"),
    "diff": ("diff1", "diff2", "diff3", "diff4"),
}
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
RATIOS = ("max", "mean", "rmse", "diff1", "diff2", "diff4")
POWER = re.compile(r"2\^(-?\d+)")


@dataclass(frozen=True, slots=True)
class OperatorLimit:
    """What one operator may deviate in one dtype.

    `ratios` bound error(target) / max(error(reference), `floor`); `single` bounds the target's
    error alone by `method` (allclose, matched, diff; see the chip's file). `small` is where a
    relative error becomes an absolute one. `notice` is the ratio of RMSE over `notice_floor` above
    which a result that is within the limits is still worth a warning.
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


@dataclass(frozen=True, slots=True)
class Tolerance:
    """All limits that hold for one chip (None: the common ones)."""

    chip: str | None
    parts: Mapping[str, Mapping[str, Any]]
    stages: Mapping[str, Mapping[str, Any]]
    coverage: Mapping[str, Any]
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
        exact, single, double = (self.parts[name] for name in ("exact", "single", "double"))
        level = level or next((k for k, ops in double["of"].items() if op in ops), None)
        level = level or str(double["default"])
        if level not in double["levels"]:
            known = tuple(double["levels"])
            raise JoyError(
                f"there is no level '{level}' for {self.chip or 'a common target'}."
                f"{did_you_mean(level, known)}",
                help=f"one of {', '.join(known)}",
            )
        floor, seen = self.measured_floor(op, dtype)
        source = "; ".join(filter(None, (str(double["source"]), seen)))
        classes = (c["dtypes"] for c in single.get("classes", ()) if op in c["ops"])
        return OperatorLimit(
            op=op,
            dtype=dtype,
            level=level,
            exact=op in exact["ops"],
            ratios=double["levels"][level],
            floor=max(of_dtype(double["floor"], dtype), floor),
            method=str(single["method"]),
            single=of_dtype(next(classes, single["dtypes"]), dtype),
            small=of_dtype(single.get("small") or {"float32": 1e-6}, dtype),
            notice=self.parts["notice"]["rmse"],
            notice_floor=of_dtype(self.parts["notice"]["floor"], dtype),
            source=source,
            single_source=str(single["source"]),
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
        values = self.stages.get(stage, {})
        if name not in values:
            raise KeyError(f"{stage} has no limit {name}")
        return float(values[name])

    def floor(self, stage: str, dtype: str) -> float:
        """The relative error below which a module's deviation is rounding, for S3 and S4."""
        return float(of_dtype(self.stages[stage]["floor"], dtype))

    def source(self, stage: str) -> str:
        """Where a stage's figures come from."""
        return str(self.stages.get(stage, {}).get("source", ""))

    @property
    def module_coverage(self) -> float:
        """Share of modules with parameters that must be compared for a verdict."""
        return float(self.coverage["modules"])

    @property
    def operator_coverage(self) -> float:
        """Share of operator signatures that must be compared for a verdict."""
        return float(self.coverage["operators"])


def of_dtype(table: Mapping[str, Any], dtype: str) -> Any:
    """The entry of a dtype; complex types take their parts', unknown ones the widest known."""
    parts = {"complex64": "float32", "complex128": "float64"}
    for name in (dtype, parts.get(dtype, ""), "float32"):
        if name in table:
            return table[name]
    return next(iter(table.values()))


@functools.cache
def read(chip: str | None, path: Path | None) -> Tolerance:
    """The common file with the chip's over it: part by part, stage by stage."""
    base = checked(rules_root() / "common" / FILE)
    over = checked(path) if path is not None and path.is_file() else {}
    stages = {
        name: {**base["stages"].get(name, {}), **over.get("stages", {}).get(name, {})}
        for name in STAGES
    }
    return Tolerance(
        chip,
        {**base["operators"], **over.get("operators", {})},
        stages,
        {**base["coverage"], **over.get("coverage", {})},
    )


def checked(path: Path) -> dict[str, Any]:
    """One file, with every figure a number and no key that nobody reads; else `JoyError`."""
    raw = read_yaml(path)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else raw
        raise JoyError(
            f"not a file of limits: schema {found!r}",
            where=str(path),
            help=f"its first line is `schema: {SCHEMA}`",
        )
    for key, what in problems(raw):
        raise JoyError(what, where=f"{path} {key}", help="correct the file")
    found = numbers(raw)
    assert isinstance(found, dict)
    return found


def problems(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, mistake) for everything that is wrong in one file."""
    yield from unknown("", raw, ("schema", "operators", "stages", "coverage"))
    operators = raw.get("operators") or {}
    yield from unknown("operators", operators, tuple(PARTS))
    for name, part in operators.items():
        yield from unknown(f"operators.{name}", part, PARTS.get(name, ()))
        if isinstance(part, Mapping) and not part.get("source"):
            yield f"operators.{name}", "says no source"
    yield from unknown("stages", raw.get("stages") or {}, STAGES)
    yield from single_problems(operators.get("single") or {})
    yield from double_problems(operators.get("double") or {})
    yield from figure_problems(raw)


def unknown(at: str, raw: Any, known: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Keys of a mapping that nobody reads."""
    if not isinstance(raw, Mapping):
        yield at, f"expected a mapping, got {raw!r}"
        return
    for key in raw:
        if key not in known:
            near = did_you_mean(str(key), known)
            yield f"{at}.{key}".lstrip("."), f"unknown key '{key}'.{near}"


def single_problems(part: Any) -> Iterator[tuple[str, str]]:
    """The method is known and the figures belong to it."""
    if not isinstance(part, Mapping) or not part:
        return
    method = part.get("method")
    if method not in METHODS:
        near = did_you_mean(str(method), METHODS)
        yield "operators.single.method", f"there is no method {method!r}.{near}"
        return
    tables = [part.get("dtypes"), *(c.get("dtypes") for c in part.get("classes") or ())]
    for table in tables:
        for dtype, limits in (table or {"": None}).items():
            yield from unknown(f"operators.single.{dtype}", limits, METHODS[method])


def double_problems(part: Any) -> Iterator[tuple[str, str]]:
    """The grades name known ratios, and lists name known grades."""
    if not isinstance(part, Mapping) or not part:
        return
    levels = part.get("levels") or {}
    for name, ratios in levels.items():
        yield from unknown(f"operators.double.levels.{name}", ratios, RATIOS)
    yield from unknown("operators.double.of", part.get("of") or {}, tuple(levels))
    if part.get("default") not in levels:
        yield "operators.double.default", f"there is no level {part.get('default')!r}"


def figure_problems(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every leaf beside names, lists and sources is a number that is not negative."""
    texts = ("schema", "source", "method", "default")
    stack: list[tuple[str, Any]] = [("", raw)]
    while stack:
        at, value = stack.pop()
        if isinstance(value, Mapping):
            stack += [(f"{at}.{k}".lstrip("."), v) for k, v in value.items() if k not in texts]
        elif isinstance(value, list):
            continue
        elif isinstance(value, bool) or not isinstance(number(value), int | float):
            yield at, f"expected a number or a power such as 2^-10, got {value!r}"
        elif number(value) < 0:
            yield at, f"a limit is not negative, got {value!r}"


def number(value: Any) -> Any:
    """`2^-10` as a float; anything else as it is."""
    match = POWER.fullmatch(value) if isinstance(value, str) else None
    return 2.0 ** int(match.group(1)) if match else value


def numbers(value: Any) -> Any:
    """A whole document with its powers read and its lists of names as sets."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return frozenset(value)
        return [numbers(item) for item in value]
    return number(value)

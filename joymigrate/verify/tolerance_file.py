"""The form of `tolerance.yaml`: the common file, and a chip's own over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import document, read_file, setting

HELP = "see docs/how-to/verify.md"
METHODS = {
    "allclose": ("rtol", "atol"),
    "matched": ("rtol", "atol", "matched", "max_abs"),
    "diff": ("diff1", "diff2", "diff3", "diff4"),
}
RATIOS = ("max", "mean", "rmse", "diff1", "diff2", "diff4")
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ExactPart:
    """Operators without a rounding of their own."""

    ops: tuple[str, ...] = setting(help="operators whose every bit is equal")
    source: str = setting(help="where the list comes from")


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """Operators with figures of their own."""

    ops: tuple[str, ...] = setting(help="the operators")
    dtypes: Mapping[str, Figures] = setting(help="their figures by dtype", powers=True, least=0)


@dataclass(frozen=True, slots=True)
class SinglePart:
    """What the target's error alone may be."""

    method: str = setting(help="how the error is measured", choices=tuple(METHODS))
    dtypes: Mapping[str, Figures] = setting(help="figures by dtype", powers=True, least=0)
    source: str = setting(help="where the figures come from")
    classes: tuple[OperatorClass, ...] = setting((), "operators with other figures")
    small: Figures = setting(
        make=lambda: {"float32": 1e-6},
        help="where a relative error becomes an absolute one",
        powers=True,
        least=0,
    )

    def __post_init__(self) -> None:
        if not self.dtypes:
            raise JoyError("no dtype has figures", where="dtypes")
        check_names(self.dtypes, METHODS[self.method], "dtypes")
        for number, one in enumerate(self.classes):
            check_names(one.dtypes, METHODS[self.method], f"classes.{number}.dtypes")


@dataclass(frozen=True, slots=True)
class DoublePart:
    """What the target's error may be beside the reference platform's."""

    default: str = setting(help="the level of an operator that no list names")
    levels: Mapping[str, Figures] = setting(help="ratios by level", powers=True, least=0)
    floor: Figures = setting(
        help="an error of the reference below it counts as it", powers=True, least=0
    )
    source: str = setting(help="where the figures come from")
    of: Mapping[str, tuple[str, ...]] = setting(make=dict, help="operators by level")

    def __post_init__(self) -> None:
        if not self.floor:
            raise JoyError("no dtype has a floor", where="floor")
        check_names(self.levels, RATIOS, "levels")
        for key, names in (("default", (self.default,)), ("of", tuple(self.of))):
            for name in names:
                if name not in self.levels:
                    near = did_you_mean(name, self.levels)
                    raise JoyError(f"there is no level '{name}'.{near}", where=key)


@dataclass(frozen=True, slots=True)
class NoticePart:
    """From where on a result within the limits is worth a warning."""

    rmse: float = setting(help="ratio of RMSE over the floor", least=0)
    floor: Figures = setting(help="half an ulp and a reserve, by dtype", powers=True, least=0)
    source: str = setting(help="where the figures come from")


@dataclass(frozen=True, slots=True)
class NarrowedPart:
    """Types that the device's package replaces by others as it makes a tensor."""

    ops: tuple[str, ...] = setting(help="operators that do so")
    dtypes: Mapping[str, str] = setting(help="the type that was asked for, and the one it makes")
    source: str = setting(help="where the package says so")


@dataclass(frozen=True, slots=True)
class OperatorParts:
    """Limits of operators; a part that a chip names replaces the common one."""

    exact: ExactPart | None = setting(None, "operators that only move, choose or count")
    single: SinglePart | None = setting(None, "limits of the target's error alone")
    double: DoublePart | None = setting(None, "limits beside the reference's error")
    notice: NoticePart | None = setting(None, "when a pass is worth a warning")
    narrowed: NarrowedPart | None = setting(None, "types that the device does not keep")


@dataclass(frozen=True, slots=True)
class StageLimits:
    """The figures of one stage by name; one by dtype is a mapping."""

    REST = "figures"

    figures: Mapping[str, float | Figures] = setting(
        make=dict, help="figures by name", powers=True, least=0
    )
    source: str = setting("", "where the figures come from")


@dataclass(frozen=True, slots=True)
class StageParts:
    """Limits of stages; a figure that a chip names replaces the common one."""

    S0: StageLimits = setting(make=StageLimits, help="the files of the program")
    S1: StageLimits = setting(make=StageLimits, help="data and settings")
    S2: StageLimits = setting(make=StageLimits, help="weights")
    S3: StageLimits = setting(make=StageLimits, help="modules in float32")
    S4: StageLimits = setting(make=StageLimits, help="modules in the program's dtype")
    S5: StageLimits = setting(make=StageLimits, help="free steps")
    S6: StageLimits = setting(make=StageLimits, help="curves of the loss")
    S7: StageLimits = setting(make=StageLimits, help="generated texts")
    S8: StageLimits = setting(make=StageLimits, help="the figures of a task")


@dataclass(frozen=True, slots=True)
class CoverageLimits:
    """The shares below which a verdict is inconclusive."""

    modules: float | None = setting(None, "share of modules with parameters", least=0, most=1)
    operators: float | None = setting(None, "share of operator signatures", least=0, most=1)
    source: str = setting("", "where the figures come from")


@dataclass(frozen=True, slots=True)
class JudgeLimits:
    """The one rate of false alarms, and what is taken for granted before anything is measured."""

    alpha: float | None = setting(None, "how often a clean verdict may fail", least=0, most=1)
    spread: float | None = setting(None, "of the logarithm of a clean error, untold", least=0)
    equal_inputs: float | None = setting(None, "the same, of results on equal inputs", least=0)
    weight: float | None = setting(None, "how many comparisons that counts as", least=0)
    source: str = setting("", "where the figures come from")


@document("tolerance", "What verify allows on a chip: `tolerance.yaml` in its folder.")
@dataclass(frozen=True, slots=True)
class ToleranceFile:
    """One file of limits."""

    VERSIONED = True

    operators: OperatorParts = setting(make=OperatorParts, help="limits of operators")
    stages: StageParts = setting(make=StageParts, help="limits of stages")
    coverage: CoverageLimits = setting(make=CoverageLimits, help="what must be compared")
    judge: JudgeLimits = setting(make=JudgeLimits, help="the limits of two runs")


def check_names(table: Mapping[str, Figures], known: tuple[str, ...], at: str) -> None:
    """Raise `JoyError` for a figure that the method does not have."""
    for key, figures in table.items():
        for name in figures:
            if name not in known:
                near = did_you_mean(name, known)
                raise JoyError(f"unknown figure '{name}'.{near}", where=f"{at}.{key}.{name}")


def load(path: Path) -> ToleranceFile:
    """One file. `JoyError` names the file, the line, the key and the nearest name."""
    return read_file(ToleranceFile, path, "limits", HELP)

"""S5: which place of a free step is blamed, on tables made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from joymigrate.verify.bundle.table import RecordTable
from joymigrate.verify.cause import suspect
from joymigrate.verify.free import CHANGED, FreeStep, compare_step, record_key
from joymigrate.verify.judge import ErrorSeries, Judge
from joymigrate.verify.tolerance import Tolerance

NAMES = {"net:": "net:", "net:a": "net:a", "net:b": "net:b"}
NULL = 1e-6  # how far each record is in the baseline's own runs
ROWS = list[tuple[str, str, str, float]]


def table(rows: ROWS, seed: int = 0) -> RecordTable:
    """Rows of (module, kind, leaf, relative error): random sketches, shaken by that much."""
    base, shake = np.random.default_rng(7), np.random.default_rng(seed + 99)
    sketch = base.standard_normal((len(rows), 64))
    for row, (_, _, _, error) in enumerate(rows):
        off = shake.standard_normal(64)
        sketch[row] += off * error * np.linalg.norm(sketch[row]) / np.linalg.norm(off)
    stats = np.ones((len(rows), 4))
    columns = list(zip(*rows, strict=True))
    return RecordTable(
        0, list(columns[0]), [0] * len(rows), list(columns[1]), list(columns[2]),
        ["float32"] * len(rows), [(64,)] * len(rows), [""] * len(rows),
        stats.astype(np.float32), sketch.astype(np.float32),
    )  # fmt: skip


def step(
    rows: ROWS,
    without: tuple[int, ...] = (),
    nulls: dict[int, float] | None = None,
    shapes: dict[int, tuple[int, ...]] | None = None,
) -> Any:
    """The step of a target that is off by each row's error; some rows it has not."""
    clean, off = table([(m, k, leaf, 0.0) for m, k, leaf, _ in rows]), table(rows)
    for row in without:
        off.leaf[row] = "elsewhere"
    for row, shape in (shapes or {}).items():
        clean.shape[row] = off.shape[row] = shape
    own = {record_key(0, row): ErrorSeries([(0, NULL)]) for row in range(len(rows))}
    own |= {record_key(0, row): ErrorSeries([(0, error)]) for row, error in (nulls or {}).items()}
    judge = Judge(Tolerance.of(None).judge, [own, own], tests=len(rows))
    compared = compare_step(clean, off, NAMES)
    return FreeStep(compared, lambda place: place, 0, NAMES, judge)  # type: ignore[arg-type]


def blamed(rows: ROWS, without: tuple[int, ...] = (), judged: bool = False, **more: Any) -> Any:
    """(module, what) of the first record that departs by itself."""
    found = step(rows, without, **more).first((), judged)
    return found and (found.module, str(found.op))


def test_a_module_that_only_passes_an_error_on_is_not_blamed() -> None:
    rows = [("net:a", "in", "0", 1e-3), ("net:a", "out", "", 5e-3), ("net:b", "in", "0", 1e-7)]
    assert blamed(rows) is None
    assert blamed([*rows, ("net:b", "out", "", 5e-3)]) == ("net:b", "output")


def test_a_single_number_is_not_told_by_what_it_came_to_by_chance() -> None:
    rows = [("net:a", "grad", "bias", 0.02), *(("net:b", "grad", str(n), 0.0) for n in range(4))]
    rare = {0: 0.0, 4: 0.02}  # the same in the baseline's runs, where another one is not
    assert blamed(rows, nulls=rare) == ("net:a", "gradient of bias")
    assert blamed(rows, nulls=rare, shapes={0: (1,)}) is None


def test_what_a_model_is_given_is_not_judged_here() -> None:
    rows = [("net:", "in", "0", 0.1), ("net:", "out", "", 0.1), ("net:", "gout", "", 0.1)]
    assert blamed(rows) is None


def test_a_module_with_an_unknown_input_is_not_blamed_but_the_one_around_it() -> None:
    rows = [
        ("net:", "in", "0", 0.0), ("net:b", "in", "0", 0.0), ("net:b", "out", "", 0.5),
        ("net:", "out", "", 0.5),
    ]  # fmt: skip
    assert blamed(rows, without=(1,)) == ("net:", "output")
    assert blamed(rows) == ("net:b", "output")


def test_an_error_that_the_baselines_own_runs_have_is_none() -> None:
    rows = [("net:b", "in", "0", 0.0), ("net:b", "out", "", 0.5)]
    assert blamed(rows, nulls={1: 0.4}) is None
    assert blamed([("net:b", "in", "0", 0.0), ("net:b", "out", "", 3e-6)]) is None


def test_a_loss_is_blamed_where_the_outputs_agree() -> None:
    found = step([("net:", "out", "", 1e-7), ("net:", "gout", "", 0.1)]).first((), False)
    assert (found.op, found.phase) == ("loss", "backward")
    assert "what the loss sends back" in str(found.reason)
    assert blamed([("net:", "out", "", 0.02), ("net:", "gout", "", 0.1)]) == ("net:", "output")
    assert blamed([("net:", "out", "", 1e-7), ("net:", "gout", "", 2e-6)]) is None


def test_a_gradient_is_blamed_where_those_of_the_modules_agree() -> None:
    rows = [("net:a", "gout", "", 1e-6), ("net:a", "grad", "weight", 0.1)]
    found = step(rows).first((), False)
    assert (found.module, found.reason) == ("net:a", CHANGED)
    clipped = [rows[0], ("net:a", "grad", "bias", 0.01), ("net:a", "grad", "weight", 0.3)]
    assert blamed(clipped) == ("net:a", "gradient of weight")


def test_a_gradient_that_the_target_lacks_is_blamed_and_one_of_zero_is_not() -> None:
    rows = [("net:b", "grad", "weight", 0.0), ("net:a", "grad", "bias", 0.3)]
    found = step(rows, without=(1,)).first((), False)
    assert (found.module, found.reason) == ("net:a", "the target has no gradient here")
    off, clean = table(rows), table([(m, k, leaf, 0.0) for m, k, leaf, _ in rows])
    for one in (off, clean):  # against a usual one of 1: rounding
        one.sketch[1] *= 1e-7
        one.stats[1, 3] = 1e-7
    assert compare_step(clean, off, NAMES).errors[1] < 1e-5


def test_an_update_is_blamed_where_nothing_else_judges_it() -> None:
    rows = [("net:a", "grad", "p", 0.0), ("net:a", "param", "p", 0.1)]
    assert blamed(rows) == ("net:a", "param p")
    assert blamed(rows, judged=True) is None
    assert blamed([("net:a", "grad", "p", 0.5), rows[1]]) == ("net:a", "gradient of p")
    sparse = [("net:b", "grad", "q", 0.0), ("net:a", "param", "p", 0.1)]  # not recorded
    assert blamed(sparse, judged=True) == ("net:a", "param p")


def test_a_mode_is_blamed_where_it_reaches_the_output() -> None:
    rows = [("net:", "in", "0", 0.0), ("net:", "out", "", 1e-2)]
    found = step(rows).mode({"net:": [0], "net:a": [0]}, {"net:": [1], "net:a": [1]})
    assert (found.module, found.op) == ("net:", "mode")
    inner = step(rows).mode({"net:": [1], "net:a": [0]}, {"net:": [1], "net:a": [1]})
    assert inner.module == "net:a"
    assert step(rows).mode({"net:": [1]}, {"net:": [1]}) is None
    agrees = [rows[0], ("net:", "out", "", 1e-6)]
    assert step(agrees).mode({"net:": [0]}, {"net:": [1]}) is None


@pytest.mark.parametrize(
    ("signature", "error", "cause"),
    [
        ({"nonfinite": [3, 0]}, 0.1, "overflow"),
        ({"shapes": [[2], [3]]}, 0.1, "shape"),
        ({}, 1e-3, None),
        ({}, 0.3, None),
    ],
)
def test_causes_by_their_signature(
    signature: dict[str, Any], error: float, cause: str | None
) -> None:
    assert suspect(signature, error)[0] == cause

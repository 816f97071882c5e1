"""S5: which place of a free step is blamed, on tables made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from joymigrate.verify.bundle.table import Table
from joymigrate.verify.cause import suspect
from joymigrate.verify.free import CHANGED, Walk, compare_step

NAMES = {"net:": "net:", "net:a": "net:a", "net:b": "net:b"}


def table(rows: list[tuple[str, str, str, float]], seed: int = 0) -> Table:
    """Rows of (module, kind, leaf, relative error): random sketches, shaken by that much."""
    base, shake = np.random.default_rng(7), np.random.default_rng(seed + 99)
    sketch = base.standard_normal((len(rows), 64))
    for row, (_, _, _, error) in enumerate(rows):
        off = shake.standard_normal(64)
        sketch[row] += off * error * np.linalg.norm(sketch[row]) / np.linalg.norm(off)
    stats = np.ones((len(rows), 4))
    columns = list(zip(*rows, strict=True))
    return Table(
        0, list(columns[0]), [0] * len(rows), list(columns[1]), list(columns[2]),
        ["float32"] * len(rows), [(64,)] * len(rows), [""] * len(rows),
        stats.astype(np.float32), sketch.astype(np.float32),
    )  # fmt: skip


def walk(rows: list[tuple[str, str, str, float]], without: tuple[int, ...] = ()) -> Walk:
    """The walk along a step whose target is off by each row's error; some rows it has not."""
    clean = table([(m, k, leaf, 0.0) for m, k, leaf, _ in rows])
    off = table(rows)
    for row in without:
        off.leaf[row] = "elsewhere"
    return Walk(compare_step(clean, off, NAMES), lambda place: place, 0, NAMES)  # type: ignore[arg-type]


def test_a_module_that_only_passes_an_error_on_is_not_blamed() -> None:
    rows = [("net:a", "in", "0", 1e-3), ("net:a", "out", "", 5e-3), ("net:b", "in", "0", 1e-7)]
    assert walk(rows).forward() is None
    found = walk([*rows, ("net:b", "out", "", 5e-3)]).forward()
    assert found is not None
    assert found.module == "net:b"


def test_a_module_with_an_unknown_input_is_not_blamed_but_the_one_around_it() -> None:
    rows = [
        ("net:", "in", "0", 0.0), ("net:b", "in", "0", 0.0), ("net:b", "out", "", 0.5),
        ("net:", "out", "", 0.5),
    ]  # fmt: skip
    blamed: Any = walk(rows, without=(1,)).forward()
    assert blamed.module == "net:"
    blamed = walk(rows).forward()
    assert blamed.module == "net:b"


def test_a_loss_is_blamed_where_the_outputs_agree() -> None:
    rows = [("net:", "out", "", 1e-7), ("net:", "gout", "", 0.1)]
    found = walk(rows).loss()
    assert found is not None
    assert "what the loss sends back" in str(found.reason)
    assert walk([("net:", "out", "", 0.02), ("net:", "gout", "", 0.1)]).loss() is None
    assert walk([("net:", "out", "", 1e-7), ("net:", "gout", "", 1e-4)]).loss() is None
    assert walk([("net:b", "out", "", 1e-7), ("net:b", "gout", "", 0.1)]).loss() is None


def test_a_gradient_is_blamed_where_those_of_the_modules_agree() -> None:
    rows = [("net:a", "gout", "", 1e-6), ("net:a", "grad", "weight", 0.1)]
    found = walk(rows).updates()
    assert found is not None
    assert (found.module, found.reason) == ("net:a", CHANGED)
    assert walk([("net:a", "gout", "", 0.05), ("net:a", "grad", "weight", 0.1)]).updates() is None


def test_a_gradient_that_the_target_lacks_is_blamed_and_one_of_zero_is_not() -> None:
    rows = [("net:b", "grad", "weight", 0.0), ("net:a", "grad", "bias", 0.3)]
    found = walk(rows, without=(1,)).updates()
    assert found is not None
    assert (found.module, found.reason) == ("net:a", "the target has no gradient here")
    small = walk(rows)
    small.found.table.stats[1, 3] = 1e-6  # against a usual one of 1: rounding
    assert small.updates() is None


def test_most_parameters_must_move_before_an_update_is_blamed() -> None:
    grads = [("net:a", "grad", leaf, 0.0) for leaf in ("p", "q", "r")]
    params = [("net:a", "param", leaf, off) for leaf, off in (("p", 0.0), ("q", 0.1), ("r", 0.1))]
    found = walk([*grads, *params]).parameters()
    assert found is not None
    assert found.op == "param q"
    one = [("net:a", "param", leaf, off) for leaf, off in (("p", 0.0), ("q", 0.0), ("r", 0.1))]
    assert walk([*grads, *one]).parameters() is None
    wrong = [("net:a", "grad", leaf, 0.5) for leaf in ("p", "q", "r")]
    assert walk([*wrong, *params]).parameters() is None  # the gradients are the reason


def test_weights_that_moved_between_steps_show_on_equal_inputs_only() -> None:
    rows = [("net:", "in", "0", 0.0), ("net:", "out", "", 1e-2)]
    assert walk(rows).moved((), 1e-7) is not None
    assert walk(rows).moved(("net",), 1e-7) is None  # it draws random numbers
    assert walk(rows).moved((), 1e-3) is None  # the step before was off already
    assert walk([("net:", "in", "0", 1e-6), rows[1]]).moved((), 1e-7) is None


def test_a_mode_is_blamed_where_it_reaches_the_output() -> None:
    rows = [("net:", "in", "0", 0.0), ("net:", "out", "", 1e-2)]
    found = walk(rows).mode({"net:": [0], "net:a": [0]}, {"net:": [1], "net:a": [1]}, 0.0)
    assert found is not None
    assert (found.module, found.op) == ("net:", "mode")
    inner = walk(rows).mode({"net:": [1], "net:a": [0]}, {"net:": [1], "net:a": [1]}, 0.0)
    assert inner is not None
    assert inner.module == "net:a"
    assert walk(rows).mode({"net:": [1]}, {"net:": [1]}, 0.0) is None
    assert (
        walk([rows[0], ("net:", "out", "", 1e-5)]).mode({"net:": [0]}, {"net:": [1]}, 0.0) is None
    )
    assert walk(rows).mode({"net:": [0]}, {"net:": [1]}, 0.1) is None


@pytest.mark.parametrize(
    ("signature", "error", "cause"),
    [
        ({"nonfinite": [3, 0]}, 0.1, "overflow"),
        ({"shapes": [[2], [3]]}, 0.1, "shape"),
        ({"zeros": [0.2, 0.0]}, 0.5, None),
        ({"zeros": [0.2, 0.2], "norm_ratio": 1.1}, 0.5, None),
        ({"scale": 2.0, "after_scale": 0.01, "values": 40.0}, 0.5, "eps or scale"),
        ({"scale": 2.0, "after_scale": 0.0, "values": 1.0}, 0.5, None),  # one number
        ({"sorted": 0.001, "values": 40.0}, 0.5, "permutation"),
        ({"sorted": 0.1, "norm_ratio": 1.0}, 0.1, None),  # any small error looks so
        ({"norm_ratio": 1.001}, 1.2, None),
        ({"norm_ratio": 1.1}, 1.2, None),
        ({"after_shift": 0.05, "values": 9.0}, 0.3, "eps or scale"),
        ({"after_shift": 0.05, "values": 2.0}, 0.3, None),
        ({}, 1e-3, None),  # nobody knows the ratio
        ({}, 0.3, None),
    ],
)
def test_causes_by_their_signature(
    signature: dict[str, Any], error: float, cause: str | None
) -> None:
    assert suspect(signature, error)[0] == cause


def test_numerics_are_named_up_to_ten_times_the_baselines_own_error() -> None:
    assert suspect({}, 1e-3, ratio=9.0)[0] == "numerics only"
    assert suspect({}, 1e-3, ratio=11.0)[0] is None

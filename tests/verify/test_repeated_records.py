"""A record that comes twice in a step, as an output's gradient under a gradient penalty."""

from __future__ import annotations

import numpy as np

from joymigrate.verify.bundle.table import RecordTable
from joymigrate.verify.free import compare_step


def made_of(norms: list[float]) -> RecordTable:
    """Gradients of one output, in the order in which they came."""
    count = len(norms)
    stats = np.array([[norm, -norm, 0.0, norm] for norm in norms], np.float32)
    sketch = np.ones((count, 64), np.float32) * stats[:, 3:]
    names = (["D:0"] * count, [0] * count, ["gout"] * count, [""] * count)
    return RecordTable(0, *names, ["float32"] * count, [(2,)] * count, [""] * count, stats, sketch)


def test_the_second_is_held_against_the_second() -> None:
    found = compare_step(made_of([1.5, 0.0]), made_of([1.5, 0.0]), {"D:0": "D:0"})
    assert found.errors.tolist() == [0.0, 0.0]


def test_a_second_that_the_other_side_has_not_is_not_compared() -> None:
    found = compare_step(made_of([1.5, 0.0]), made_of([1.5]), {})
    assert found.errors[0] == 0.0
    assert np.isnan(found.errors[1])


def test_a_norm_above_float32_hides_no_other_mask() -> None:
    table = made_of([np.inf, 3.0])
    table.sketch[0] = np.eye(64)[0] * np.finfo(np.float32).min
    sizes = table.sizes()
    assert np.isfinite(sizes).all()
    assert sizes[0] == -float(np.finfo(np.float32).min)

"""Every fill against torch's CPU kernel in float64, and against the chip's operator list."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import joymigrate.run.rehearse.fill as fill
from joymigrate.chips import rules_root
from joymigrate.profile import oplist
from joymigrate.run.rehearse.fill.reduce import SPARSE_MADE_BY
from tests.run.rehearse.fill import compare
from tests.run.rehearse.fill.cases import CASES

FILLS = fill.fills()
RANDOM = ("geometric_", "cauchy_", "log_normal_")


class Seen(TorchDispatchMode):
    """The operators that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func._schema.name) + "." + str(func._schema.overload_name))
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def chip() -> Any:
    return oplist.of("ascend", "2.13")


def test_every_fill_has_cases() -> None:
    assert set(CASES) | set(RANDOM) == set(FILLS)


@pytest.mark.parametrize("name", CASES)
def test_a_fill_equals_torch(name: str) -> None:
    one = FILLS[name]
    for number, case in enumerate(CASES[name]):
        expected = compare.reference(one, case)
        found = compare.run(one.function, one, case, "cpu")
        assert compare.worst(one, found, expected) <= 1, f"case {number}: {case}"


@pytest.mark.parametrize("name", sorted(FILLS))
def test_a_fill_uses_only_operators_that_the_chip_has(name: str, chip: Any) -> None:
    one = FILLS[name]
    cases = CASES.get(name) or [((torch.ones(3), 0.5), {})]
    with Seen() as seen:
        for args, kwargs in cases:
            copies = torch.utils._pytree.tree_map(compare.copied, (args, kwargs))
            one.function(*copies[0], **copies[1])
    missing = []
    for op in seen.names - {f"{SPARSE_MADE_BY}."}:  # asked of the package when it runs
        base, _, overload = op.partition(".")
        if not chip.status(base, overload).status.supported:
            missing.append(op)
    assert not missing


def test_the_chip_lacks_every_operator_that_is_filled(chip: Any) -> None:
    for name in fill.names():
        base, _, overload = name.partition(".")
        assert chip.status(base, overload).status.value == "cpu_fallback", name


def test_the_chips_data_names_the_fills() -> None:
    lines = (rules_root() / "ascend/ops/fill.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == fill.names()


def test_at_least_sixty_overloads_are_filled() -> None:
    assert len(fill.names()) >= 60


@pytest.mark.parametrize(
    ("name", "args", "median"),
    [
        ("geometric_", (0.25,), 3.0),
        ("cauchy_", (2.0, 3.0), 2.0),
        ("log_normal_", (0.5, 0.25), math.exp(0.5)),
    ],
)
def test_random_numbers_have_the_distribution_and_follow_the_seed(
    name: str, args: tuple[float, ...], median: float
) -> None:
    made = []
    for seed in (1, 1, 2):
        generator = torch.Generator().manual_seed(seed)
        made.append(FILLS[name].function(torch.empty(20000), *args, generator=generator))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    # a median of 20,000 draws: within 0.1 for these spreads, many standard errors
    assert abs(float(made[0].median()) - median) < 0.1 * max(1.0, median)
    theirs = getattr(torch.empty(20000), name)(*args)
    for share in (0.1, 0.25, 0.75, 0.9):
        mine, other = float(made[0].quantile(share)), float(theirs.quantile(share))
        assert abs(mine - other) <= 0.1 * abs(other) + 1

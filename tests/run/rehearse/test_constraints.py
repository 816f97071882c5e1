"""Relations of whole calls: each line has a source, one judge reads them, and the vendor's own unit
tests are the gate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.run.rehearse import constraints
from joymigrate.run.rehearse.constraints import Call, Tensor, read_constraints, read_relation
from joymigrate.run.rehearse.limits import CONSTRAINTS, Limits

SHARED = Path(__file__).parents[3].parent / "shared"
F32 = "float32"


def tensor(*shape: int, dtype: str = F32) -> Tensor:
    return Tensor(dtype, shape)


def test_every_relation_of_a_shipped_line_is_known_and_has_a_source() -> None:
    found = read_constraints(rules_root() / CONSTRAINTS)
    assert len(found) > 300
    assert all(one.source and one.grade for relations in found.values() for one in relations)
    assert set(constraints.MESSAGES) == set(constraints.JUDGES)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"relation": "same_shapes", "source": "s", "grade": "recorded"}, "same_shape"),
        ({"relation": "axis", "grade": "recorded"}, "has no source"),
        ({"relation": "axis", "source": "s"}, "has no source"),
    ],
)
def test_a_line_without_a_source_or_with_an_unknown_relation_is_refused(
    raw: dict[str, str], said: str
) -> None:
    with pytest.raises(JoyError, match=said):
        read_relation(raw, "here")


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("broadcast", (tensor(2, 1), tensor(3), tensor(2, 3)), (tensor(2), tensor(3), tensor(3))),
        ("expands", (tensor(3), tensor(2, 3)), (tensor(2, 3), tensor(3))),
        ("same_dtype", (tensor(1), tensor(2)), (tensor(1), tensor(1, dtype="float16"))),
        ("contract", (tensor(2, 3), tensor(3, 4)), (tensor(2, 3), tensor(4, 3))),
    ],
)
def test_a_relation_tells_calls_apart(
    name: str, taken: tuple[Tensor, ...], refused: tuple[Tensor, ...]
) -> None:
    _, judge = constraints.JUDGES[name]
    assert judge(Call(taken), taken, ())
    assert not judge(Call(refused), refused, ())


def test_what_cannot_be_asked_is_not_compared() -> None:
    limits = Limits("Ascend910B3")
    kinds, broken = limits.judge("aclnnUnheardOf", Call((tensor(2),)))
    assert (kinds, broken) == (frozenset(), None)
    kinds, broken = limits.judge("aclnnAdd", Call((tensor(2), tensor(2), tensor(2))))
    assert broken is None
    assert {"dtypes", "shapes"} <= kinds
    assert "attributes" not in kinds


def test_a_real_form_is_judged_with_its_sizes() -> None:
    limits = Limits("Ascend910B3")
    assert limits.refused(["aclnnAdd T0/2/2x3 T0/1/3 T0/2/2x3"]) == []
    (found,) = limits.refused(["aclnnAdd T0/2/2x3 T0/1/3 T0/2/3x2"])
    assert "broadcast" in str(found.message)
    nine = "x".join("2" * 9)
    assert limits.refused([f"aclnnSilu T0/9/{nine} T0/9/{nine}"]) == []
    (deep,) = limits.refused([f"aclnnRsqrt T0/9/{nine} T0/9/{nine}"])
    assert "at most 8 dimensions" in str(deep.message)


@pytest.mark.dear
def test_the_vendors_unit_tests_agree() -> None:
    data = SHARED / "data" / "vendor_unit_tests_half.csv.gz"
    if not data.is_file():
        pytest.skip("the expectations of the vendor's unit tests are not here")
    script = str(SHARED / "cases" / "rehearse" / "ut_agreement.py")
    done = subprocess.run(
        [sys.executable, script, str(data)], capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()[-1].split()
    refused, of_refusals, taken, of_successes = (int(words[n]) for n in (1, 3, 8, 10))
    assert refused / of_refusals >= 0.53  # 751 of 1401
    assert taken / of_successes <= 0.002

"""Values that two programs read in a step are paired by what they are, not by their number."""

from __future__ import annotations

import pytest

from joymigrate.verify.step_tape import pair_values

LOSS, FLAG, SHARE = "cross_entropy div", "isinf any stack any float", "argmax eq float mean"


@pytest.mark.parametrize(
    ("theirs", "mine", "paired"),
    [
        ([LOSS, SHARE], [LOSS, SHARE], {0: 0, 1: 1}),
        ([LOSS], [FLAG, LOSS], {0: 1}),  # a vendor's scaler reads a flag first
        ([LOSS], [FLAG], {}),  # and here in the loss's place
        ([LOSS, SHARE], [FLAG, LOSS], {0: 1}),
        ([LOSS], ["cross_entropy mul"], {0: 0}),  # another formula of the same
        ([SHARE], ["topk eq any float mean"], {0: 0}),
    ],
)
def test_a_flag_is_no_loss(theirs: list[str], mine: list[str], paired: dict[int, int]) -> None:
    a, b = ({f"value {n}": role for n, role in enumerate(side)} for side in (theirs, mine))
    wanted = {f"value {n}": f"value {m}" for n, m in paired.items()}
    assert pair_values(a, b) == wanted

"""Values that two programs read in a step are paired by what they are, not by their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.model import Outcome
from joymigrate.verify.step_tape import pair_values
from tests.verify.harness import record, replay

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


LEAVES = """
import torch

torch.manual_seed(0)
q, k = (torch.randn(4, 4, requires_grad=True) for _ in "qk")
for step in range(4):
    q.abs()  # looked at, and not used
    loss = (q @ (2 * k).T).softmax(-1).square().mean()
    loss.backward()
    q.grad = k.grad = None
"""


def test_gradients_go_by_what_they_belong_to_and_not_by_what_was_looked_at_first(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(LEAVES)
    record(program, tmp_path / "base.jmb", runs=2)
    program.write_text(LEAVES.replace("q.abs()", "k.abs()"))
    verdict = replay(tmp_path / "base.jmb", program, tmp_path / "target.jmb")
    assert verdict.verdict is Outcome.PASS, verdict.first_divergence
    assert {row.op for row in verdict.records} >= {"gradient at leaf", "gradient at leaf 2"}
    program.write_text(LEAVES.replace("(2 * k)", "(2 * k.detach() + 2 * q - 2 * q.detach())"))
    wrong = replay(tmp_path / "base.jmb", program, tmp_path / "wrong.jmb")
    assert wrong.verdict is Outcome.FAIL

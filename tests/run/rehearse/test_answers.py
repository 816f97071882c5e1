"""Recorded answers: what a call is matched with, and the shipped table."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.chips.answers import TensorAnswer, answers_for, read_answers, table_of
from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.run.rehearse import limits


def answer(
    parameter: str, takes: str = "", refuses: str = "", optional: str = "no", **more: object
) -> TensorAnswer:
    values = {"role": "in", "models": frozenset({"910B"}), "most": 0, "source": "a test"} | more
    return TensorAnswer(
        kernel="aclnnTrunc", parameter=parameter, optional=optional,
        takes=frozenset(takes.split()), refuses=frozenset(refuses.split()), **values,
    )  # fmt: skip


def test_every_tensor_of_the_tables_is_an_argument_of_its_kernel() -> None:
    chip = limits.Limits("Ascend910B3")
    rows = [(one.kernel, one.parameter) for one in read_answers(rules_root() / limits.ANSWERS)]
    rows += [(kernel, one.name) for kernel, known in chip.parameters.items() for one in known]
    names = {kernel: {name for name, _ in known} for kernel, known in chip.arguments.items()}
    strange = {(k, name) for k, name in rows if k in names and name not in names[k]}
    assert strange == set()


def test_a_tensor_that_is_left_out_stands_for_no_other() -> None:
    chip = limits.Limits("Ascend910B3")
    call = "aclnnQuantMatmulV5 T2/2/4x64 T2/2/64x32 W0 T0/1/32 W0 W0 W0 {} W0 W0 W0 W0 T27/2/4x32"
    assert chip.refused([call.format("W0")]) == []
    assert chip.refused([call.format("T27/1/0")]) == []  # the package's way to leave it out
    (refused,) = chip.refused([call.format("T27/1/32")])
    assert "no bfloat16 as yOffset" in str(refused.message)


def test_answers_of_the_host_code_come_before_the_documents(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    rows = [answer("self", "float32 int64", "float64", most=6), answer("out", "float32 int64")]
    path.write_text(table_of(rows))
    chip = limits.Limits("Ascend910B3", answers=path)
    (refused,) = chip.refused(["aclnnTrunc T11/2 T0/2"])
    assert "aclnnTrunc takes no float64 as self" in str(refused.message)
    assert refused.source == "a test"
    assert chip.refused(["aclnnTrunc T9/2 T9/2"]) == []
    (deep,) = chip.refused(["aclnnTrunc T0/7 T0/7"])
    assert "at most 6 dimensions" in str(deep.message)
    assert limits.Limits("Ascend310P3", answers=path).answers == {}  # another model
    # The host code casts what it sums; its document lists no bool, and no call showed int64 out.
    shipped = limits.Limits("Ascend910B3")
    assert shipped.refused(["aclnnCumsum T12/2 T9/2"]) == []
    (refused,) = shipped.refused(["aclnnCumsum T12/2 T12/2"])
    assert "aclnnCumsum takes no bool as out" in str(refused.message)


def test_a_table_of_another_form_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    path.write_text("kernel,dtypes\naclnnAbs,float32\n")
    with pytest.raises(JoyError, match="has the columns kernel,parameter"):
        read_answers(path)


def test_the_shipped_table_tells_parameters_and_models_apart() -> None:
    rows = read_answers(rules_root() / limits.ANSWERS)
    assert all(row.source and row.models and not row.takes & row.refuses for row in rows)
    new, old = answers_for(rows, "910B"), answers_for(rows, "310P")
    assert len(new) > 500
    own = {one.parameter: one for one in new["aclnnIndex"]}
    assert "complex64" in own["self"].refuses  # the union over parameters listed it
    assert "float64" in new["aclnnExpm1"][0].refuses
    assert "bfloat16" in new["aclnnRmsNorm"][0].takes
    assert "bfloat16" in old["aclnnRmsNorm"][0].refuses
    chip = limits.Limits("Ascend910B3")
    (refused,) = chip.refused(["aclnnIndex T16/2 L9/1 T16/2"])
    assert "takes no complex64 as self" in str(refused.message)
    assert chip.refused(["aclnnIndex T0/2 L9/1 T0/2"]) == []

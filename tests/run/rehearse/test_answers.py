"""Recorded answers: what a call is matched with, and the shipped table."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.chips.answers import TensorAnswer, align, answers_for, read_answers, table_of
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


def test_a_call_is_matched_in_the_way_with_the_fewest_refusals() -> None:
    tensors = [answer("a", "float32", "int8"), answer("b", "float16", "int8", "yes"),
               answer("c", "int8", "float32")]  # fmt: skip
    assert [(one.parameter, d) for one, d in align(tensors, ["float32", "int8"]) or []] == [
        ("a", "float32"), ("c", "int8"),
    ]  # fmt: skip
    assert align(tensors, ["float32"]) is None
    assert align(tensors, ["float32"] * 4) is None


def test_a_kernel_with_many_optional_tensors_is_matched_at_once() -> None:
    many = [answer(f"t{n}", "float16", "int8", "yes") for n in range(40)]
    assert len(align(many, ["float16"] * 20) or []) == 20


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

"""Questions to host code over a grid, and the table that keeps its answers: through a library of
our own that answers like the vendor's, and the shipped table."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.chips.answers import TensorAnswer, align, answers_for, read_answers, table_of
from joymigrate.errors import JoyError
from joymigrate.run.rehearse import limits
from joymigrate.run.rehearse.host_checks import build, grid
from joymigrate.run.rehearse.host_checks.declarations import Argument, declarations_in
from joymigrate.run.rehearse.host_checks.validate import compare

HERE = Path(__file__).parent
TRUNC = (
    Argument("self", "tensor"),
    Argument("weightOptional", "tensor"),
    Argument("out", "tensor", "out"),
)


def answer(
    parameter: str, takes: str = "", refuses: str = "", optional: str = "no", **more: object
) -> TensorAnswer:
    values = {"role": "in", "models": frozenset({"910B"}), "most": 0, "source": "a test"} | more
    return TensorAnswer(
        kernel="aclnnTrunc", parameter=parameter, optional=optional,
        takes=frozenset(takes.split()), refuses=frozenset(refuses.split()), **values,
    )  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[TensorAnswer]:
    """What our own library answers, on two models."""
    target = tmp_path_factory.mktemp("host") / "libhost.so"
    source = HERE / "host_library/host.c"
    assert not build.run(["-x", "c", "-shared", "-fPIC", "-w", str(source), "-o", str(target)])
    kernels = frozenset({"aclnnTrunc", "aclnnTan", "aclnnNobodyHasIt"})
    made = build.HostChecks(target, "a test", 900, kernels, {})
    declared = {"aclnnTrunc": TRUNC, "aclnnTan": (TRUNC[0], TRUNC[2]), "aclnnNobodyHasIt": TRUNC}
    told: list[str] = []
    found = grid.ask_models(made, declared, ["910", "910B"], told.append)
    assert told == ["asked for 2 of 2 kernels"]
    assert found["aclnnTrunc"]["910B"].crashed > 0
    return grid.rows_of(found, {"aclnnTrunc": "a test"})


@pytest.mark.compiler
def test_the_grid_learns_what_each_tensor_takes_per_model(rows: list[TensorAnswer]) -> None:
    new = {one.parameter: one for one in answers_for(rows, "910B")["aclnnTrunc"]}
    old = {one.parameter: one for one in answers_for(rows, "910")["aclnnTrunc"]}
    assert "bfloat16" in new["self"].takes
    assert "bfloat16" in old["self"].refuses
    assert {"float16", "int32", "int8"} <= new["self"].refuses
    assert "float64" not in new["self"].takes | new["self"].refuses  # it crashed: not known
    assert new["weightOptional"].takes == {"float32"}
    assert not new["weightOptional"].refuses  # that it has to be float32 is no list of dtypes
    assert (new["self"].optional, new["weightOptional"].optional) == ("no", "yes")
    assert {one.most for one in new.values()} == {8}


@pytest.mark.compiler
def test_what_decides_nothing_is_not_recorded(rows: list[TensorAnswer]) -> None:
    assert {row.kernel for row in rows} == {"aclnnTrunc"}  # the other ends in an inner error


@pytest.mark.compiler
def test_a_table_comes_back_and_is_compared(rows: list[TensorAnswer], tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    path.write_text(table_of(rows))
    kept = read_answers(path)
    assert list(kept) == rows
    assert not compare(kept, rows).changes
    other = [answer("self", takes="float32 bfloat16", most=8)]
    found = compare(kept, other)
    assert found.compared == found.equal + len(found.changes)
    assert any("float16" in one.recorded and one.recorded != one.asked for one in found.changes)


def test_headers_say_what_a_kernel_is_asked_with(tmp_path: Path) -> None:
    header = tmp_path / "aclnn_thing.h"
    header.write_text(
        "/* aclnnOldGetWorkspaceSize(int a); */\n"
        "ACLNN_API aclnnStatus aclnnThingGetWorkspaceSize(\n"
        "    const aclTensor* self, aclTensor *xRef, const aclTensorList* list, // a comment\n"
        "    const char* mode, bool flag, aclTensor* out, uint64_t* size, aclOpExecutor** e);\n"
        "aclnnStatus aclnnOddGetWorkspaceSize(odd_t* a, uint64_t* size, aclOpExecutor** e);\n"
    )
    found = declarations_in(header)
    assert list(found) == ["aclnnThing"]
    assert [(a.name, a.kind, a.role) for a in found["aclnnThing"]] == [
        ("self", "tensor", "in"), ("xRef", "tensor", "inout"), ("list", "tensors", "in"),
        ("mode", "text", "in"), ("flag", "bool", "in"), ("out", "tensor", "out"),
    ]  # fmt: skip


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


def test_a_table_of_another_form_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    path.write_text("kernel,dtypes\naclnnAbs,float32\n")
    with pytest.raises(JoyError, match="has the columns kernel,parameter"):
        read_answers(path)

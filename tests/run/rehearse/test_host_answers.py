"""Questions to host code over a grid, and the table that keeps its answers: through a library of
our own that answers like the vendor's, and the shipped table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from joymigrate.chips.answers import TensorAnswer, align, answers_for, read_answers, table_of
from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.run.rehearse import limits
from joymigrate.run.rehearse.host_checks import build, grid
from joymigrate.run.rehearse.host_checks.ask import CRASHED, Answer, Form
from joymigrate.run.rehearse.host_checks.checkouts import Checkouts
from joymigrate.run.rehearse.host_checks.declarations import Argument, declarations_in
from joymigrate.run.rehearse.host_checks.definitions import read_definitions, tensors_of
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


DEFINITION = """
class Fold : public OpDef {
  explicit Fold(const char* name) : OpDef(name) {
    std::vector<ge::DataType> types = {ge::DT_FLOAT16, ge::DT_BF16};
    std::vector<ge::DataType> others; // worked out below: {ge::DT_INT8}
    this->Input("x").ParamType(DYNAMIC).DataType(types).Format(nd);
    this->Input("bias").ParamType(OPTIONAL).DataType({ge::DT_FLOAT, ge::DT_FLOAT});
    this->Input("scale").ParamType(REQUIRED).Scalar().DataType({ge::DT_FLOAT});
    this->Input("index").ParamType(REQUIRED).DataType(others);
    this->Output("y").ParamType(DYNAMIC).DataTypeList({ge::DT_FLOAT16});
    OpAICoreConfig old;
    old.Input("x").ParamType(DYNAMIC).DataType({ge::DT_FLOAT16});
    this->AICore().AddConfig("ascend910b");
    this->AICore().AddConfig("ascend310p", old);
    this->AICore().AddConfig("ascend950", old);
  }
};
OP_ADD(Fold);
"""


def test_generated_kernels_are_read_from_their_definitions(tmp_path: Path) -> None:
    folder = tmp_path / "ops-nn/fold/op_host"
    folder.mkdir(parents=True)
    (folder / "fold_def.cpp").write_text(DEFINITION)
    checkouts = Checkouts(tmp_path, {"ops-nn": "9.1.0 (abc)"})
    rows = read_definitions(checkouts, {"aclnnFold", "aclnnElsewhere"})
    new, old = answers_for(rows, "910B")["aclnnFold"], answers_for(rows, "310P")["aclnnFold"]
    assert [(one.parameter, one.role, one.optional) for one in new] == [
        ("x", "in", "no"), ("bias", "in", "yes"), ("index", "in", "no"), ("y", "out", "no"),
    ]  # fmt: skip
    assert new[0].takes == {"float16", "bfloat16"}
    assert (old[0].takes, "bfloat16" in old[0].refuses) == ({"float16"}, True)
    assert not new[2].takes | new[2].refuses  # nobody knows
    assert {one.source for one in rows} == {"definition of ops-nn 9.1.0 (abc)"}
    assert read_definitions(checkouts, {"aclnnElsewhere"}) == []
    looped = DEFINITION.replace('AddConfig("ascend910b")', "AddConfig(model)")
    assert tensors_of(looped) == {}


@pytest.mark.parametrize(
    ("text", "place", "wanted"),
    [
        ("EZ1001: Expected tensor for out to have same size as [4, 1], but got [4, 4].", 2, (4, 1)),
        ("EZ1001: expect shape of out is [], but got [4, 4].", 2, ()),
        ("EZ1001: Expected 1 dimension input, but got inputs.weight with sizes [4, 4].", 1, (4,)),
        ("out dim [2] should be one larger than indices dim [2].", 2, (4, 4, 4)),
    ],
)
def test_a_refusal_of_a_shape_is_followed(text: str, place: int, wanted: tuple[int, ...]) -> None:
    asked = grid.Grid(TRUNC, lambda question: CRASHED)
    before = [Form((4, 4), "float32")] * 3
    after = asked.mended(before, text)
    assert after is not None
    assert [one.shape for one in after] == [
        wanted if n == place else (4, 4) for n in range(len(before))
    ]
    assert asked.mended(after, text) is None  # the same once more helps nothing


def test_positions_stay_whole_numbers_while_the_rest_changes() -> None:
    def refuse(name: str, dtype: str, takes: str) -> Answer:
        said = f"Tensor {name} not implemented for {dtype}, should be in dtype support list"
        return Answer(161002, f"EZ1001: {said} [{takes},].")

    def ask(question: Sequence[Form | None]) -> Answer:
        if None in question:
            return Answer(161001)
        of, index, out = (one for one in question if one is not None)
        if index.dtype not in ("int32", "int64"):
            return refuse("indices", "DT_FLOAT", "DT_INT32,DT_INT64")
        if of.dtype == "complex64":
            return refuse("self", "DT_COMPLEX64", "DT_FLOAT,DT_INT32")
        return Answer(0 if of.dtype == out.dtype else 161002)

    arguments = (TRUNC[0], Argument("indices", "tensor"), TRUNC[2])
    facts = grid.Grid(arguments, ask).run("aclnnPick")
    own, index, _ = facts.tensors
    assert {"float32", "bfloat16", "int8"} <= set(own.takes)
    assert own.refuses == ("complex64",)
    assert set(index.takes) == {"int32", "int64"}


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

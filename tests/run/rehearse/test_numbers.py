"""The watch of numbers: where they stop being finite, lost biases, what people reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.chips import rules_root
from joymigrate.errors import JoyError
from joymigrate.run.rehearse.constraints import TensorArgument, Tensors
from joymigrate.run.rehearse.field_reports import FILE, Reports, read_report, read_reports
from joymigrate.run.rehearse.settings import RehearsalSettings
from tests.run.rehearse.conftest import Run

PROGRAM = str(Path(__file__).parent / "programs" / "watched.py")


def told(rehearse: Run, name: str, *options: str) -> list[tuple[str, str]]:
    """Trap and line number of everything that was told of a program."""
    done = rehearse("python", PROGRAM, name, options=options)
    assert done.code == 0, done.err
    assert done.report is not None
    assert all(row["where"].startswith(PROGRAM) for row in done.report["traps"])
    return [(row["trap"], row["message"]) for row in done.report["traps"]]


@pytest.mark.compiler
@pytest.mark.dear
def test_the_first_result_that_overflows_is_named_alone(rehearse: Run) -> None:
    [(trap, message)] = told(rehearse, "overflows")
    assert trap == "not_finite"
    assert message.startswith("aten::matmul gives inf in float16")
    assert "largest 60" in message
    assert told(rehearse, "overflows", "--no-watch") == []


@pytest.mark.compiler
@pytest.mark.dear
def test_a_root_of_a_negative_number_is_named(rehearse: Run) -> None:
    [(trap, message)] = told(rehearse, "takes_a_root")
    assert trap == "not_finite"
    assert "sqrt_ gives nan in float32" in message


@pytest.mark.compiler
@pytest.mark.dear
def test_a_bias_that_becomes_a_mask_is_named_and_a_mask_is_not(rehearse: Run) -> None:
    [(trap, _)] = told(rehearse, "drops_a_bias")
    assert trap == "bias_made_boolean"


@pytest.mark.compiler
@pytest.mark.dear
def test_masks_the_wrong_way_round_are_named_and_right_ones_are_not(rehearse: Run) -> None:
    done = rehearse("python", PROGRAM, "inverts_masks")
    assert done.report is not None, done.err
    lines = Path(PROGRAM).read_text(encoding="utf-8").splitlines()
    traps = [(row["trap"], row["where"]) for row in done.report["traps"]]
    assert [trap for trap, _ in traps] == ["inverted_mask"] * 2
    said = {lines[int(where.rpartition(":")[2]) - 1].split()[0] for _, where in traps}
    assert said == {"for", "torch_npu.npu_fusion_attention(q,"}


@pytest.mark.compiler
@pytest.mark.dear
def test_rows_of_no_group_are_named_as_such(rehearse: Run) -> None:
    [(trap, message)] = told(rehearse, "leaves_rows")
    assert trap == "unassigned-rows"
    assert "not written" in message


@pytest.mark.compiler
@pytest.mark.dear
def test_ordinary_masks_and_scalers_are_passed_by(rehearse: Run) -> None:
    assert told(rehearse, "masks") == []


@pytest.mark.compiler
@pytest.mark.dear
def test_a_reported_call_is_named_and_its_neighbour_is_not(rehearse: Run) -> None:
    names = ["attention-mask-row", "copy-into-a-format", "format-in-a-capture", "long-top-k"]
    assert [trap for trap, _ in told(rehearse, "reported")] == names


def reports(soc: str, cann: str) -> Reports:
    fits = "fits" if cann else ""
    return Reports(RehearsalSettings(Path(), Path(), "2.13.0", cann=cann, cann_fits=fits, soc=soc))


@pytest.mark.parametrize(
    ("soc", "cann", "found"),
    [
        ("Ascend310P3", "9.1.0", True),
        ("Ascend310P3", "9.1.0-beta.1", True),
        ("Ascend310P3", "8.3.RC1", False),
        ("Ascend910B3", "9.1.0", False),
    ],
)
def test_a_row_holds_for_its_models_and_versions_alone(soc: str, cann: str, found: bool) -> None:
    call = {"indices": Tensors([TensorArgument("bool", (8,))])}
    assert bool(list(reports(soc, cann).of_call("index_put_", call))) is found
    numbers = {"indices": Tensors([TensorArgument("int64", (8,))])}
    assert list(reports(soc, cann).of_call("index_put_", numbers)) == []


HALF, BRAIN = "float16", "bfloat16"
GROUPS = {  # ends of 4 and 8, which as counts are 12 rows
    "x": Tensors([TensorArgument(HALF, (8, 16))]), "weight": Tensors(()),
    "largest_group_list": 8, "total_group_list": 12,
}  # fmt: skip


@pytest.mark.parametrize(("operator", "call", "cann", "found"), [
    ("npu_moe_gating_top_k", {"x": TensorArgument(HALF, (8, 128))}, "8.2.RC1", True),
    ("npu_moe_gating_top_k", {"x": TensorArgument(HALF, (8, 256))}, "8.2.RC1", False),
    ("npu_moe_gating_top_k", {"x": TensorArgument(HALF, (8, 128))}, "8.3.RC1", False),
    ("convolution", {"input": TensorArgument(BRAIN, (1, 3, 4, 8, 8))}, "8.0.0", True),
    ("convolution", {"input": TensorArgument(BRAIN, (1, 3, 8, 8))}, "8.0.0", False),
    ("npu_grouped_matmul", {"weight": Tensors([TensorArgument(HALF, (4, 360, 64), "FRACTAL_NZ")])},
     "9.0.0", True),
    ("npu_grouped_matmul", {"weight": Tensors([TensorArgument(HALF, (4, 360, 64))])}, "9.0.0",
     False),
    ("npu_format_cast", {"captured": False}, "9.0.0", False),
    ("npu_grouped_matmul", {**GROUPS, "group_list_type": 0}, "9.0.0", False),
    ("npu_grouped_matmul", {**GROUPS, "group_list_type": 1}, "9.0.0", True),
])  # fmt: skip
def test_a_row_asks_for_sizes_dtypes_and_formats(
    operator: str, call: dict[str, object], cann: str, found: bool
) -> None:
    assert bool(list(reports("Ascend910B3", cann).of_call(operator, call))) is found


def test_where_nobody_names_a_version_a_row_says_which_it_was_reported_of() -> None:
    asked = RehearsalSettings(Path(), Path(), "2.13.0", cann="9.0", soc="Ascend310B4")
    (row,) = Reports(asked).of_call("where", {})
    assert row.versions == "<9,>=8"
    gate = {"x": TensorArgument(HALF, (8, 128))}
    (row,) = Reports(asked).of_call("npu_moe_gating_top_k", gate)
    assert row.versions == "<8.3"
    (row,) = reports("Ascend310B4", "8.5.0").of_call("where", {})
    assert row.versions == ""
    assert list(reports("Ascend310B4", "9.0").of_call("where", {})) == []


def test_every_row_has_a_source_and_reads() -> None:
    rows = {row.name: row for _, row in read_reports(rules_root() / "ascend" / FILE)}
    assert len(rows) >= 10
    assert all(row.source.startswith("https://") for row in rows.values())
    with pytest.raises(JoyError, match="needs `source`"):
        read_report({"name": "a", "operators": "mm", "problem": "b", "action": "c"}, "here")

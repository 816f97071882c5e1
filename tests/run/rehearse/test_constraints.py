"""Relations of whole calls: expressions over a call's arguments, each with a source; one judge
reads them, and the vendor's own unit tests are the gate."""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.run.rehearse.constraints import (
    FUNCTIONS,
    TensorArgument,
    compare,
    evaluate,
    judge,
    promote,
    read_constraints,
    read_family,
    read_relation,
)
from joymigrate.run.rehearse.limits import ARGUMENTS, CONSTRAINTS, Limits, value_of_argument
from joymigrate.run.rehearse.limits import read_arguments as arguments_of
from tests.run.rehearse.conftest import Run

SHARED = Path(__file__).parents[3].parent / "shared"
F32 = "float32"


def tensor(*shape: int, dtype: str = F32) -> TensorArgument:
    return TensorArgument(dtype, shape)


def test_every_shipped_line_reads_and_names_arguments_that_its_kernels_have() -> None:
    found = read_constraints(rules_root() / CONSTRAINTS)
    known = arguments_of(rules_root() / ARGUMENTS)
    assert len(found) > 500
    for kernel, families in found.items():
        for family in families:
            assert all(one.source and one.grade for one in family.relations)
            if kernel not in known or family.arguments:
                continue
            names = {name for name, _ in known[kernel]} | {"tensors"}
            names |= {name for name, _ in family.let}
            shared = [one.want for one in family.relations if not set(one.names) <= names]
            assert len(shared) < len(family.relations), f"nothing of a family is about {kernel}"


@pytest.mark.parametrize(
    ("want", "said"),
    [
        ("self.shap == 3", "unknown property 'shap'.*shape"),
        ("brodcast(self, other)", "unknown function 'brodcast'.*broadcast"),
        ("self.shape ==", "is no expression"),
        ("[one for one in self.shape]", "may not hold ListComp"),
        ("__import__('os')", "unknown function"),
        ("(lambda: 1)()", "unknown function"),
    ],
)
def test_an_expression_that_means_nothing_is_refused(want: str, said: str) -> None:
    with pytest.raises(JoyError, match=said):
        read_relation({"want": want, "source": "s", "grade": "recorded"}, "here")


@pytest.mark.parametrize("left", ["source", "grade"])
def test_a_line_without_a_source_is_refused(left: str) -> None:
    raw = {"want": "axes_fit(dim, self.rank)", "source": "s", "grade": "recorded"}
    del raw[left]
    with pytest.raises(JoyError, match="has no source"):
        read_relation(raw, "here")


X, ROW = tensor(2, 3), tensor(3)


@pytest.mark.parametrize(
    ("want", "taken", "refused"),
    [
        ("broadcast(a, b) == c.shape", {"a": X, "b": ROW, "c": X}, {"a": X, "b": ROW, "c": ROW}),
        ("same(a.dtype, b.dtype)", {"a": X, "b": ROW}, {"a": X, "b": tensor(3, dtype="int8")}),
        ("axes_fit(dim, a.rank)", {"a": X, "dim": (0, -1)}, {"a": X, "dim": (1, -1)}),
        ("without(a.shape, dim, keep) == b.shape", {"a": X, "dim": 0, "keep": False, "b": ROW},
         {"a": X, "dim": 1, "keep": False, "b": ROW}),
        ("padded(a.shape, pad) == b.shape", {"a": ROW, "pad": (1, 2), "b": tensor(6)},
         {"a": ROW, "pad": (1, 2), "b": tensor(5)}),
        ("pooled(n, 2, 2, 0) == 3", {"n": 7}, {"n": 5}),
        ("castable(a.dtype, b.dtype)", {"a": tensor(1, dtype="int8"), "b": X},
         {"a": X, "b": tensor(1, dtype="int8")}),
    ],
)  # fmt: skip
def test_a_relation_tells_calls_apart(
    want: str, taken: dict[str, Any], refused: dict[str, Any]
) -> None:
    relation = read_relation({"want": want, "source": "s", "grade": "recorded"}, "here")
    assert evaluate(relation, {**FUNCTIONS, **taken}) is True
    assert evaluate(relation, {**FUNCTIONS, **refused}) is False


def test_types_are_promoted_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
             "float32", "float64", "complex64", "complex128")  # fmt: skip
    for one in names:
        for other in names:
            made = torch.promote_types(getattr(torch, one), getattr(torch, other))
            if str(made) != "torch.complex32":
                assert promote(one, other) == str(made).removeprefix("torch."), (one, other)


def test_what_cannot_be_asked_is_not_compared() -> None:
    limits = Limits("Ascend910B3")
    assert limits.judge("aclnnUnheardOf", [tensor(2)]) == (frozenset(), None)
    kinds, broken = limits.judge("aclnnAdd", [tensor(2), tensor(2), tensor(2)])
    assert broken is None
    assert {"dtypes", "shapes"} <= kinds
    assert "attributes" not in kinds


def test_a_real_form_is_judged_with_its_sizes_and_attributes() -> None:
    limits = Limits("Ascend910B3")
    assert limits.refused(["aclnnAdd T0/2/2x3 T0/1/3 S0/1 T0/2/2x3"]) == []
    (found,) = limits.refused(["aclnnAdd T0/2/2x3 T0/1/3 S0/1 T0/2/3x2"])
    assert "broadcast" in str(found.message)
    assert "out = float32[3, 2]" in str(found.message)
    nine = "x".join("2" * 9)
    assert limits.refused([f"aclnnSilu T0/9/{nine} T0/9/{nine}"]) == []
    (deep,) = limits.refused([f"aclnnRsqrt T0/9/{nine} T0/9/{nine}"])
    assert "at most 8 dimensions" in str(deep.message)
    # The upper bits of a register are nobody's: 0x100000001 is true, 2 ** 64 - 1 is -1.
    softmax = "aclnnSoftmax T0/2/2x3 W{} T0/2/2x3"
    kinds, none = limits.judged([softmax.format(2**64 - 1)])
    assert (none, "attributes" in kinds or "rank" in kinds) == ([], True)
    (axis,) = limits.refused([softmax.format(2)])
    assert "axes_fit(dim, self.rank)" in str(axis.message)
    pads = "aclnnReflectionPad1d T0/2/1x4 A{} T0/2/1x8"
    assert limits.refused([pads.format("2,2")]) == []
    assert limits.refused([pads.format("4,0")])


def attention(**changed: Any) -> dict[str, Any]:
    q = tensor(2, 4, 64, 128, dtype="float16")
    return {"query": q, "key": q, "value": q, "head_num": 4, "input_layout": "BNSD",
            "sparse_mode": 0, **changed}  # fmt: skip


HALF = "float16"


@pytest.mark.parametrize(
    ("operator", "call", "said"),
    [
        ("npu_fusion_attention_v3", attention(), ""),
        ("npu_fusion_attention_v3",
         attention(atten_mask=tensor(2, 1, 64, 64, dtype="bool")), ""),
        ("npu_fusion_attention_v3",
         attention(atten_mask=tensor(2, 1, 1, 64, dtype="bool")), "atten_mask = bool[2, 1, 1, 64]"),
        ("npu_fusion_attention_v3", attention(query=tensor(2, 4, 64, 128)), "query.dtype"),
        ("npu_fusion_attention_v3",
         attention(query=tensor(2, 4, 64, 769, dtype=HALF)), "head_size = 769"),
        ("npu_fusion_attention_v3",
         attention(value=tensor(2, 4, 64, 129, dtype=HALF)), "value = float16[2, 4, 64, 129]"),
        ("npu_fusion_attention_v3", attention(value=tensor(2, 4, 64, 64, dtype=HALF)), ""),
        ("npu_fusion_attention_v3",
         attention(query=tensor(2, 4, 64, 64, dtype=HALF)), "query = float16[2, 4, 64, 64]"),
        ("npu_fusion_attention_v3",
         attention(query=tensor(2, 64, 4 * 768, dtype=HALF), input_layout="BSH"), ""),
        ("npu_fusion_attention_v3",
         attention(query=tensor(2, 64, 4 * 769, dtype=HALF), input_layout="BSH"), "769"),
        ("npu_fusion_attention_v3",
         attention(query=tensor(9, 4, 1024, dtype=HALF), input_layout="TND"), "head_size = 1024"),
        ("npu_quant_matmul", {"scale": tensor(8, dtype="bfloat16")}, ""),
        ("npu_quant_matmul", {"scale": tensor(8, dtype=HALF)}, "scale = float16[8]"),
        ("npu_add_rms_norm", {"x1": tensor(2, dtype=HALF), "x2": tensor(2)}, "x2 = float32"),
        ("npu_rotary_mul", {"self": tensor(1, 24, 8, 72, dtype=HALF), "rotary_mode": "half",
                            "r1": tensor(1, 1, 8, 72), "r2": tensor(1, 1, 8, 72)}, "aligned"),
        ("npu_rotary_mul", {"self": tensor(1, 24, 8, 128, dtype=HALF), "rotary_mode": "half",
                            "r1": tensor(1, 1, 8, 128), "r2": tensor(1, 1, 8, 128)}, ""),
    ],
)  # fmt: skip
def test_operators_are_judged_by_the_same_table(
    operator: str, call: dict[str, Any], said: str
) -> None:
    limits = Limits("Ascend910B3")
    _, found = limits.refused_operator(f"npu::{operator}.default", call)
    assert (said in str(found.message)) if said and found else (not said and found is None)


def test_a_judge_names_the_kernel_that_tiling_belongs_to() -> None:
    families = read_constraints(rules_root() / CONSTRAINTS)["npu::npu_quant_matmul"]
    _, found = judge("npu::npu_quant_matmul", families, {"scale": tensor(8, dtype=HALF)})
    assert found is not None
    assert found.kernel == "aclnnQuantMatmul"


@pytest.mark.parametrize("soc", ["Ascend910A", "Ascend910B3", "Ascend310P3"])
def test_no_float8_before_the_models_that_have_it(soc: str) -> None:
    (found,) = Limits(soc).refused(["aclnnInplaceCopy T36/2 T0/2"])
    assert found.dtype == "float8_e4m3fn"
    assert Limits(soc).refused(["aclnnInplaceCopy T0/2 T0/2"]) == []


def test_what_holds_of_every_kernel_is_a_doubt_and_says_nothing_judged() -> None:
    windows = {"self": tensor(1, 1, 4, 4), "kernelSize": (2, 0), "stride": (1, 1)}
    families = read_constraints(rules_root() / CONSTRAINTS)["any"]
    _, found = compare("aclnnUnheardOf", families, windows)
    assert found is not None
    assert (found.grade, found.relation.want) == ("general", "all(n > 0 for n in kernelSize)")
    chip = Limits("Ascend910B3")
    chip.arguments = {**chip.arguments, "aclnnUnheardOf": (("kernelSize", "I"), ("self", "T"))}
    kinds, found = chip.judge("aclnnUnheardOf", [(1, 1), tensor(2)])
    assert (kinds, found) == (frozenset(), None)
    kinds, found = chip.judge("aclnnUnheardOf", [(1, 0), tensor(2)])
    assert (kinds, found and found.grade) == (frozenset(), "general")


def test_dtypes_were_compared_where_a_row_names_every_tensor() -> None:
    chip = Limits("Ascend910B3")
    pair = [tensor(2, 3), tensor(2, 3)]
    assert "dtypes" in chip.judge("aclnnAbs", pair)[0]
    chip.answers = {"aclnnAbs": chip.answers["aclnnAbs"][:1]}
    chip.parameters = {}
    assert "dtypes" not in chip.judge("aclnnAbs", pair)[0]


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
    assert refused / of_refusals >= 0.85  # 1288 of 1401
    assert taken / of_successes <= 0.002  # 2 of 2117


WIDE = "x.shape[-1] == y.shape[-1]"


def test_shapes_were_compared_where_those_of_every_tensor_were() -> None:
    one = {"want": "x.shape == y.shape", "source": "s", "grade": "recorded"}
    family = read_family({"family": "a", "wants": [one], **one}, "here")
    pair = {"x": tensor(2, 3), "y": tensor(2, 3)}
    assert "shapes" in judge("aclnnA", [family], pair)[0]
    assert "shapes" not in judge("aclnnA", [family], {**pair, "out": tensor(7)})[0]
    ranks = read_family({"family": "b", "wants": [{**one, "want": "x.rank == y.rank"}], **one}, "")
    assert judge("aclnnA", [ranks], pair) == ({"rank"}, None)
    half = read_family({**one, "family": "c", "wants": [{**one, "want": WIDE}]}, "here")
    assert "shapes" not in judge("aclnnA", [half], pair)[0]  # the last lengths alone


def test_a_result_of_another_length_is_refused_or_not_called_judged() -> None:
    """The vendor's accepted calls, each with one length of one result changed."""
    data = SHARED / "data" / "vendor_unit_tests_half.csv.gz"
    if not data.is_file():
        pytest.skip("the expectations of the vendor's unit tests are not here")
    sys.path.insert(0, str(SHARED / "cases" / "rehearse"))
    try:
        import ut_agreement as vendor  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    chip, passed, changed = Limits("Ascend910B3"), [], 0
    with gzip.open(data, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["code"] != "0" or row["soc"] in vendor.OTHER_MODELS:
                continue
            try:
                given, made = vendor.arguments(row["inputs"]), vendor.arguments(row["outputs"])
            except ValueError:
                continue
            for number, one in enumerate(made):
                for axis in range(len(one["shape"]) if isinstance(one, dict) else 0):
                    sizes = [n + (at == axis) for at, n in enumerate(one["shape"])]
                    other = [*given, *made]
                    other[len(given) + number] = {**one, "shape": sizes}
                    values = [value_of_argument(value) for value in other]
                    kinds, broken = chip.judge(row["api"], values, floats=True)
                    changed += 1
                    if broken is None and "shapes" in kinds:
                        passed.append(row["api"])
    assert changed > 5000
    assert passed == [], Counter(passed).most_common(9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("L0/2/2x3;0/1/4 L0/2/2x3;0/1/4", ""),
        ("L0/2/2x3;0/1/4 L0/2/2x3;0/1/5", "wants all"),
        ("L0/2/2x3;0/1/4 L0/2/2x3", "wants len"),
        ("L0/2/2x3;11/1/4 L0/2/2x3;11/1/4", "takes no float64"),
        ("L0/2/2x3;0/1/0 L0/2/2x3;0/1/0", ""),
    ],
)
def test_every_tensor_of_a_list_is_compared(given: str, said: str) -> None:
    """As a real call hands them over: the first one alone used to be looked at."""
    kinds, found = Limits("Ascend910B3").judged([f"aclnnForeachAbs {given}"])
    assert [said in str(one.message) for one in found] == [True] * bool(said)
    assert said or {"dtypes", "shapes"} <= kinds


def test_a_name_for_a_length_and_a_scale_of_rows_are_held_to_the_tensors() -> None:
    limits = Limits("Ascend910B3")
    five = TensorArgument("bfloat16", (1, 5, 256, 128))
    for name, heads in (("", "num_heads"), ("_v2", "num_query_heads")):
        operator = f"npu::npu_fused_infer_attention_score{name}"
        call = {"query": five, "input_layout": "BNSD", heads: 20}
        assert limits.refused_operator(operator, call)[1] is not None
        assert limits.refused_operator(operator, {**call, heads: 5})[1] is None
    x1, x2 = TensorArgument("int8", (2, 16, 128)), TensorArgument("int8", (128, 64))
    for shape, refused in (((2, 16), True), ((32,), False)):
        call = {"x1": x1, "x2": x2, "pertoken_scale": tensor(*shape)}
        assert (limits.refused_operator("npu::npu_quant_matmul", call)[1] is not None) is refused


@pytest.mark.parametrize(("cann", "told"), [("9.1.0", 1), ("9.0.0", 0)])
def test_a_strided_cache_is_told_of_the_release_that_checks_it(cann: str, told: int) -> None:
    from types import SimpleNamespace
    from typing import cast

    from joymigrate.run.rehearse.field_reports import Reports
    from joymigrate.run.rehearse.settings import RehearsalSettings

    settings = SimpleNamespace(chip="ascend", soc="Ascend910B3", cann=cann, cann_fits="listed")
    reports = Reports(cast(RehearsalSettings, settings))
    strided = TensorArgument("bfloat16", (1, 8, 4, 128), contiguous=False)
    plain = TensorArgument("bfloat16", (1, 8, 4, 128))
    operator = "npu_fused_infer_attention_score"
    assert len([*reports.of_call(operator, {"key": strided, "value": plain})]) == told
    assert [*reports.of_call(operator, {"key": plain, "value": plain})] == []


@pytest.mark.parametrize(
    ("shape", "layout"), [((64, 1), "FRACTAL_NZ"), ((64, 1), "ND"), ((64, 32), "FRACTAL_NZ")]
)
def test_a_weight_in_blocks_has_no_length_of_one(shape: tuple[int, int], layout: str) -> None:
    given = {"dtype": "bfloat16", "shape": (16, 64)}
    weight = {"dtype": "bfloat16", "shape": shape, "format": layout}
    made = {"dtype": "bfloat16", "shape": (16, shape[1])}
    said = Limits("Ascend910B3").refused_call("aclnnMatmulWeightNz", [given, weight], [made, "1"])
    assert bool(said) == (shape[1] == 1 and layout != "ND")


@pytest.mark.parametrize(("lengths", "refused"), [(1, False), (9, True), (16, False)])
def test_lengths_of_keys_cover_the_batch(lengths: int, refused: bool) -> None:
    call = {"query": tensor(16, 8, 1, 128), "input_layout": "BNSD", "num_heads": 8,
            "actual_seq_lengths_kv": (37,) * lengths}  # fmt: skip
    name = "npu::npu_fused_infer_attention_score"
    assert bool(Limits("Ascend910B3").refused_operator(name, call)[1]) == refused


LONGER = """\
import torch, torch_npu
x, w = torch.randn(8, 16).half().npu(), torch.randn(4, 16, 8).half().npu()
groups, sizes = torch.tensor([2, 2, 2, 1, 1]).npu(), dict(split_item=3, group_type=0)
torch_npu.npu_grouped_matmul([x], [w], group_list=groups, group_list_type=1, **sizes)
"""


@pytest.mark.compiler
def test_numbers_that_a_kernel_does_not_take_are_a_refusal_of_the_report(rehearse: Run) -> None:
    done = rehearse("python", "-c", LONGER)
    assert done.code != 0
    assert done.report is not None
    (row,) = done.report["refusals"]
    assert row["message"] == "a group list of 5 for 4 experts"
    assert (row["source"], row["where"]) == ("sglang#27748", "<string>:4")
    assert "REFUSALS: the chip would refuse 1 call of 1 kind" in done.err

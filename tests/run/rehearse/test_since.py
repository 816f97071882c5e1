"""Which releases of the chip's package have an operator's kernel."""

from __future__ import annotations

from joymigrate.chips import rules_root
from joymigrate.run.rehearse.constraints import TensorArgument, Tensors
from joymigrate.run.rehearse.limits import Limits
from joymigrate.run.rehearse.operator_releases import LIST, release_lines, releases, some_releases


def test_operators_that_other_releases_lack_are_named_with_their_releases() -> None:
    records = [
        {"calls": {"aten::isin.Tensor_Tensor": 2, "aten::add.Tensor": 9}},
        {"calls": {"aten::isin.Tensor_Tensor": 1, "npu::npu_geglu": 4, "aten::lgamma.out": 1}},
    ]
    rows = some_releases("ascend", records, [{"op": "aten::lgamma.out"}])
    assert {row["op"]: row["calls"] for row in rows} == {
        "aten::isin.Tensor_Tensor": 3,
        "npu::npu_geglu": 4,
    }
    assert rows[0]["releases"] == "2.1.0.post8-2.1,2.3.1.post2-"  # the younger one first
    (line,) = release_lines(rows)
    assert "2 operators: aten::isin.Tensor_Tensor (2.1.0.post8-2.1, 2.3.1.post2-)" in line
    assert release_lines([]) == []


def test_a_chip_without_a_list_says_nothing_and_operators_of_every_release_are_left_out() -> None:
    assert some_releases("none_such", [{"calls": {"aten::isin.Tensor_Tensor": 1}}], []) == []
    known = releases(rules_root() / "ascend" / LIST)
    assert "aten::mm" not in known
    assert len(known) > 500


def test_a_gradient_that_nothing_asks_for_moves_no_parameter() -> None:
    """LSTM's backward gets no gradient of h and c here: the sizes of batches stay."""
    limits = Limits("Ascend910B3")
    kernel, half = "aclnnLstmBackward", TensorArgument("float16", (4, 4))
    plain = {"T": half, "L": Tensors((half,)), "b": 1, "i": 1, "B": (1, 1, 1, 1)}
    own = {"dh": None, "dc": None, "batchSizesOptional": TensorArgument("int64", (4,))}
    call = {name: own.get(name, plain.get(kind)) for name, kind in limits.arguments[kernel]}
    del call["dropout"]  # a number with a point, which a trace doesn't tell
    assert limits.judge(kernel, [*call.values()])[1] is None
    call["input"] = TensorArgument("float64", (4, 4))
    _, refusal = limits.judge(kernel, [*call.values()])
    assert refusal is not None
    assert refusal.dtype == "float64"

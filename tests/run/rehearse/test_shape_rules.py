"""Relations of shapes and dtypes that the chip refuses."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from joymigrate.run.rehearse.limits import Limits  # noqa: E402
from joymigrate.run.rehearse.shape_rules import find_refusal  # noqa: E402


def tensor(*shape: int, dtype: str = "float16") -> Any:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def attention(**changed: Any) -> dict[str, Any]:
    q = tensor(2, 4, 64, 128)
    return {"query": q, "key": q, "value": q, "head_num": 4, "input_layout": "BNSD", **changed}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"atten_mask": tensor(2, 1, 64, 64, dtype="bool")}, ""),
        ({"atten_mask": tensor(2, 1, 1, 64, dtype="bool")}, "the mask's shape"),
        ({"query": tensor(2, 4, 64, 128, dtype="float32")}, "one dtype for all"),
        ({"query": tensor(2, 4, 64, 769)}, "head size 769"),
        ({"query": tensor(2, 64, 4 * 768), "input_layout": "BSH"}, ""),
        ({"query": tensor(2, 64, 4 * 769), "input_layout": "BSH"}, "head size 769"),
        ({"query": tensor(9, 4, 1024), "input_layout": "TND"}, "head size 1024"),
    ],
)
def test_attention_for_training(changed: dict[str, Any], said: str) -> None:
    found = find_refusal("npu::npu_fusion_attention_v3", attention(**changed))
    assert (said in str(found.message)) if said and found else (not said and found is None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_scales_of_a_quantised_product_are_taken(dtype: str) -> None:
    assert find_refusal("npu::npu_quant_matmul", {"scale": tensor(8, dtype=dtype)}) is None


def test_a_scale_of_half_precision_is_not() -> None:
    found = find_refusal("npu::npu_quant_matmul", {"scale": tensor(8)})
    assert found is not None
    assert found.dtype == "float16"


def test_addends_of_a_norm_have_one_dtype() -> None:
    half, single = tensor(2, 8), tensor(2, 8, dtype="float32")
    assert find_refusal("npu::npu_add_rms_norm", {"x1": half, "x2": half, "gamma": single}) is None
    found = find_refusal("npu::npu_add_rms_norm", {"x1": half, "x2": single})
    assert found is not None
    assert "x2 float32" in str(found.message)


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend910A", "Ascend310P3", "Ascend910_9391"])
def test_no_model_takes_floats_of_eight_bits(soc: str) -> None:
    (found,) = Limits(soc).refused(["aclnnInplaceCopy T36/2 T0/2"])
    assert found.dtype == "float8_e4m3fn"
    assert Limits(soc).refused(["aclnnInplaceCopy T0/2 T0/2"]) == []

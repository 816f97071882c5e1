"""W8A8 in the engine against the formula itself, from files that the test writes by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from joymigrate.run.serve.engine.quantised import quantised_reader
from joymigrate.run.serve.engine.weights import Weights

ROWS, INPUTS, TOKENS = 24, 32, 7


def write(folder: Path, *, static: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """A compressed-tensors checkpoint of one linear; its codes, scales, and the input's scale."""
    source = np.random.default_rng(3)
    codes = source.integers(-127, 128, (ROWS, INPUTS)).astype(np.int8)
    scales = source.uniform(0.001, 0.03, (ROWS, 1)).astype(np.float32)
    kind = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**kind, "strategy": "channel", "dynamic": False},
        "input_activations": {
            **kind, "strategy": "tensor" if static else "token", "dynamic": not static,
        },
    }  # fmt: skip
    quantised = {
        "quant_method": "compressed-tensors", "format": "int-quantized",
        "quantization_status": "compressed", "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }  # fmt: skip
    raw = {"model_type": "llama", "quantization_config": quantised}
    (folder / "config.json").write_text(json.dumps(raw))
    tensors = {"a.weight": torch.from_numpy(codes), "a.weight_scale": torch.from_numpy(scales)}
    if static:
        tensors["a.input_scale"] = torch.tensor([0.02])
    save_file(tensors, folder / "model.safetensors")
    return codes, scales, 0.02


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_is_the_formula_in_float64(
    tmp_path: Path, static: bool, dtype: torch.dtype
) -> None:
    codes, scales, fixed = write(tmp_path, static=static)
    reader: Any = quantised_reader(tmp_path, Weights(tmp_path))
    linear = reader.stored(["a"]).linear(dtype, torch.device("cpu"))
    x = torch.randn(TOKENS, INPUTS, generator=torch.Generator().manual_seed(5)).to(dtype)
    x[:, 3] *= 40  # the outlier that SmoothQuant is about
    x[2] = 0.0
    got = linear(x).double().numpy()

    values = x.double().numpy()
    most, least = (127, -128 if static else -127)
    step = np.full((TOKENS, 1), float(np.float32(fixed)))
    if not static:
        step = np.abs(values).max(-1, keepdims=True) / 127
        step[step == 0] = 1.0
    want = np.zeros((TOKENS, ROWS))
    for token in range(TOKENS):  # each product by itself, integers in Python
        for row in range(ROWS):
            total = 0
            for place in range(INPUTS):
                code = int(np.clip(np.rint(values[token, place] / step[token, 0]), least, most))
                total += code * int(codes[row, place])
            want[token, row] = total * step[token, 0] * float(scales[row, 0])
    # Two roundings to the dtype: of the result, and in float32 of the scales' product.
    unit = 2.0**-8 if dtype is torch.bfloat16 else 2.0**-21
    assert (np.abs(got - want) <= unit * np.abs(want) + 1e-6).all()
    assert not got[2].any()
    plain = values @ (codes * scales.astype(np.float64)).T  # the weights without int8 inputs
    assert np.abs(got - plain).max() > 1e-3  # the inputs really went through int8

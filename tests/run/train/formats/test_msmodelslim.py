"""Files of msmodelslim 26.1.0 itself (a Qwen2 of one layer, made on a CPU with the processors
iter_smooth and linear_quant) are read as they are meant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.msmodelslim import pack_scales, unpack_scales
from joymigrate.run.train.formats.open import open_quantised
from joymigrate.run.train.formats.stored_linears import Int8Linear
from joymigrate.run.train.formats.tensors import TensorFolder

FILES = Path(__file__).parent / "msmodelslim"
LAYER = "model.layers.0"


@pytest.mark.parametrize(("kind", "scheme"), [("dynamic", "w8a8"), ("static", "w8a8 static")])
def test_the_vendors_files_are_recognised(kind: str, scheme: str) -> None:
    reader = open_quantised(FILES / kind)
    assert reader is not None
    assert (reader.format, reader.scheme) == ("msmodelslim", scheme)
    linear = reader.linear(f"{LAYER}.self_attn.q_proj")
    assert isinstance(linear, Int8Linear)
    assert linear.shape == (32, 32)
    assert reader.linear("lm_head") is None
    assert (linear.x_scale is None) == (kind == "dynamic")


def test_both_of_the_vendors_forms_stand_for_the_same_weight() -> None:
    # The static form has no weight scale: it is found from deq_scale, packed in int64.
    one, other = open_quantised(FILES / "dynamic"), open_quantised(FILES / "static")
    assert one is not None
    assert other is not None
    for name in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"):
        dynamic, static = one.linear(f"{LAYER}.{name}"), other.linear(f"{LAYER}.{name}")
        assert dynamic is not None
        assert static is not None
        torch.testing.assert_close(static.dense(), dynamic.dense(), rtol=1e-5, atol=1e-7)


def test_the_bias_is_recovered_from_quant_bias_and_offset() -> None:
    # The vendor keeps the plain bias beside it; quant_bias rounds it to one step of deq_scale.
    reader, source = open_quantised(FILES / "static"), TensorFolder(FILES / "static")
    assert reader is not None
    shifted = 0
    for name in ("q_proj", "k_proj", "v_proj"):
        linear = reader.linear(f"{LAYER}.self_attn.{name}")
        assert isinstance(linear, Int8Linear)
        assert linear.bias is not None
        assert linear.x_scale is not None
        plain = source.raw(f"{LAYER}.self_attn.{name}.bias").float()
        step = linear.scale * linear.x_scale
        assert bool(((linear.bias - plain).abs() <= 0.51 * step + 1e-6).all())
        shifted += linear.x_offset is not None
    assert shifted  # otherwise the sign of the offset is not tried


def test_a_layer_that_the_vendor_left_plain_stays_plain() -> None:
    reader = open_quantised(FILES / "static")
    assert reader is not None
    assert reader.linear(f"{LAYER}.mlp.down_proj") is None


@given(st.lists(st.floats(2.0**-100, 2.0**100, width=32), min_size=1, max_size=9))
def test_scales_survive_packing(values: list[float]) -> None:
    scale = torch.tensor(values, dtype=torch.float32)
    assert pack_scales(scale).dtype is torch.int64
    assert torch.equal(unpack_scales(pack_scales(scale)), scale)


@pytest.mark.parametrize("kind", ["W4A8_DYNAMIC", "W8A16", "W8A8S"])
def test_other_kinds_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    folder = Path(shutil.copytree(FILES / "dynamic", tmp_path / "model"))
    path = folder / "quant_model_description.json"
    described = json.loads(path.read_text())
    described[f"{LAYER}.mlp.up_proj.weight"] = kind
    path.write_text(json.dumps(described))
    with pytest.raises(JoyError, match=kind):
        open_quantised(folder)

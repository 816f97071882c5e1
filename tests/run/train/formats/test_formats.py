"""Quantised linears are written and read back in every format; foreign ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.open import open_quantised
from joymigrate.run.train.formats.stored_linears import (
    Int4Linear,
    Int8Linear,
    Linear,
    join_linears,
    pack,
    unpack,
)
from joymigrate.run.train.formats.tensors import read_header
from joymigrate.run.train.formats.write import FormatWriter

CONFIG = {"model_type": "llama"}


def eight(rows: int = 6, inputs: int = 16, *, x_scale: float | None = None) -> Int8Linear:
    source = torch.Generator().manual_seed(rows)
    values = torch.randint(-127, 128, (rows, inputs), generator=source, dtype=torch.int8)
    fixed = None if x_scale is None else torch.tensor([x_scale])
    return Int8Linear(values, torch.rand(rows, generator=source) + 0.1, torch.rand(rows), fixed)


def four(rows: int = 6, inputs: int = 32, group: int = 16) -> Int4Linear:
    source = torch.Generator().manual_seed(rows)
    codes = torch.randint(0, 16, (rows, inputs), generator=source)
    scale = torch.rand(rows, inputs // group, generator=source) + 0.1
    return Int4Linear(pack(codes), scale, None, torch.rand(rows))


def written(folder: Path, linears: dict[str, Linear], format: str, **more: Any) -> Path:
    plain, out = folder / "plain", folder / "out"
    plain.mkdir(exist_ok=True)
    (plain / "config.json").write_text(json.dumps(CONFIG))
    (plain / "tokenizer.json").write_text("{}")
    first = next(iter(linears.values()))
    scheme = "w4a16" if isinstance(first, Int4Linear) else "w8a8"
    static = isinstance(first, Int8Linear) and first.x_scale is not None
    group = first.group if isinstance(first, Int4Linear) else 0
    with FormatWriter(out, format, torch.float32, **more) as writer:
        for name, linear in linears.items():
            writer.put_linear(name, linear)
        writer.put("model.norm.weight", torch.ones(4))
        writer.finish(plain, scheme, static=static, group=group)
    return out


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=30)
def test_codes_survive_packing(rows: int, eights: int, seed: int) -> None:
    codes = torch.randint(0, 16, (rows, 8 * eights), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(unpack(pack(codes)).long(), codes)


@pytest.mark.parametrize(
    ("linear", "format", "scheme"),
    [
        (eight(), "compressed-tensors", "w8a8"),
        (eight(x_scale=0.05), "compressed-tensors", "w8a8 static"),
        (four(), "compressed-tensors", "w4a16"),
        (eight(), "msmodelslim", "w8a8"),
        (eight(x_scale=0.05), "msmodelslim", "w8a8 static"),
    ],
)
@pytest.mark.parametrize("shard", [1 << 30, 64])
def test_a_linear_reads_back_as_it_was(
    tmp_path: Path, linear: Linear, format: str, scheme: str, shard: int
) -> None:
    out = written(tmp_path, {"a.b": linear}, format, shard_bytes=shard)
    reader = open_quantised(out)
    assert reader is not None
    assert (reader.format, reader.scheme) == (format, scheme)
    found = reader.linear("a.b")
    assert found is not None
    torch.testing.assert_close(found.dense(), linear.dense(), rtol=1e-6, atol=0)
    assert found.bias is not None
    # msmodelslim's static bias is rounded to a step of scale · input_scale
    torch.testing.assert_close(found.bias, linear.bias, rtol=0, atol=0.03)
    assert reader.linear("model.norm") is None
    assert (out / "tokenizer.json").is_file()
    assert (len(list(out.glob("*.safetensors"))) > 1) == (shard == 64)


def test_plain_folders_have_no_reader(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert open_quantised(tmp_path) is None


def changed(tmp_path: Path, change: Any) -> Path:
    """A W8A8 folder whose quantization_config was changed."""
    out = written(tmp_path, {"a": eight()}, "compressed-tensors")
    config = json.loads((out / "config.json").read_text())
    change(config["quantization_config"])
    (out / "config.json").write_text(json.dumps(config))
    return out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(quant_method="gptq"), "gptq"),
        (lambda c: c.update(format="float-quantized"), "float-quantized"),
        (lambda c: c.update(config_groups={}), "config_groups"),
        (lambda c: c["config_groups"].update(group_1=None), "not an object"),
        (lambda c: c["config_groups"]["group_0"].update(weights="int8"), "not an object"),
        (lambda c: c["config_groups"]["group_0"].update(input_activations=[8]), "not an object"),
        (lambda c: c.update(sparsity_config="dense"), "not an object"),
        (lambda c: c["config_groups"]["group_0"]["weights"].update(type="float"), "float"),
        (lambda c: c["config_groups"]["group_0"]["weights"].update(num_bits=4), "4 bits"),
        (lambda c: c.update(transform_config={"config_groups": {}}), "transform"),
    ],
)
def test_other_formats_are_refused_with_the_reason(
    tmp_path: Path, change: Any, reason: str
) -> None:
    with pytest.raises(JoyError, match=reason):
        open_quantised(changed(tmp_path, change))


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with FormatWriter(tmp_path / "out", "msmodelslim", torch.float32) as writer:
            writer.put("a", torch.ones(3))
            writer.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path: Path) -> None:
    out = written(tmp_path, {"a": eight()}, "compressed-tensors")
    with pytest.raises(JoyError, match="not empty"):
        written(tmp_path, {"a": eight(7)}, "compressed-tensors")
    assert written(tmp_path, {"a": eight(7)}, "compressed-tensors", replace=True) == out
    reader = open_quantised(out)
    assert reader is not None
    again = reader.linear("a")
    assert again is not None
    assert again.shape == (7, 16)


def test_linears_that_quantise_inputs_differently_are_not_joined() -> None:
    assert join_linears([eight(x_scale=0.1), eight(x_scale=0.2)]) is None
    assert join_linears([eight(), four()]) is None
    both = join_linears([four(6), four(4)])
    assert both is not None
    want = torch.cat([four(6).dense(), four(4).dense()])
    assert torch.equal(both.dense(), want)


@pytest.mark.parametrize("linear", [eight(), four()])
def test_rows_and_columns_are_those_of_the_weight(linear: Linear) -> None:
    order = torch.tensor([4, 0, 2])
    assert torch.equal(linear.rows(order).dense(), linear.dense()[order])
    half = linear.shape[1] // 2
    assert torch.equal(linear.columns(half, 2 * half).dense(), linear.dense()[:, half:])


def test_columns_inside_a_group_are_refused() -> None:
    with pytest.raises(JoyError, match="groups of 16"):
        four().columns(8, 24)


@pytest.mark.parametrize("table", [b"[]", b'{"a": {}}', b'{"a": {"data_offsets": ["0", "8"]}}'])
def test_an_odd_header_is_no_safetensors_file(tmp_path: Path, table: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(table).to_bytes(8, "little") + table)
    with pytest.raises(JoyError, match="is no safetensors file"):
        read_header(path)

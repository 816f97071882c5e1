"""Every reference follows its schema, and what it returns looks as the vendor's meta says."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from joymigrate.run.rehearse.refs import list_references, registry, signatures
from tests.run.rehearse.refs import all_samples

REGISTRY = list_references()
ROOT = Path(__file__).parents[4]


def parsed(name: str) -> Any:
    return torch._C.parse_schema(signatures()[name])


def test_defaults_are_the_schemas_alone() -> None:
    for name, item in REGISTRY.items():
        named = inspect.signature(item.function).parameters.values()
        assert all(one.default is inspect.Parameter.empty for one in named), name


def test_a_reference_is_called_as_its_schema_says() -> None:
    x, weight = torch.ones(2, 4), torch.ones(4)
    rms = REGISTRY["npu::npu_rms_norm"].function
    assert torch.equal(rms(x, weight)[0], rms(gamma=weight, self=x, epsilon=1e-6)[0])
    for wrong in ({}, {"gamma": weight, "gama": weight}):
        with pytest.raises(TypeError, match="it is declared as npu::npu_rms_norm"):
            rms(x, **wrong)
    with pytest.raises(TypeError, match="too many"):
        rms(x, weight, 1e-6, 1e-6)


def test_every_reference_names_its_source_and_has_a_sample() -> None:
    assert all(item.source for item in REGISTRY.values())
    assert sorted(set(REGISTRY) - set(all_samples())) == []


def outputs_of(name: str, call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    args, kwargs = copy.deepcopy(call)
    return tree_flatten(REGISTRY[name].function(*args, **kwargs))[0]


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_reference_returns_what_its_schema_declares(name: str) -> None:
    returns = parsed(name).returns
    for args, kwargs in all_samples()[name]:
        result = REGISTRY[name].function(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        if len(returns) == 0:
            assert result is None
        elif len(returns) > 1:
            assert len(result) == len(returns)
        values = [v for v in tree_flatten(result)[0] if isinstance(v, torch.Tensor)]
        assert all(v.device.type == "cpu" for v in values)
        assert not any(v.requires_grad for v in values)
        assert not any(v.is_floating_point() and v.isnan().any() for v in values)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_only_annotated_arguments_are_written(name: str) -> None:
    arguments = parsed(name).arguments
    for args, kwargs in all_samples()[name]:
        given, named = copy.deepcopy(args), copy.deepcopy(kwargs)
        REGISTRY[name].function(*given, **named)
        for number, argument in enumerate(arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                continue
            if name in WRITTEN_UNDECLARED or argument.name == "out":
                continue  # `Tensor[] out` carries no mark
            before = args[number] if number < len(args) else kwargs.get(argument.name)
            after = given[number] if number < len(given) else named.get(argument.name)
            for old, new in zip(tree_flatten(before)[0], tree_flatten(after)[0], strict=True):
                if isinstance(old, torch.Tensor):
                    if old.is_floating_point() and old.itemsize == 1:
                        old, new = old.view(torch.uint8), new.view(torch.uint8)
                    assert torch.equal(old.nan_to_num(), new.nan_to_num()), argument.name


# Operators whose chip kernel writes into inputs that the schema does not mark.
WRITTEN_UNDECLARED = {
    "npu::npu_apply_rotary_pos_emb",
    "npu::npu_dequant_rope_quant_kvcache",
    "npu::npu_kv_rmsnorm_rope_cache",
    "npu::npu_mla_prolog",
    "npu::npu_mla_prolog_v2",
    "npu::npu_rope_quant_kvcache",
    "npu::npu_apply_adam_w.out",  # max_grad_norm is the running maximum
    "atb::_npu_group_topk",
}


@cache
def vendor_shapes() -> dict[str, Any]:
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed (pip install joymigrate[ascend])")
    done = subprocess.run(
        [sys.executable, "-m", "tests.run.rehearse.refs.vendor_meta"],
        cwd=ROOT,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Where the vendor's meta kernel and the vendor's C++ disagree, and which of them we follow.
META_DIFFERS: dict[str, str] = {
    "npu::npu_rms_norm_quant_v2": "the C++ leaves rstd empty for inputs without gradient",
    "npu::npu_dropout_with_add_softmax": "the C++ packs the mask into bits, meta gives bytes",
    "npu::npu_fusion_attention_grad_v2": "the meta kernel fails without rope parts",
    "npu::npu_geglu_grad": "the meta kernel lacks the schema's defaults",
    "npu::npu_apply_adam_w.out": "the meta kernel lacks the out arguments",
    "npu::npu_scatter_list_": "the meta kernel returns what the schema does not",
}


@pytest.mark.parametrize("name", sorted(n for n in REGISTRY if n.startswith("npu::")))
def test_shapes_and_dtypes_are_those_of_the_vendors_meta_kernel(name: str) -> None:
    if name in META_DIFFERS:
        pytest.skip(META_DIFFERS[name])
    for number, call in enumerate(all_samples()[name]):
        expected = vendor_shapes()[f"{name}#{number}"]
        if isinstance(expected, str):
            if expected.startswith("NotImplementedError"):
                pytest.skip("the wheel has no meta kernel for it")
            pytest.fail(f"the vendor's meta kernel refuses sample {number}: {expected}")
        ours = [
            [list(v.shape), str(v.dtype)] if isinstance(v, torch.Tensor) else None
            for v in outputs_of(name, call)
        ]
        assert ours == expected, f"sample {number}"


def test_the_registry_holds_every_name_twice_and_stand_ins_that_refuse() -> None:
    found = registry()
    assert found["aten::npu_rms_norm"] is found["npu::npu_rms_norm"]
    assert set(found) >= set(REGISTRY)
    with pytest.raises(NotImplementedError, match="npu_stride_add has no reference"):
        found["npu::npu_stride_add"].function(torch.ones(1))


def test_the_table_has_every_operator_with_a_source_or_a_reason() -> None:
    from joymigrate.run.rehearse.refs.__main__ import table

    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", table(), re.M)
    assert sorted(name for name, _ in rows) == sorted(signatures())
    with_source = {name for name, said in rows if ".py`: " in said}
    assert with_source == set(signatures()) & set(REGISTRY)

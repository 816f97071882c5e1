"""Tables on the simulated chip: the CPU's numbers, no operator elsewhere, and a cache in 1 GiB."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from joymigrate.run import kernels
from tests.run.rehearse.conftest import Run, rehearse  # noqa: F401

PROGRAM = str(Path(__file__).parent / "programs" / "on_chip.py")


@pytest.mark.compiler
@pytest.mark.parametrize("what", ["bags", "cached"])
@pytest.mark.slow
def test_losses_are_the_cpus_and_nothing_falls_back(rehearse: Run, what: str) -> None:  # noqa: F811
    done = rehearse("python", PROGRAM, what, options=("--memory", "1GiB"))
    assert done.code == 0, done.err[-3000:]
    chip, cpu = json.loads(done.out)["losses"]
    assert chip == pytest.approx(cpu, rel=1e-5)
    assert done.report is not None
    assert done.report["fallbacks"] == []
    assert done.report["refusals"] == []


@pytest.mark.slow
@pytest.mark.compiler
def test_without_the_cache_the_table_does_not_fit(rehearse: Run) -> None:  # noqa: F811
    done = rehearse("python", PROGRAM, "large", options=("--memory", "1GiB"))
    assert done.code == 1
    assert "OutOfMemoryError" in done.err


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("form", ["offsets", "last offset", "matrix", "weighted"])
def test_a_replaced_bag_computes_the_same(mode: str, form: str) -> None:
    if form == "weighted" and mode != "sum":
        pytest.skip("torch has weighted bags for sums only")
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(20, 4, mode=mode, include_last_offset=form == "last offset")
    ids = torch.randint(0, 20, (3, 4) if form == "matrix" else (12,))
    arguments = {
        "offsets": (torch.tensor([0, 5, 5]),), "last offset": (torch.tensor([0, 5, 5, 12]),),
        "matrix": (), "weighted": (torch.tensor([0, 5, 5]), torch.rand(12)),
    }[form]  # fmt: skip
    want = bag(ids, *arguments)
    want.square().sum().backward()
    gradient, bag.weight.grad = bag.weight.grad, None
    with kernels.apply(bag, only=["embedding_bag"], request={"embedding_bag": "segments"}) as done:
        assert [item.implementation for item in done.replaced] == ["segments"]
        got = bag(ids, *arguments)
        got.square().sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(bag.weight.grad, gradient)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"padding_idx": 0}, "padding_idx"), ({"max_norm": 1.0}, "max_norm")],
)
def test_bags_with_what_only_torch_has_are_left(options: dict, reason: str) -> None:
    report = kernels.apply(nn.EmbeddingBag(5, 2, **options), "ascend", only=["embedding_bag"])
    assert not report.replaced
    assert reason in report.left[0].reason


def test_sparse_gradients_stay_sparse_where_they_can_be_added() -> None:
    bag = nn.EmbeddingBag(5, 2, mode="sum", sparse=True)
    kernels.apply(bag, "ascend", only=["embedding_bag"])
    bag(torch.tensor([[1, 2]])).sum().backward()
    assert bag.weight.grad.is_sparse


@pytest.mark.compiler
def test_recommendation_models_stay_on_the_chip(rehearse: Run) -> None:  # noqa: F811
    program = str(Path(__file__).parent / "programs" / "models_on_chip.py")
    done = rehearse("python", program, "3")
    assert done.code == 0, done.err[-3000:]
    for name, (cpu, chip) in json.loads(done.out).items():
        assert chip == pytest.approx(cpu, rel=1e-5), name
    assert done.report is not None
    assert done.report["fallbacks"] == []

"""Models as they lie on disk: a click model of `train export`, and a compiled package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking import program
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.tensors import as_arrays
from joymigrate.run.serve.ranking.trial import find_freedom


def test_an_exported_click_model_scores_as_its_module(tmp_path: Path) -> None:
    from safetensors.torch import save_model

    from joymigrate.run.train.tasks.ctr import SIZES, deepfm

    torch.manual_seed(0)
    sizes = {**SIZES, "buckets": 50, "categories": 3, "numbers": 2}
    model = deepfm(sizes).eval()
    save_model(model, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert program.recognise(tmp_path)
    loaded = program.load(tmp_path)
    assert find_freedom(loaded).alone == ""
    requests = [draw(loaded.signature, count, 0, count) for count in (1, 3, 7)]
    batch = merge(loaded.signature, requests)
    outputs, how = RankingEngine(loaded).execute(batch)
    with torch.no_grad():
        wanted = model(torch.from_numpy(batch.arrays["categories_bf"]),
                       torch.from_numpy(batch.arrays["numbers_bg"]))  # fmt: skip
    assert how == "eager"
    np.testing.assert_allclose(outputs[0], wanted.numpy().reshape(outputs[0].shape), atol=1e-6)


@pytest.mark.parametrize("positional", [0, 1, 2])
def test_programs_are_called_as_they_were_exported(tmp_path: Path, positional: int) -> None:
    class Sum(torch.nn.Module):
        def forward(self, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return X.sum(-1) + 10 * y

    given = {"X": torch.zeros(4, 3), "y": torch.zeros(4)}
    count = torch.export.Dim("count")
    exported = torch.export.export(
        Sum(), tuple(given.values())[:positional], kwargs=dict(list(given.items())[positional:]),
        dynamic_shapes={name: {0: count} for name in given},
    )  # fmt: skip
    torch.export.save(exported, tmp_path / "sum.pt2")
    loaded = program.load(tmp_path / "sum.pt2")
    request = draw(loaded.signature, 5, 0)
    found = RankingEngine(loaded).execute(merge(loaded.signature, [request]))[0][0]
    wanted = request.arrays["x"].sum(-1) + 10 * request.arrays["y"]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert loaded.calling is not None
    called = as_arrays(loaded.run(request.arrays, exported.module()))[0]  # as compiled code is
    np.testing.assert_allclose(called, wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("positional", [True, False])
def test_a_compiled_package_answers_with_its_description_and_not_without(
    tmp_path: Path, positional: bool
) -> None:
    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).sum(-1)

    exported = torch.export.export(
        Sum(), (torch.zeros(4, 3),) if positional else (),
        kwargs=None if positional else {"x": torch.zeros(4, 3)},
        dynamic_shapes={"x": {0: torch.export.Dim("count")}},
    )  # fmt: skip
    path = tmp_path / "sum.pt2"
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    assert program.kind_of(path) == program.PACKAGE
    with pytest.raises(JoyError, match="does not say what goes in"):
        program.load(path)
    (tmp_path / "sum.ranking.json").write_text(json.dumps({
        "schema": "joymigrate.ranking-model/1",
        "dimensions": {"inputs": {"x": ["float32", "candidates", 3]},
                       "outputs": {"score": ["float32", "candidates"]}},
    }))  # fmt: skip
    loaded = program.load(path)
    assert "no graph" in find_freedom(loaded).alone
    for count in (1, 5, 40):
        request = draw(loaded.signature, count, 0, count)
        found = RankingEngine(loaded).execute(merge(loaded.signature, [request]))[0][0]
        np.testing.assert_allclose(found, request.arrays["x"] @ np.arange(3.0), atol=1e-5)

"""Folders that DeepSpeed 0.19.8 wrote on two ranks (stages 1 and 3), and what is written for it.

The samples are five steps of the small model below; the next losses of DeepSpeed are `NEXT`. It
read what this writes (`--format zero`) on one rank and on two, under stages 1, 2 and 3, and went on
with the same losses to the last bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.run.checkpoint import pickle_files, read, universal, write

SAMPLES = Path(__file__).parents[2] / "samples" / "deepspeed"
NEXT = (0.042631716, 0.031086149, 0.006882919, 0.0007349436, 0.004641054)


def losses(state: Mapping[str, Any]) -> list[float]:
    """The next losses of the run whose state this is, by torch alone."""
    model = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 3))
    model.load_state_dict(state["model"])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    held = state["optimizer"]
    moments = {key: value for key, value in held.items() if isinstance(value, Mapping)}
    for name, weight in model.named_parameters():
        mine = {key: by_name[name].clone() for key, by_name in moments.items()}
        optimiser.state[weight] = {"step": held["step"].clone(), **mine}
    found = []
    for step in range(5, 10):
        loss = model(torch.sin(torch.arange(28.0).reshape(4, 7) * (step + 1))).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("stage", [1, 3])
def test_a_real_folder_is_read_without_deepspeed_and_comes_back_bit_equal(
    tmp_path: Path, stage: int
) -> None:
    source = f"{SAMPLES}/zero{stage}"
    convert = ["convert", "checkpoint"]
    assert run([*convert, source, "-o", f"{tmp_path}/plain", "--trust"]) == 1  # fp16 is left out
    assert run([*convert, f"{tmp_path}/plain", "-o", f"{tmp_path}/zero", "--format", "zero"]) == 0
    first = read.read(tmp_path / "plain")[0]
    again, kind, lost = read.read(tmp_path / "zero", trust=True)
    assert (kind, lost, again["global_steps"]) == ("universal", [], 5)
    assert list(again["model"]) == list(first["model"])
    for key in ("exp_avg", "exp_avg_sq"):
        assert all(
            torch.equal(v, first["optimizer"][key][n]) for n, v in again["optimizer"][key].items()
        )
    assert losses(first) == pytest.approx(NEXT, rel=1e-4)
    assert losses(again) == losses(first)
    assert first["optimizer"]["param_groups"][0]["lr"] == 0.01


def test_a_plain_training_state_becomes_a_folder_for_deepspeed(tmp_path: Path) -> None:
    """Moments by number find their weights past the buffers; the rest is the client's state."""
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Conv1d(4, 4, 1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.randn(3, 2, 8)).square().mean().backward()
    optimiser.step()
    state = {"model": model.state_dict(), "optimizer": optimiser.state_dict(), "note": "mine"}
    lost = write.write(state, tmp_path / "out", "zero")
    assert [line.split(":")[0] for line in lost] == ["1.running_mean and 2 more"]
    again, _, _ = read.read(tmp_path / "out", trust=True)
    assert again["note"] == "mine"
    assert list(again["model"]) == list(state["model"])
    for number, (name, _) in enumerate(model.named_parameters()):
        mine = optimiser.state_dict()["state"][number]["exp_avg"]
        assert torch.equal(again["optimizer"]["exp_avg"][name], mine)
    assert universal.names_of({0: {"exp_avg": torch.ones(9)}}, model.state_dict()) == {}


def test_a_clients_state_called_model_is_not_the_weights(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "zero3", tmp_path / "zero3")
    for path in (tmp_path / "zero3").rglob("*model_states.pt"):
        torch.save({**torch.load(path, weights_only=False), "model": "tiny"}, path)
    found, _, _ = read.read(tmp_path / "zero3", trust=True)
    assert losses(found) == pytest.approx(NEXT, rel=1e-4)
    assert found["client_state"] == {"model": "tiny"}


def trained(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    model(torch.randn(3, 4)).square().mean().backward()
    optimiser.step()
    return {"model": model.state_dict(), "optimizer": optimiser.state_dict()}


@pytest.mark.parametrize("case", ["a part of the weights", "several groups", "names"])
def test_moments_go_to_no_weight_that_may_be_another(tmp_path: Path, case: str) -> None:
    """Numbers of an optimiser follow its own order: equal shapes do not tell whose they are."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    first, second = ([{"params": list(part.parameters())}] for part in model)
    groups = {"a part of the weights": second, "several groups": [*second, *first]}
    given: Any = groups.get(case) or list(model.named_parameters())[::-1]
    lost = write.write(trained(torch.optim.Adam(given), model), tmp_path / "out", "zero")
    again, _, _ = read.read(tmp_path / "out", trust=True)
    assert any("cannot be told" in line for line in lost) is (case != "names")
    assert set(again["model"]) == set(model.state_dict())
    if case == "names":
        gradients = {name: one.grad for name, one in model.named_parameters()}
        for name, moment in again["optimizer"]["exp_avg"].items():
            torch.testing.assert_close(moment, 0.1 * gradients[name])


def test_what_deepspeeds_folder_cannot_hold_of_an_optimiser_is_named(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    state = trained(torch.optim.ASGD(model.parameters()), model)
    assert write.write(state, tmp_path / "one", "zero") == [
        "optimizer: eta, mu: not of a weight's shape"
    ]
    several = {**state, "optimizer": [state["optimizer"]] * 2}
    assert "not the state of one optimiser" in write.write(several, tmp_path / "two", "zero")[0]


def test_a_weight_without_dimensions_keeps_its_moments(tmp_path: Path) -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * self.scale

    model = Scaled()
    state = trained(torch.optim.Adam(model.parameters()), model)
    assert write.write(state, tmp_path / "out", "zero") == []
    again, _, _ = read.read(tmp_path / "out", trust=True)
    assert again["optimizer"]["exp_avg"]["scale"] == state["optimizer"]["state"][2]["exp_avg"]


def test_frozen_and_tied_weights_of_zero_are_not_forgotten(tmp_path: Path) -> None:
    for path in (SAMPLES / "zero3").rglob("*model_states.pt"):
        head = torch.load(path, weights_only=True)
        rank = int(path.name.split("_")[3])
        head["frozen_param_shapes"] = {"ice": torch.Size([3])}
        head["frozen_param_fragments"] = {"ice": torch.tensor([[1.0, 2.0], [3.0, 0.0]][rank])}
        head["shared_params"] = {"head.weight": "0.weight"}
        torch.save(head, tmp_path / path.name)
    for path in (SAMPLES / "zero3").rglob("*optim_states.pt"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model = read.read(tmp_path, trust=True)[0]["model"]
    assert model["ice"].tolist() == [1.0, 2.0, 3.0]
    assert torch.equal(model["head.weight"], model["0.weight"])


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="under `model`"):
        write.write({"w": torch.ones(2)}, tmp_path / "out", "zero")
    assert not (tmp_path / "out").exists()


def test_the_loss_scale_is_carried_and_a_stage_need_not_be_named(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "zero1", tmp_path / "run")
    for file in (tmp_path / "run" / "global_step5").glob("*_optim_states.pt"):
        held = torch.load(file, weights_only=False, pickle_module=pickle_files.PICKLE)
        held = held["optimizer_state_dict"]
        kept = {
            key: held[key] for key in ("single_partition_of_fp32_groups", "base_optimizer_state")
        }
        kept["loss_scaler"] = SimpleNamespace(cur_scale=16.0, dynamic=True)
        torch.save({"optimizer_state_dict": kept}, file)  # no stage, as the bfloat16 optimiser's
    state = read.read(tmp_path / "run", trust=True)[0]
    assert state["loss_scaler"] == {"cur_scale": 16.0, "dynamic": True}
    assert set(state["model"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    write.write(state, tmp_path / "out", "zero")
    scaler = torch.load(
        tmp_path / "out" / "step" / "zero" / universal.GLOBAL,
        weights_only=False, pickle_module=pickle_files.PICKLE,
    )["loss_scaler"]  # fmt: skip
    kind = type(scaler)
    assert (
        f"{kind.__module__}.{kind.__name__}"
        == "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"
    )
    numbers = {"cur_scale": 16.0, "dynamic": True, "dtype": torch.float16}
    assert vars(scaler) == {**numbers, "given": ()}  # what it was made with: nothing
    lost = write.write({**state, "optimizer": {"groups": {"flat": 1}}}, tmp_path / "two", "zero")
    assert "names no weights" in lost[0]

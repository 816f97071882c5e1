"""Folders of many files: all of a run is read; what is not is named, what lacks is an error."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.run.checkpoint import read

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def state() -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights and an AdamW's state after a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 3))
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 7)).square().mean().backward()
    optimiser.step()
    return dict(model.state_dict()), optimiser.state_dict()


def shards(folder: Path, weights: dict[str, Any], end: str = "safetensors") -> None:
    """Two shards and their index, as transformers writes them."""
    stem = "model" if end == "safetensors" else "pytorch_model"
    names, places = list(weights), {}
    for number, part in enumerate((names[:2], names[2:]), start=1):
        file = f"{stem}-{number:05d}-of-00002.{end}"
        some = {name: weights[name] for name in part}
        save = safetensors.save_file if end == "safetensors" else torch.save
        save(some, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{stem}.{end}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("end", ["safetensors", "bin"])
def test_a_trainers_folder_keeps_its_optimiser(tmp_path: Path, state: Any, end: str) -> None:
    weights, moments = state
    shards(tmp_path, weights, end)
    torch.save(moments, tmp_path / "optimizer.pt")
    torch.save({"python": random.getstate()}, tmp_path / "rng_state.pth")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 3}')
    (tmp_path / "mine.dat").write_bytes(b"?")
    found, kind, lost = read.read(tmp_path, trust=True)
    assert (kind, lost) == ("folder", ["mine.dat: a file that is not read"])
    assert all(torch.equal(found["model"][name], value) for name, value in weights.items())
    assert found["trainer_state"] == {"global_step": 3}
    assert found["optimizer"]["state"][0]["exp_avg"].equal(moments["state"][0]["exp_avg"])


def test_what_needs_trust_is_named_and_the_weights_are_read(tmp_path: Path, state: Any) -> None:
    shards(tmp_path, state[0])
    torch.save({"object": Path("a")}, tmp_path / "scheduler.pt")
    found, _, lost = read.read(tmp_path)
    assert set(found) == set(state[0])
    assert lost[0].startswith("scheduler.pt: ")
    assert "--trust" in lost[0]


def test_a_missing_shard_is_an_error(tmp_path: Path, state: Any) -> None:
    shards(tmp_path, state[0])
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(JoyError, match=r"the index names model-00002"):
        read.read(tmp_path)


def test_two_files_with_one_name_are_not_mixed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        safetensors.save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(JoyError, match="'w' is in this file and in another"):
        read.read(tmp_path)


def test_a_cut_file_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    assert run(["convert", "checkpoint", str(file), "-o", str(tmp_path / "out.pt")]) == 2
    assert "not a whole safetensors file" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [1, 2])
def test_megatrons_older_folders(tmp_path: Path, state: Any, ranks: int) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    for rank in range(ranks):
        place = tmp_path / "iter_0000010" / f"mp_rank_{rank:02d}"
        place.mkdir(parents=True)
        torch.save({"iteration": 10, "model": state[0]}, place / "model_optim_rng.pt")
    found, kind, lost = read.read(tmp_path)
    assert kind == "Megatron's ranks"
    if ranks == 1:
        assert (found["iteration"], lost) == (10, [])
    else:
        assert list(found) == ["mp_rank_00", "mp_rank_01"]
        assert "the parts of 2 ranks stay apart" in lost[0]


def test_deepspeed_without_zero(tmp_path: Path, state: Any) -> None:
    (tmp_path / "latest").write_text("global_step5")
    step = tmp_path / "global_step5"
    step.mkdir()
    file = {"module": state[0], "optimizer": state[1], "global_steps": 5, "mine": 7}
    torch.save(file, step / "mp_rank_00_model_states.pt")
    found, kind, lost = read.read(tmp_path)
    assert (kind, lost, found["mine"]) == ("deepspeed", [], 7)
    assert set(found["model"]) == set(state[0])


def test_folders_of_a_distributed_checkpoint_and_lightnings_file(
    tmp_path: Path, state: Any
) -> None:
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp

    torch.save({"model": state[0]}, tmp_path / "whole.pt")
    root = tmp_path / "run"
    root.mkdir()
    torch_save_to_dcp(str(tmp_path / "whole.pt"), str(root / "pytorch_model_fsdp_0"))
    torch.save({"scale": 2.0}, root / "scaler.pt")
    found, kind, lost = read.read(root, trust=True)
    assert (kind, lost, found["scaler"]) == ("distributed", [], {"scale": 2.0})
    assert set(found["model"]) == set(state[0])
    torch.save({"epoch": 2}, root / "pytorch_model_fsdp_0" / "meta.pt")
    assert read.read(root / "pytorch_model_fsdp_0", trust=True)[0]["epoch"] == 2


def test_a_whole_module_is_its_weights_and_says_so(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    found, _, lost = read.read(tmp_path / "module.pt", trust=True)
    assert set(found) == {"weight", "bias"}
    assert "Linear" in lost[0]


def test_files_that_are_cut_short_are_named(tmp_path: Path, state: Any) -> None:
    safetensors.save_file(state[0], tmp_path / "model.safetensors")
    (tmp_path / "trainer_state.json").write_text('{"global_step"')
    (tmp_path / "optimizer.bin").write_bytes(b"junk")
    torch.save({"one": 1}, tmp_path / "rng_state.pth")
    torch.save({"two": 2}, tmp_path / "rng_state_0.pth")
    found, _, lost = read.read(tmp_path)
    assert found["rng_state"] == {"one": 1}
    assert [one.partition(":")[0] for one in lost] == [
        "optimizer.bin", "trainer_state.json", "rng_state_0.pth"
    ]  # fmt: skip


@pytest.mark.parametrize("folder", ["mp_rank_00", "zarr", "iter_0000001/zarr"])
def test_a_megatron_folder_without_what_is_read_is_an_error(tmp_path: Path, folder: str) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(JoyError):
        read.read(tmp_path)


@pytest.mark.parametrize("name", ["mp_rank_00_model_states.pt", "mp_rank_00/model_optim_rng.pt"])
def test_a_file_of_no_mapping_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    torch.save([1], tmp_path / name)
    with pytest.raises(JoyError, match="no mapping"):
        read.read(tmp_path)


def test_a_licence_is_no_part_of_a_run_and_weights_are(tmp_path: Path, state: Any) -> None:
    torch.save(state[1], tmp_path / "optimizer.pt")
    (tmp_path / "LICENSE").write_text("may be used")
    found, _, lost = read.read(tmp_path)
    assert found["model"] == {}
    assert lost == ["the weights: no file of them is in the folder"]
    safetensors.save_file(state[0], tmp_path / "model.safetensors")
    assert read.read(tmp_path)[2] == []

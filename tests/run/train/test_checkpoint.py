"""Checkpoints as a library: what comes back, what a kill leaves, what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from joymigrate.errors import JoyError
from joymigrate.run.train import Checkpointer
from joymigrate.run.train.checkpoint_store import CheckpointStore


def made(seed: int = 0) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimiser: Any, steps: int) -> list[float]:
    """Steps on numbers that the random state draws."""
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_loop_goes_on_as_if_it_had_not_stopped(tmp_path: Path, asynchronous: bool) -> None:
    model, optimiser = made()
    keeper = Checkpointer(tmp_path, model, optimiser, asynchronous=asynchronous)
    assert keeper.load() is None
    train(model, optimiser, 5)
    keeper.save(5, step=5, note="half")
    expected = train(model, optimiser, 5)  # goes on while the save runs
    keeper.close()

    other, fresh = made(seed=9)
    again = Checkpointer(tmp_path, other, fresh)
    assert again.load() == {"step": 5, "note": "half"}
    assert train(other, fresh, 5) == expected


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    model, optimiser = made()
    keeper = Checkpointer(tmp_path, model, optimiser, keep=2)
    for step in range(1, 6):
        train(model, optimiser, 1)
        keeper.save(step)
    keeper.close()
    assert CheckpointStore(tmp_path).numbers() == [4, 5]
    assert (tmp_path / "latest").read_text() == "step-00000005\n"


def test_what_a_loop_calls_its_best_may_be_anything(tmp_path: Path) -> None:
    model, optimiser = made()
    keeper = Checkpointer(tmp_path, model, optimiser, asynchronous=False)
    keeper.save(1, best=0.93)
    assert keeper.shelf.extra(1) == {"best": 0.93}


def test_an_adapter_is_saved_without_what_is_frozen(tmp_path: Path) -> None:
    model, _ = made()
    for parameter in model[0].parameters():  # type: ignore[index]
        parameter.requires_grad = False
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    keeper = Checkpointer(tmp_path, model, optimiser, trainable_only=True)
    train(model, optimiser, 2)
    keeper.save(2)
    keeper.close()
    from torch.distributed.checkpoint import FileSystemReader

    names = FileSystemReader(tmp_path / "step-00000002").read_metadata().state_dict_metadata
    assert not any(name.startswith("model.0.") for name in names)
    before = [p.clone() for p in trained]
    train(model, optimiser, 2)
    assert keeper.load() == {}
    assert all(torch.equal(a, b) for a, b in zip(before, trained, strict=True))


def whole(tmp_path: Path) -> CheckpointStore:
    """Two checkpoints of one small file each."""
    shelf = CheckpointStore(tmp_path, keep=3)
    for number in (1, 2):
        shelf.begin(number, {"step": number})
        (shelf.partial(number) / "data").write_bytes(b"x" * 100)
        shelf.publish(number)
    return shelf


def test_a_save_that_was_killed_is_no_checkpoint(tmp_path: Path) -> None:
    shelf = whole(tmp_path)
    shelf.begin(3, {"step": 3})
    (shelf.partial(3) / "data").write_bytes(b"half")
    assert shelf.newest() == 2
    shelf.clear_partial()
    assert not shelf.partial(3).exists()


def test_killed_between_the_rename_and_latest_the_older_one_holds(tmp_path: Path) -> None:
    shelf = whole(tmp_path)
    (tmp_path / "latest").write_text("step-00000001\n")
    assert shelf.newest() == 1


@pytest.mark.parametrize("damage", ["cut", "missing", "no manifest"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str) -> None:
    shelf = whole(tmp_path)
    place = shelf.place(2)
    if damage == "cut":
        (place / "data").write_bytes(b"x")
    else:
        (place / ("data" if damage == "missing" else "manifest.json")).unlink()
    told: list[str] = []
    assert shelf.newest(told.append) == 1
    assert "step-00000002 is damaged" in told[0]


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    shelf = whole(tmp_path)
    shelf.begin(2, {"step": "again"})
    shelf.publish(2)
    assert shelf.extra(2) == {"step": "again"}


def test_a_save_that_fails_says_so_at_the_next_one(tmp_path: Path) -> None:
    model, optimiser = made()
    keeper = Checkpointer(tmp_path / "c", model, optimiser)
    keeper.save(1)
    keeper.wait()

    def fails(number: int) -> int:
        raise OSError(28, "No space left on device")

    object.__setattr__(keeper, "shelf", Failing(tmp_path / "c", fails))
    keeper.save(2)
    with pytest.raises(JoyError, match=r"could not be written: .*No space left"):
        keeper.wait()
    assert CheckpointStore(tmp_path / "c").newest() == 1


class Failing(CheckpointStore):
    """A shelf whose disk is full when a checkpoint is named."""

    def __init__(self, folder: Path, fails: Any) -> None:
        super().__init__(folder)
        object.__setattr__(self, "publish", fails)


def test_the_state_beside_the_tensors_is_plain_json(tmp_path: Path) -> None:
    whole(tmp_path)
    found = json.loads((tmp_path / "step-00000002" / "state.json").read_text())
    assert found == {"schema": "joymigrate.checkpoint/1", "number": 2, "extra": {"step": 2}}

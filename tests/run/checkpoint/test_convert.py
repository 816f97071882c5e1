"""A checkpoint of one platform is carried bit for bit; what can't be is named."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.run.checkpoint import meaning, plain, read, write, zero


def same(mine: Any, theirs: Any) -> bool:
    """Equal in kind, order and every bit."""
    if isinstance(mine, torch.Tensor):
        kind = type(mine) is type(theirs) and mine.dtype == theirs.dtype
        return kind and mine.shape == theirs.shape and (
            mine.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
            == theirs.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
            if mine.numel()
            else True
        )  # fmt: skip
    if type(mine) is not type(theirs):
        return False
    if isinstance(mine, dict):
        keys = list(mine) == list(theirs)
        return keys and all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    if isinstance(mine, float) and math.isnan(mine):
        return math.isnan(theirs)
    return bool(mine == theirs)


class Run:
    """A small training run that can be saved and gone on with."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 4))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, 40)
        self.scaler = torch.amp.GradScaler("cpu")
        self.step = 0

    def losses(self, count: int) -> list[float]:
        found = []
        for _ in range(count):
            inputs = torch.sin(torch.arange(64.0).reshape(8, 8) * (self.step + 1))
            loss = self.model(inputs).square().mean()
            self.optimiser.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self.schedule.step()
            self.step += 1
            found.append(loss.item())
        return found

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(), "optimizer": self.optimiser.state_dict(),
            "lr_scheduler": self.schedule.state_dict(), "scaler": self.scaler.state_dict(),
            "rng": torch.get_rng_state(), "cuda_rng": [torch.get_rng_state()],
            "step": self.step, "best": float("inf"), "betas": (0.9, 0.95),
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["lr_scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        self.step = state["step"]


def test_there_and_back_is_bit_equal_and_the_next_losses_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Run()
    training.losses(5)
    torch.save(training.state(), tmp_path / "cuda.pt")
    before = torch.load(tmp_path / "cuda.pt", weights_only=True)
    following = training.losses(10)
    assert run(["convert", "checkpoint", f"{tmp_path}/cuda.pt", "-o", f"{tmp_path}/plain"]) == 0
    assert "cuda_rng: random state of a device" in capsys.readouterr().err
    arguments = ["convert", "checkpoint", f"{tmp_path}/plain", "-o", f"{tmp_path}/back.pt"]
    assert run(arguments) == 0
    after = torch.load(tmp_path / "back.pt", weights_only=True)
    assert same(before, after)
    assert after["model"]._metadata == before["model"]._metadata  # versions of modules
    again = Run()
    again.load(after)
    assert again.losses(10) == following


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(), st.text(max_size=5),
    st.sampled_from([torch.bfloat16, torch.Size([2, 3]), torch.device("cpu")]),
    st.sampled_from([torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64]).map(
        lambda dtype: torch.tensor([[0, 1], [1, 0]]).to(dtype)
    ),
)  # fmt: skip
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 9)), inner, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=8,
)


@given(STATES)
def test_any_state_is_put_together_as_it_was(state: Any) -> None:
    taken = plain.take_apart(state)
    assert taken.lost == []
    assert same(plain.put_together(taken.skeleton, taken.tensors), state)


def test_what_is_lost_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"args": Namespace(lr=1.0), "loader": object, "model": {"w": torch.ones(2)}}
    torch.save(state, tmp_path / "run.pt")
    source = f"{tmp_path}/run.pt"
    assert run(["convert", "checkpoint", source, "-o", f"{tmp_path}/out"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert run(["convert", "checkpoint", source, "-o", f"{tmp_path}/out", "--trust"]) == 1
    said = capsys.readouterr().err
    assert "not carried: .args: Namespace becomes a mapping" in said
    assert "not carried: .loader" in said
    arguments = ["convert", "checkpoint", source, "-o", f"{tmp_path}/w.safetensors", "--trust"]
    assert run(arguments) == 1
    assert "loader: not a weight" in capsys.readouterr().err


def test_a_folder_for_many_ranks_and_back(tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "step": 4}
    write.write(state, tmp_path / "dcp", "dcp")
    with pytest.raises(JoyError, match="runs code"):
        read.read(tmp_path / "dcp")
    found, kind, _ = read.read(tmp_path / "dcp", trust=True)
    assert kind == "distributed"
    assert torch.equal(found["model"]["w"], state["model"]["w"])


@pytest.mark.parametrize("stage", [2, 3])
def test_the_ranks_of_zero_are_joined(tmp_path: Path, stage: int) -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(5.0) + 10}
    moments = {name: value * 0.5 for name, value in weights.items()}
    folder = tmp_path / "global_step7"
    folder.mkdir()
    (tmp_path / "latest").write_text("global_step7")
    head = {
        "param_shapes": [{name: value.shape for name, value in weights.items()}],
        "module": {"run": torch.tensor(3)}, "buffer_names": ["run"], "global_steps": 7,
    }  # fmt: skip
    torch.save(head, folder / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    for rank in (0, 1):
        flat = [cut(values, rank, stage) for values in (weights, moments)]
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        inner = [{"step": 7, "exp_avg": flat[1], "exp_avg_sq": flat[1]}]
        torch.save(
            {"optimizer_state_dict": {
                "zero_stage": stage, key: [flat[0]], "base_optimizer_state": inner,
            }},
            folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )  # fmt: skip
    state, kind, _ = read.read(tmp_path)
    assert kind == "zero"
    assert torch.equal(state["model"]["a"], weights["a"])
    assert torch.equal(state["model"]["b"], weights["b"])
    assert state["model"]["run"] == 3
    assert torch.equal(state["optimizer"]["exp_avg"]["b"], moments["b"])
    assert state["optimizer"]["step"] == 7
    (folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    if stage == 2:
        with pytest.raises(JoyError, match="a rank is missing"):
            zero.read(tmp_path, trust=False)


def cut(values: dict[str, torch.Tensor], rank: int, stage: int) -> torch.Tensor:
    """One rank's flat partition, as DeepSpeed lays it out."""
    if stage == 3:
        parts = []
        for value in values.values():
            each = -(-value.numel() // 2)
            padded = torch.cat([value.reshape(-1), torch.zeros(2 * each - value.numel())])
            parts.append(padded[rank * each : (rank + 1) * each])
        return torch.cat(parts)
    whole = torch.cat([value.reshape(-1) for value in values.values()])
    whole = torch.cat([whole, torch.zeros(12 - whole.numel())])
    return whole[rank * 6 : (rank + 1) * 6]


def test_eight_bit_states_and_apex_are_named_and_translated() -> None:
    qmap = torch.linspace(-1, 1, 256)
    moments = {
        "state1": torch.arange(300, dtype=torch.int64).remainder(256).to(torch.uint8),
        "qmap1": qmap, "absmax1": torch.tensor([2.0, 4.0]), "step": 3,
    }  # fmt: skip
    state = {"optimizer": {"state": {0: moments}}, "amp": {"loss_scaler0": {"loss_scale": 512.0}}}
    told = meaning.notes(state)
    assert any("bitsandbytes" in line for line in told)
    assert any("apex" in line for line in told)
    wide = meaning.dequantise(state)["optimizer"]["state"][0]
    assert wide["step"] == 3
    wrapped = {"step": 3, meaning.WRAPPED: {k: v for k, v in moments.items() if k != "step"}}
    assert list(meaning.dequantise({0: wrapped})[0]) == ["step", "exp_avg"]  # as its files have it
    assert wide["exp_avg"][1] == qmap[1] * 2
    assert wide["exp_avg"][299] == qmap[299 % 256] * 4
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(meaning.with_scaler(state)["scaler"])
    assert scaler.get_scale() == 512.0


def test_random_states_of_numpy_and_python_come_back_bit_for_bit(tmp_path: Path) -> None:
    import random

    import numpy as np

    state = {
        "python": random.getstate(), "numpy": np.random.get_state(), "step": np.int64(7),
        "bytes": b"\x00\xff", "z": 1 - 2j, "seen": {1, 2}, "odd\ud800": torch.ones(2),
    }  # fmt: skip
    assert write.write(state, tmp_path / "plain", "plain") == []
    back, _, _ = read.read(tmp_path / "plain")
    np.random.set_state(back["numpy"])
    random.setstate(back["python"])
    assert (np.random.rand(), random.random()) == (drawn(np, state), drawn(random, state))
    assert type(back["step"]) is np.int64
    rest = {key: back[key] for key in ("step", "bytes", "z", "seen")}
    assert rest == {key: state[key] for key in rest}
    assert torch.equal(back["odd\ud800"], state["odd\ud800"])


def drawn(library: Any, state: dict[str, Any]) -> float:
    """The next number of a library's generator from a saved state."""
    if library.__name__ == "random":
        library.setstate(state["python"])
        return float(library.random())
    library.random.set_state(state["numpy"])
    return float(library.random.rand())


def test_kinds_that_change_are_named() -> None:
    import numpy as np

    best = torch.tensor([3.0, 1.0]).max(0)
    odd = np.array(["a"], dtype=object)
    lost = plain.take_apart({"best": best, "odd": odd, "deep": [best]}).lost
    assert lost == [
        ".best: max becomes a tuple", ".odd: ndarray of object", ".deep.0: max becomes a tuple",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["torch", "plain", "safetensors", "dcp", "zero", "megatron"])
def test_objects_of_a_package_that_is_not_here_are_named_and_the_rest_is_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Plain ones, and ones that are dicts or lists, which pickle fills entry by entry."""
    away = ModuleType("package_that_is_not_here")
    made: dict[str, Any] = {
        name: type(name, (base,), {"__module__": away.__name__})
        for name, base in (("Settings", object), ("Table", dict), ("Rows", list))
    }
    vars(away).update(made)
    monkeypatch.setitem(sys.modules, away.__name__, away)
    arguments = Namespace(lr=0.1, settings=made["Settings"]())
    state = {"model": {"w": torch.ones(2)}, "args": arguments, "rows": [made["Rows"]([1, 2])]}
    source = tmp_path / "model.pt"
    torch.save({**state, "table": made["Table"](a=1)}, source)
    monkeypatch.delitem(sys.modules, away.__name__)
    found, _, _ = read.read(source, trust=True)
    lost = write.write(found, tmp_path / "out", form)
    assert [any(word in line for line in lost) for word in ("rows", "table", "args")] == [True] * 3
    if form != "safetensors":
        again, _, _ = read.read(tmp_path / "out", trust=True)
        assert torch.equal(again["model"]["w"], torch.ones(2))
    if form == "torch":
        assert again["args"].lr == 0.1

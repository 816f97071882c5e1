"""The net below the rules: what it translates, and what it leaves as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.cli._switch import switch_to
from joymigrate.run.door.settings import ENVIRONMENT, ChipWords

torch = pytest.importorskip("torch")

from joymigrate.run.door.net import (  # noqa: E402
    ChipDoor,
    Translation,
    answer_unread,
    hand_on,
    make_on,
)

SAID = Translation(ChipWords("cuda", "nccl", "cpu", "gloo", "torch.cpu", {}))


@pytest.mark.parametrize(("chip", "net"), [("ascend", True), ("amd", False), ("metax", False)])
def test_a_chip_that_keeps_the_origins_words_gets_no_net(
    chip: str, net: bool, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text("import torch\n")
    command = [sys.executable, str(tmp_path / "x.py")]
    with switch_to(command, {}, chip=chips.get(chip), quiet=True) as environment:
        assert (ENVIRONMENT in environment) is net


def test_backends_are_translated_and_no_paths_hosts_or_groups() -> None:
    take = hand_on(SAID, lambda *args, **kwargs: (args, kwargs))
    kept = {"init_method": "cuda", "group_name": "cuda", "group_desc": "nccl"}
    for place in ("file:///shared/cuda/rdv", "tcp://cuda-node1:29500", "env://"):
        assert take("nccl", place, **kept) == (("gloo", place), kept)
    assert take("cpu:gloo,cuda:nccl", device_id="cuda:1") == (
        ("cpu:gloo,cpu:gloo",),
        {"device_id": "cpu:1"},
    )


@pytest.mark.parametrize("name", ["Event", "Generator", "Stream"])
def test_a_class_made_of_one_for_a_device_makes_its_own_objects(name: str) -> None:
    kind = make_on(SAID, getattr(torch, name))

    class Own(kind):  # type: ignore[misc, valid-type]
        pass

    one, other = Own("cpu"), kind("cuda")
    assert (type(one), isinstance(one, kind), isinstance(other, kind)) == (Own, True, True)
    assert not isinstance(other, Own)


def test_the_type_of_a_tensor_is_told_without_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__str__", lambda one: pytest.fail("the values were read"))
    with ChipDoor(SAID):
        assert torch.ones(2).type() == "torch.FloatTensor"
        assert torch.ones(2).type("torch.cuda.DoubleTensor").dtype is torch.float64


@pytest.mark.compiler
def test_compiled_code_is_one_graph_under_the_net() -> None:
    ask = answer_unread(SAID, torch.cpu.is_available, torch.cuda.is_available)

    def compute(x: object) -> object:
        if x.type() != "torch.FloatTensor" or ask():  # type: ignore[attr-defined]
            return x
        return x.cuda().to("cuda").type("torch.cuda.FloatTensor") + 1  # type: ignore[attr-defined]

    with ChipDoor(SAID):
        made = torch.compile(compute, backend="eager", fullgraph=True)
        assert made(torch.ones(2)).tolist() == [2.0, 2.0]

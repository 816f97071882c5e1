"""Sealed calls as cases of a kit: the types, shapes, strides and arguments that were sealed."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.run.kit import cases, make, seal_cases
from joymigrate.run.kit.runner import main, operators, tensors
from joymigrate.run.rehearse.signatures import Signatures


def sealed_call(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The row that a rehearsal seals for a call."""
    return Signatures().note(name, args, kwargs)


def case_of(name: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    masters: cases.Masters = {}
    case = seal_cases.of_signature(sealed_call(name, *args, **kwargs), masters)
    return case, {name: torch.from_numpy(array) for name, array in masters.items()}


def test_each_tensor_keeps_its_own_dtype_and_strides() -> None:
    left, right = torch.ones(4, 6, dtype=torch.float16).t(), torch.ones(1, 4).expand(6, 4)
    case, masters = case_of("aten::add.Tensor", left, right, alpha=2)
    made = tensors.arguments(case, masters)
    assert [(one.dtype, one.stride()) for one in made] == [
        (torch.float16, (1, 6)), (torch.float32, (0, 1)),
    ]  # fmt: skip
    assert not torch.equal(made[0].float(), made[1])
    found = operators.run_case(case, masters, "cpu")
    assert (found["outcome"], found["dtypes"]) == ("accepted", ["float32"])
    assert found["strides"] == [list(torch.add(left, right, alpha=2).stride())]
    assert found["error"] < 4
    assert found["gradient_error"] < 4


def test_whole_numbers_keep_their_width() -> None:
    case, masters = case_of("aten::bitwise_and.Tensor", *[torch.ones(3, dtype=torch.int32)] * 2)
    assert operators.run_case(case, masters, "cpu")["dtypes"] == ["int32"]


def test_dtypes_and_devices_among_the_arguments_are_given_again() -> None:
    npu = {"device": torch.device("meta")}  # any device that is not the CPU
    case, masters = case_of("aten::_to_copy", torch.ones(2, 3), dtype=torch.float16)
    assert operators.run_case(case, masters, "cpu")["dtypes"] == ["float16"]
    case, masters = case_of("aten::arange.start_step", 0, 5, 1, dtype=torch.int64, **npu)
    assert operators.run_case(case, masters, "cpu")["shapes"] == [[5]]
    left, _ = case_of("aten::_to_copy", torch.ones(2), device=torch.device("cpu"))
    assert left == "moves to the CPU"


def test_numbers_that_nobody_can_foresee_are_not_compared() -> None:
    for name, args in (
        ("aten::bernoulli.p", (torch.ones(4), 0.5)), ("aten::empty_like", (torch.ones(4),)),
    ):  # fmt: skip
        case, masters = case_of(name, *args)
        found = operators.run_case(case, masters, "cpu")
        assert found["outcome"] == "accepted"
        assert "error" not in found
        assert found["unchecked"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.ones(5).as_strided((3, 3), (1, 1)), "has a tensor that overlaps itself"),
        (torch.ones(3, dtype=torch.complex64), "has a tensor of complex64"),
        (torch.ones(1 << 19), "has a tensor of more than 262144 elements"),
        (object(), "has an argument that is neither a tensor nor a number"),
    ],
)
def test_what_a_kit_cannot_hold_is_said(value: Any, why: str) -> None:
    masters: cases.Masters = {}
    assert seal_cases.of_signature(sealed_call("aten::abs", value), masters) == why
    assert not masters


def test_an_operator_without_a_float64_is_accepted_and_not_called_compared() -> None:
    case, masters = case_of("aten::native_channel_shuffle", torch.ones(1, 4, 2, 2), 3)
    found = operators.run_case({**case, "call": "torch.square"}, masters, "cpu")
    assert found["outcome"] == "refused"  # square takes one argument: on the chip too
    wrong = {**case, "args": case["args"][:1], "call": "torch.square", "reference": "rotary_mul"}
    found = operators.run_case(wrong, masters, "cpu")
    assert found["outcome"] == "accepted"
    assert found["unchecked"].startswith("the CPU has no float64 of it")


def test_another_number_of_results_is_wrong() -> None:
    one = torch.ones(2)
    assert operators.worst([one], [one.double(), one.double()], "float32") == 1e9


def test_arguments_of_one_call_get_different_numbers_in_every_case() -> None:
    listed, masters, _ = cases.build(make_chip())
    for case in listed:
        names = [one["tensor"] for one in case["args"] if isinstance(one, dict)]
        assert len(set(names)) == len(names), case["id"]
    assert all(name.endswith((".0", ".1", ".2")) for name in masters)


def make_chip() -> Any:
    from joymigrate.chips import get

    return get("ascend")


def test_calls_that_joymigrate_would_not_make_are_left_out_with_the_reason() -> None:
    kit = {
        "left_out": {},
        "cases": [
            {
                "id": "a",
                "op": "x",
                "section": "kernel",
                "prediction": {"outcome": "skipped", "message": "no"},
            },
            {"id": "b", "section": "kernel", "prediction": {"outcome": "accepted"}},
            {"id": "c", "section": "memory", "prediction": {"outcome": "skipped"}},
            {"id": "d", "op": "x", "section": "kernel"},  # nothing is predicted of it
        ],
    }
    make.drop_uncalled(kit)
    assert [case["id"] for case in kit["cases"]] == ["b", "c", "d"]
    assert kit["left_out"] == {"x: a": "no"}


def test_a_new_worker_is_not_taken_for_one_that_hangs_at_the_last_ones_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash `current` named the old case, and a slow start was ended again and again."""
    (tmp_path / "current").write_text("a")
    begun = []

    class Worker:
        returncode = 0

        def __init__(self, *words: object, **more: object) -> None:
            begun.append((tmp_path / "current").read_text())
            for name in ("a", "b"):
                main.append(tmp_path, {"id": name, "outcome": "accepted"})

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(main.subprocess, "Popen", Worker)
    kit = {"cases": [{"id": name, "section": "operator"} for name in ("a", "b")]}
    given = Namespace(state=tmp_path, section=None, patience=0.0, until=math.inf)
    main.supervise(kit, "cpu", given)
    assert begun == [""]


def test_after_the_given_minutes_no_case_begins(tmp_path: Path) -> None:
    kit = {"cases": [{"id": "a", "section": "operator"}, {"id": "c", "section": "collective"}]}
    main.supervise(kit, "cpu", Namespace(state=tmp_path, section=None, patience=0.0, until=0.0))
    assert not main.read_results(tmp_path)
    kit |= {"id": "1", "chip": "ascend", "package": ""}
    assert main.build_score(kit, {}, "cpu", 0.0)["not_run"] == ["a", "c"]


def test_a_message_names_neither_machine_nor_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setattr(main.socket, "gethostname", lambda: "node-17")
    said = main.scrub("alice on node-17 (10.0.0.3, fe80:0:0:0:1:2:3:4) in /home/alice/x/y.py: E")
    assert said == "<user> on <host> (<address>, <address>) in …/: E"

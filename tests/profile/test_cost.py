"""`profile cost`: counts against torch's own counter, bounds that hold, formulas by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published_speed import FIGURES, cost_of
from joymigrate import chips
from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.profile import cost
from joymigrate.profile.capture import Capture, CapturedOperator, load
from joymigrate.profile.cost.bound import Link, all_reduce, ring, tree
from joymigrate.schema import read_yaml

PEAKS = cost.Peaks("test", {"float32": 1.0, "bfloat16": 2.0}, 100.0, (Link(8, 10.0, 1.0),))


def tensor(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape)}


def call(op: str, *args: Any, out: Any, phase: str = "forward", calls: int = 1) -> CapturedOperator:
    return CapturedOperator(op, "", args, {}, (out,), calls, 0.0, phase, "a.py:1", "layer",
                            ("aten::linear",))  # fmt: skip


def capture(*operators: CapturedOperator, **header: Any) -> Capture:
    return Capture(Path("t"), header, operators)


def test_a_product_counts_two_per_element_and_its_bytes() -> None:
    work = cost.work_of(capture(call("aten::mm", tensor(8, 16), tensor(16, 4), out=tensor(8, 4))))
    assert work.flops == {"float32": 2 * 8 * 16 * 4}
    assert work.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert work.weight_bytes == 4 * 16 * 4


def test_another_type_halves_the_bytes() -> None:
    made = capture(call("aten::mm", tensor(8, 16), tensor(16, 4), out=tensor(8, 4)))
    work = cost.work_of(made, dtype="bfloat16")
    assert work.flops == {"bfloat16": 1024}
    assert work.weight_bytes == 2 * 16 * 4


def test_views_and_allocations_launch_nothing() -> None:
    made = capture(
        call("aten::t", tensor(8, 4), out=tensor(4, 8)),
        call("aten::view", tensor(8, 4), [32], out=tensor(32)),
        call("aten::empty", [4], out=tensor(4)),
        call("aten::relu", tensor(4), out=tensor(4)),
    )
    assert cost.work_of(made).launches == 1


def test_causal_attention_counts_half() -> None:
    q = tensor(1, 2, 64, 16)
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    whole = cost.work_of(capture(call(name, q, q, q, 0.0, False, out=q))).flops["float32"]
    half = cost.work_of(capture(call(name, q, q, q, 0.0, True, out=q))).flops["float32"]
    assert whole == 2 * 2 * 2 * 64 * 64 * 16
    assert half == whole // 2


def test_a_chip_s_own_attention_is_counted_by_its_layout() -> None:
    own = cost.peaks_of(chips.target("ascend")).formulas
    q = tensor(64, 1, 32)  # SBH with two heads of 16
    made = capture(call("npu::npu_fusion_attention", q, q, q, 2, "SBH", out=q))
    assert cost.work_of(made, own=own).flops["float32"] == 2 * 2 * 2 * 64 * 64 * 16 // 2


def test_a_product_without_a_formula_is_named() -> None:
    work = cost.work_of(capture(call("lib::my_matmul", tensor(4, 4), out=tensor(4, 4), calls=3)))
    assert work.uncounted == {"lib::my_matmul": 3}
    assert any("my_matmul" in note for note in cost.bound_step(work, PEAKS).notes)


def test_casts_and_copies_are_told_apart() -> None:
    made = capture(
        call("aten::_to_copy", tensor(8), out=tensor(8, dtype="bfloat16")),
        call("aten::clone", tensor(8), out=tensor(8)),
        call("aten::copy_", tensor(8), tensor(8), out=tensor(8)),
    )
    work = cost.work_of(made)
    assert (work.casts, work.copies) == (1, 2)
    assert cost.work_of(made, dtype="bfloat16").casts == 0


def test_the_bound_is_the_largest_of_its_parts() -> None:
    big = call("aten::mm", tensor(1, 1000), tensor(1000, 1000), out=tensor(1, 1000))
    found = cost.bound_step(cost.work_of(capture(big)), PEAKS)
    assert found.dominates == "weights"
    assert found.bound_us == pytest.approx(4e6 / 100e9 * 1e6)
    assert found.mfu == pytest.approx(2e6 / 1e12 * 1e6 / 40)
    assert found.eager_us >= found.bound_us


def test_a_measured_step_below_the_bound_is_doubted() -> None:
    big = call("aten::mm", tensor(1000, 1000), tensor(1000, 1000), out=tensor(1000, 1000))
    work = cost.work_of(capture(big))
    assert any("shorter" in note for note in cost.bound_step(work, PEAKS, measured_us=1).notes)
    assert cost.bound_step(work, PEAKS, measured_us=4000).measured_mfu == pytest.approx(0.5)


def test_an_unknown_type_gets_the_fastest_peak_and_says_so() -> None:
    made = capture(call("aten::mm", *[tensor(4, 4, dtype="float64")] * 2, out=tensor(4, 4)))
    assert any("float64" in note for note in cost.bound_step(cost.work_of(made), PEAKS).notes)


def test_ring_and_tree_are_the_stated_formulas() -> None:
    link = Link(64, 10.0, 1.0)
    assert ring(1e6, 4, link)[0] == pytest.approx(2 * 3 / 4 * 1e6 / 1e4 + 6)
    assert tree(1e6, 4, link)[0] == pytest.approx(2 * 1e6 / 1e4 + 4)
    assert all_reduce(1e9, 4, (link,))[1] == "ring"
    assert all_reduce(1.0, 64, (link,))[1] == "tree"


def test_a_second_level_carries_the_share_of_a_card() -> None:
    links = (Link(8, 100.0), Link(64, 10.0))
    inside = all_reduce(8e6, 8, links)[0]
    assert all_reduce(8e6, 16, links)[0] == pytest.approx(inside + ring(1e6, 2, links[1])[0])


def test_more_cards_are_never_more_efficient() -> None:
    product = call("aten::mm", tensor(512, 512), tensor(512, 512), out=tensor(512, 512))
    back = call("aten::mm", tensor(512, 512), tensor(512, 512), out=tensor(512, 512),
                phase="backward")  # fmt: skip
    peaks = cost.peaks_of(chips.target("ascend"))
    found = cost.bound_step(cost.work_of(capture(product, back)), peaks, cards=[2, 8, 16, 128])
    least = [one.efficiency[0] for one in found.scaling]
    assert least == sorted(least, reverse=True)
    assert all(low <= high <= 1 for low, high in (one.efficiency for one in found.scaling))


def test_inference_exchanges_no_gradients() -> None:
    product = call("aten::mm", tensor(8, 8), tensor(8, 8), out=tensor(8, 8))
    found = cost.bound_step(cost.work_of(capture(product)), PEAKS, cards=[8])
    assert found.scaling[0].exchange_us == 0


def test_collectives_that_were_recorded_count() -> None:
    made = capture(call("c10d::allreduce_", [tensor(1000)], out=None),
                   environment={"world_size": 4})  # fmt: skip
    work = cost.work_of(made)
    assert work.collectives == {"all_reduce": 4000}
    assert cost.bound_step(work, PEAKS).dominates == "collectives"


@pytest.mark.dear
def test_published_speeds_never_beat_the_bound() -> None:
    raw = read_yaml(FIGURES)
    assert len(raw["figures"]) >= 10
    for figure in raw["figures"]:
        found = cost_of(figure, raw["models"])
        assert found.measured_us is not None
        assert found.bound_us <= found.measured_us, figure


def test_the_published_share_of_the_peak_comes_out() -> None:
    # Theirs counts attention in full and every parameter; short sequences differ by little.
    raw = read_yaml(FIGURES)
    for figure in raw["figures"]:
        if "mfu" in figure and figure["length"] <= 2048:
            mfu = cost_of(figure, raw["models"]).measured_mfu
            assert mfu == pytest.approx(figure["mfu"] / 100, rel=0.05)


def test_names_of_models() -> None:
    ascend = chips.target("ascend")
    assert cost.peaks_of(ascend, "910B3").name == "a2-376t"
    with pytest.raises(JoyError, match="Did you mean"):
        cost.peaks_of(ascend, "a2-376")


PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
optimiser = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    optimiser.zero_grad()
    loss = model(torch.rand(4, 3, 8, 8)).square().mean()
    loss.backward()
    optimiser.step()
"""


@pytest.mark.dear
def test_a_recording_counts_what_torch_s_counter_counts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    program, out = tmp_path / "train.py", tmp_path / "run.jsonl"
    program.write_text(PROGRAM)
    line = ["profile", "record", "-o", str(out), "--", sys.executable, str(program)]
    assert run(line) == 0
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
    )
    with FlopCounterMode(display=False) as counter:
        model(torch.rand(4, 3, 8, 8)).square().mean().backward()
    assert sum(cost.work_of(load(out)).flops.values()) == counter.get_total_flops()
    document = tmp_path / "cost.json"
    line = ["profile", "cost", str(out), "--to", "ascend", "--cards", "8", "--step-ms", "5"]
    assert run([*line, "--format", "json", "-o", str(document)]) == 0
    assert json.loads(document.read_text())["schema"] == "joymigrate.cost/1"


@pytest.mark.parametrize("option", [["--cards", "x"], ["--step-ms", "0"], ["--dtype", "fp7"]])
def test_bad_options_are_one_error(
    tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"schema": "joymigrate.trace/1"}\n')
    assert run(["profile", "cost", str(path), *option]) == 2
    assert "Traceback" not in capsys.readouterr().err

"""Values of modules on the baseline's inputs: how many times its own error they may be off by."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from joymigrate.errors import JoyError
from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.cut import Cut
from joymigrate.verify.isolated_pass import IsolatedPass, make_reference
from joymigrate.verify.model import RecordStatus
from joymigrate.verify.module_stage import judge_forced, most_ratio
from joymigrate.verify.replay_session import reference_json
from joymigrate.verify.target_pass import examine
from joymigrate.verify.tensor_store import TensorStore
from joymigrate.verify.tolerance import Tolerance, read
from tests.verify.test_lent_weights import hold_replays

OWN = 1e-6  # the baseline's own error
LIMITS = Tolerance.of(None)


def table_of(count: int, own: float = OWN) -> dict[str, Any]:
    """The baseline's side of one call of `count` modules."""
    cuts = [
        Cut(f"m{n}", 0, "out", "", f"m{n}", 0, n, "float32", [8], norm=1.0, error32=own)
        for n in range(count)
    ]
    facts = {"root": "net", "path": "", "number": 0, "native": False, "draws": {}}
    return {"lessons": [{**facts, "rows": [astuple(cut) for cut in cuts]}]}


def status_of(error: float, own: float = OWN) -> RecordStatus:
    """What is found of the fifth module of ten, that is so far off."""
    rows = [
        {"path": f"m{n}", "call": 0, "kind": "out", "leaf": "", "owner": f"m{n}", "owner_call": 0,
         "order": n, "missing": False, "shape": [8], "dtype": "float32",
         "error": error if n == 5 else own}
        for n in range(10)
    ]  # fmt: skip
    facts = {"root": "net", "path": "", "number": 0, "pass": "fp32", "error": None, "step": 0}
    replay = {"lessons": [{**facts, "rows": rows, "draws": {}, "failures": {}}]}
    found = judge_forced(table_of(10, own), replay, {}, {}, LIMITS)
    others = [row.difference.status for row in found.rows if row.place != "net:m5"]
    assert set(others) == {RecordStatus.PASS}
    return found.rows[5].difference.status


def test_the_factor_is_below_three_at_ten_values_and_grows_slowly() -> None:
    factors = [most_ratio(table_of(count), LIMITS.judge) for count in (10, 1000, 100_000)]
    assert 2.5 < factors[0] < 3.0
    assert factors[0] < factors[1] < 5.0
    assert factors[1] < factors[2] < 7.0


@pytest.mark.parametrize(
    ("times", "status"),
    [(0.3, RecordStatus.PASS), (2.5, RecordStatus.PASS), (4.0, RecordStatus.FAIL)],
)
def test_a_value_passes_or_fails(times: float, status: RecordStatus) -> None:
    assert status_of(times * OWN) is status


def test_what_the_baseline_itself_makes_anew_is_not_compared() -> None:
    assert status_of(0.9, own=0.1) is RecordStatus.UNCOMPARED
    assert status_of(11.0, own=0.1) is RecordStatus.FAIL


class Block(nn.Module):
    """Attention and two layers; `fault`: what is added to 1 under autocast alone."""

    def __init__(self, fault: float) -> None:
        super().__init__()
        self.fault = fault
        self.q = nn.Parameter(torch.randn(192, 64) / 8)
        self.o = nn.Parameter(torch.randn(64, 64) / 8)
        self.u = nn.Parameter(torch.randn(256, 64) / 8)
        self.w = nn.Parameter(torch.randn(64, 256) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        linear, normed = functional.linear, functional.layer_norm
        q, k, v = linear(normed(x, x.shape[-1:]), self.q).chunk(3, -1)
        made = torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v
        made = made * (1.0 + (self.fault if torch.is_autocast_enabled("cpu") else 0.0))
        x = x + linear(made, self.o)
        return x + linear(functional.gelu(linear(normed(x, x.shape[-1:]), self.u)), self.w)


@pytest.mark.parametrize(("fault", "fails"), [(0.0, False), (0.5, True)])
def test_autocast_on_the_target_alone_is_held_to_rounding_in_16_bits(
    fault: float, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(fault), Block(fault), nn.Linear(64, 8))
    hold = hold_replays(monkeypatch)
    isolated = IsolatedPass(model, "", (torch.randn(4, 16, 64),), {}, hold)
    store = TensorStore("forced", lambda: RankWriter(tmp_path / "rank-0", {}))
    reference = make_reference(isolated, 1 << 24, store)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = examine(isolated, reference, None).rows
    facts = {"root": "net", "path": "", "number": 0}
    table = {"lessons": [{**facts, **reference_json(reference)}]}
    facts |= {"pass": "native", "error": None, "step": 0}
    replay = {"lessons": [{**facts, "rows": rows, "draws": {}, "failures": {}}]}
    found = judge_forced(table, replay, {}, {}, LIMITS)
    assert any(row.difference.status.failed for row in found.rows) is fails


class Masked(nn.Module):
    """Attention: fused, with a boolean mask; or by hand, which adds its mask and returns its
    weights too."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if self.fused:
            return functional.scaled_dot_product_attention(x, x, x, mask), None
        weights = torch.softmax(x @ x.mT / x.shape[-1] ** 0.5 + mask, -1)
        return weights @ x, weights


class Masking(nn.Module):
    """Makes the mask in the form that its attention takes; `hidden`: keys that take no part."""

    def __init__(self, fused: bool, hidden: int) -> None:
        super().__init__()
        self.attention, self.hidden = Masked(fused), hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (torch.arange(8) < 8 - self.hidden).expand(2, 8, 8)
        lowest = torch.finfo(x.dtype).min
        added = torch.zeros(2, 8, 8, dtype=x.dtype).masked_fill(~kept, lowest)
        return self.attention(x, kept if self.attention.fused else added)[0]


@pytest.mark.parametrize(("hidden", "fails"), [(3, False), (4, True)])
@pytest.mark.parametrize("fused", [True, False])
def test_a_boolean_mask_and_one_that_is_added_are_held_to_what_they_keep(
    fused: bool, hidden: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, given = hold_replays(monkeypatch), (torch.randn(2, 8, 16),)
    store = TensorStore("forced", lambda: RankWriter(tmp_path / "rank-0", {}))
    reference = make_reference(IsolatedPass(Masking(fused, 3), "", given, {}, hold), 1 << 20, store)
    target = IsolatedPass(Masking(not fused, hidden), "", given, {}, hold)
    outcome = examine(target, reference, torch.float32)
    assert outcome.error is None
    errors = {
        (row["kind"], row["leaf"]): row["error"]
        for row in outcome.rows
        if row["path"] == "attention" and "error" in row
    }
    assert (errors["in", "1"] > 0.0) is fails
    assert errors["out", "0"] < 1e-5  # on the baseline's mask
    if fused:  # gradients start from what the baseline returns
        assert errors["grad", "in.0"] < 1e-5
    else:
        assert list(outcome.failures) == ["attention"]


@pytest.mark.parametrize(("shaken", "fails"), [(True, True), (False, False)])
def test_an_older_bundle_keeps_the_limit_of_its_passes_in_16_bits(
    shaken: bool, fails: bool
) -> None:
    table = table_of(10)
    entry = table["lessons"][0]
    cut = replace(Cut(*entry["rows"][0]), dtype="bfloat16", error=0.01)
    entry |= {"rows": [astuple(cut)], "native": True} | ({"shaken": True} if shaken else {})
    row = {"path": "m0", "call": 0, "kind": "out", "leaf": "", "owner": "m0", "owner_call": 0,
           "order": 0, "missing": False, "shape": [8], "dtype": "bfloat16",
           "error": 0.08}  # fmt: skip
    facts = {"root": "net", "path": "", "number": 0, "pass": "native", "error": None, "step": 0}
    replay = {"lessons": [{**facts, "rows": [row], "draws": {}, "failures": {}}]}
    (found,) = judge_forced(table, replay, {}, {}, LIMITS).rows
    assert found.difference.status.failed is fails


def test_a_value_that_could_not_be_compared_covers_no_module() -> None:
    row = {"path": "m0", "call": 0, "kind": "out", "leaf": "", "owner": "m0", "owner_call": 0,
           "order": 0, "missing": False, "shape": [8], "dtype": "float32",
           "error": 0.9}  # fmt: skip
    facts = {"root": "net", "path": "", "number": 0, "pass": "fp32", "error": None, "step": 0}
    replay = {"lessons": [{**facts, "rows": [row], "draws": {}, "failures": {}}]}
    found = judge_forced(table_of(1, own=0.1), replay, {}, {}, LIMITS)
    assert [row.difference.status for row in found.rows] == [RecordStatus.UNCOMPARED]
    assert not found.covered


@pytest.mark.parametrize("weight", [1.0, 3.0, 300.0])
def test_the_weight_of_series_decides_nothing_on_equal_inputs(weight: float) -> None:
    told = replace(LIMITS.judge, weight=weight)
    assert most_ratio(table_of(10), told) == most_ratio(table_of(10), LIMITS.judge)
    strict = replace(LIMITS.judge, equal_inputs=0.0)
    assert most_ratio(table_of(10), strict) == 1.0


def test_a_figure_that_decides_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tolerance.yaml"
    file.write_text("schema: joymigrate.tolerance/1\nstages:\n  S4: {ratio_pass: 1}\n")
    with pytest.raises(JoyError, match="S4 has no figure 'ratio_pass'"):
        read("some", file)

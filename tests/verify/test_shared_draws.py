"""Random numbers that are the same whatever draws them, and programs that set no seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joymigrate.launching import START

DRAWING = """
import json, random, sys
import numpy as np
import torch
import torch.nn.functional as F
if "--more" in sys.argv:  # another kind of draw in between moves nothing
    torch.rand(3); torch.randint(9, (2,))
model = torch.nn.Linear(3, 2)
x = torch.randn(2, 3)
noise = torch.randn_like(x)
print(json.dumps({
    "python": random.random(), "numpy": np.random.rand(), "weight": model.weight.tolist(),
    "x": x.tolist(), "noise": noise.tolist(), "again": torch.randn(2, 3).tolist(),
    "half": torch.randn(4, dtype=torch.float16).dtype.itemsize,
    "drop": F.dropout(torch.ones(64), 0.5).tolist(), "order": torch.randperm(9).tolist(),
    "whole": str(torch.randperm(9).dtype), "picked": torch.poisson(torch.ones(9)).tolist(),
    "generator": torch.rand(2, generator=torch.Generator().manual_seed(5)).tolist(),
}))
"""


def drawn(tmp_path: Path, *words: str, **environment: str) -> dict[str, object]:
    (tmp_path / "p.py").write_text(DRAWING)
    made = subprocess.run(
        [sys.executable, "p.py", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(START), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(made.stdout)
    return found


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return drawn(tmp_path_factory.mktemp("seeded"), JOYMIGRATE_SEED="0")


def test_a_program_without_a_seed_repeats_itself(seeded: dict[str, object], tmp_path: Path) -> None:
    assert drawn(tmp_path, JOYMIGRATE_SEED="0") == seeded
    other = drawn(tmp_path, JOYMIGRATE_SEED="1")
    assert all(other[name] != seeded[name] for name in ("python", "numpy", "weight", "x"))
    assert other["generator"] == seeded["generator"]  # the program's own seed is its own


def test_ranks_draw_numbers_of_their_own(seeded: dict[str, object], tmp_path: Path) -> None:
    assert drawn(tmp_path, JOYMIGRATE_SEED="0", RANK="1")["weight"] != seeded["weight"]


@pytest.mark.slow
def test_shared_draws_are_counted_by_kind_and_shape(tmp_path: Path) -> None:
    told = tmp_path / "told.txt"
    words = {"JOYMIGRATE_SEED": "0", "JOYMIGRATE_DRAWS": str(told)}
    first = drawn(tmp_path, **words)
    more = drawn(tmp_path, "--more", **words)
    device = ("picked",)  # left to the generator of the device
    assert {k: v for k, v in first.items() if k not in device} == {
        k: v for k, v in more.items() if k not in device
    }
    assert first["noise"] != first["x"] != first["again"]
    assert set(first["drop"]) == {0.0, 2.0}  # type: ignore[call-overload]
    assert first["whole"] == "torch.int64"
    assert first["half"] == 2
    assert set(told.read_text().split()) == {"poisson"}


def test_attention_inside_of_a_module_runs_without_its_dropout() -> None:
    import torch

    from joymigrate.verify.draws import Draws, DropoutMode

    module = torch.nn.MultiheadAttention(8, 2, dropout=0.5)
    tokens = torch.ones(3, 1, 8)
    expected = module.eval()(tokens, tokens, tokens, need_weights=False)[0]
    module.train()
    for number, weights in enumerate((False, True)):
        torch.manual_seed(number)
        with DropoutMode(Draws(lambda: "")):
            made = module(tokens, tokens, tokens, need_weights=weights)[0]
        assert torch.allclose(made, expected)


def test_recurrent_networks_run_without_their_dropout() -> None:
    import torch
    from torch.nn.utils.rnn import pack_sequence

    from joymigrate.verify.draws import Draws, DropoutMode

    words = [torch.ones(4, 5), torch.ones(2, 5)]
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        module, draws = kind(5, 6, num_layers=2, dropout=0.5), Draws(lambda: "")
        for given in (torch.ones(4, 2, 5), pack_sequence(words)):
            expected = module.eval()(given)[0]
            with DropoutMode(draws):
                made = module.train()(given)[0]
            assert torch.equal(getattr(made, "data", made), getattr(expected, "data", expected))
        assert draws.log[""] == [["recurrent dropout", 0.5]] * 2


def test_choices_follow_their_weights() -> None:
    import torch

    from joymigrate.verify.draws import DrawMode, Draws

    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0, 4.0, 0.0], [5.0, 0.0, 0.0, 1.0, 0.0, 2.0]])
    with DrawMode(Draws(lambda: "")):
        many = torch.multinomial(weights, 20_000, replacement=True)
        pairs = torch.stack([torch.multinomial(weights, 2) for _ in range(2000)])
        one = torch.multinomial(weights[0].half(), 1)
        into = torch.empty(0, dtype=torch.int64)
        torch.multinomial(weights, 3, out=into)
    assert many.dtype == one.dtype == torch.int64
    assert (many.shape, one.shape, into.shape) == ((2, 20_000), (1,), (2, 3))
    for row in (0, 1):
        shares = torch.bincount(many[row], minlength=6) / 20_000
        assert torch.allclose(shares, weights[row] / 8, atol=0.015)
        assert set(into[row].tolist()) == set(weights[row].nonzero()[:, 0].tolist())
    assert (pairs[..., 0] != pairs[..., 1]).all()
    firsts = torch.bincount(pairs[:, 0, 0], minlength=6) / 2000
    assert torch.allclose(firsts, weights[0] / 8, atol=0.05)
    near = weights * (1 + 1e-7 * torch.arange(6))
    with DrawMode(Draws(lambda: "")):
        assert (torch.multinomial(near, 20_000, replacement=True) == many).float().mean() > 0.999


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [1.0, -1.0], [float("nan"), 1.0], [float("inf"), 1.0]]
)
def test_weights_that_torch_refuses_are_refused(weights: list[float]) -> None:
    import torch

    from joymigrate.verify.draws import DrawMode, Draws

    with pytest.raises(RuntimeError), DrawMode(Draws(lambda: "")):
        torch.multinomial(torch.tensor(weights), 1)


def test_every_generator_fills_what_it_is_given() -> None:
    import torch

    from joymigrate.verify.draws import DrawMode, Draws

    n = 20_000
    mean, std, into = torch.full((n,), 3.0), torch.tensor(2.0), torch.zeros(4)
    with DrawMode(Draws(lambda: "")):
        both = (torch.normal(mean, std), torch.normal(3.0, torch.full((n,), 2.0)))
        plain = (torch.normal(mean), torch.normal(3.0, 2.0, (n,)))
        waits = torch.empty(n).geometric_(0.25)
        heavy = torch.empty(n).cauchy_(1.0, 2.0)
        logs = torch.empty(n).log_normal_(0.5, 0.25).log()
        torch.rand(4, out=into)
    assert (into > 0).all()
    for made, wide in zip((*both, *plain), (2.0, 2.0, 1.0, 2.0), strict=True):
        assert abs(float(made.mean()) - 3) < 0.1
        assert abs(float(made.std()) - wide) < 0.1
    assert float(waits.min()) == 1.0
    assert abs(float(waits.mean()) - 4) < 0.15
    quarters = heavy.quantile(torch.tensor([0.25, 0.5, 0.75]))
    assert torch.allclose(quarters, torch.tensor([-1.0, 1.0, 3.0]), atol=0.2)
    assert abs(float(logs.mean()) - 0.5) < 0.02
    assert abs(float(logs.std()) - 0.25) < 0.02


def positions() -> Any:
    from joymigrate.verify.draw_positions import DrawPositions

    return DrawPositions(0)


def test_a_generator_that_is_seeded_again_gives_its_numbers_again() -> None:
    import torch

    found, one = positions(), torch.Generator().manual_seed(5)
    first = [found.next(one, "rand(2,)") for _ in range(3)]
    assert first == [(5, 0), (5, 1), (5, 2)]
    assert found.next(torch.Generator().manual_seed(5), "rand(2,)") == (5, 0)
    one.manual_seed(5)
    assert [found.next(one, "rand(2,)") for _ in range(3)] == first
    one.manual_seed(6)
    assert found.next(one, "rand(2,)") == (6, 0)


def test_a_generator_that_is_put_back_goes_on_from_there() -> None:
    import torch

    found, one = positions(), torch.Generator().manual_seed(5)
    found.next(one, "rand(2,)")
    state = one.get_state()
    later = [found.next(one, "rand(2,)"), found.next(one, "randn(4,)")]
    one.set_state(state)
    assert [found.next(one, "rand(2,)"), found.next(one, "randn(4,)")] == later
    torch.rand(3, generator=one)  # by other code: it goes on
    assert found.next(one, "rand(2,)") == (5, 2)


SEEDED = """
import json, torch
from torch.utils.checkpoint import checkpoint
def draws():
    return [torch.randn(2).tolist(), torch.randn(2).tolist(), torch.randperm(5).tolist()]
torch.manual_seed(7); first = draws()
torch.manual_seed(7); again = draws()
torch.manual_seed(8); other = draws()
torch.manual_seed(7)
torch.randn(2)
with torch.random.fork_rng():
    forked = torch.randn(2).tolist()
after = torch.randn(2).tolist()
seen = []
def part(x):
    mask = torch.rand_like(x)
    seen.append(mask.tolist())
    return (x * mask).sum()
checkpoint(part, torch.ones(3, requires_grad=True), use_reentrant=False).backward()
same = [torch.rand(4, generator=torch.Generator().manual_seed(3)).tolist() for _ in range(2)]
loader = torch.utils.data.DataLoader(range(8), shuffle=True, batch_size=8)
orders = [next(iter(loader)).tolist() for _ in range(2)]
print(json.dumps(dict(first=first, again=again, other=other, forked=forked, after=after,
                      seen=seen, same=same, orders=orders)))
"""


def test_shared_draws_begin_anew_where_the_program_seeds(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(SEEDED)
    words = {"JOYMIGRATE_SEED": "0", "JOYMIGRATE_DRAWS": "1", "PYTHONPATH": str(START)}
    made = subprocess.run(
        [sys.executable, "p.py"],
        cwd=tmp_path,
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(made.stdout)
    assert found["first"] == found["again"]
    assert found["first"] != found["other"]
    assert found["forked"] == found["after"] == found["first"][1]
    assert len(found["seen"]) == 2  # forward, and once more for the gradients
    assert found["seen"][0] == found["seen"][1]
    assert found["same"][0] == found["same"][1]
    assert found["orders"][0] != found["orders"][1]


COMPILED = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
print(torch.compile(layer, backend="eager", fullgraph=True)(torch.ones(2, 4)).shape)
"""


@pytest.mark.slow
def test_a_compiled_program_runs_with_shared_draws(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(COMPILED)
    path = os.pathsep.join((str(START), str(START.parents[3])))
    words = {"JOYMIGRATE_DRAWS": "1", "PYTHONPATH": path}
    env = {**os.environ, **words}
    made = subprocess.run(
        [sys.executable, "p.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert "(2, 4)" in made.stdout or "[2, 4]" in made.stdout

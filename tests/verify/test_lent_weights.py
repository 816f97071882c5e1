"""Weights that are cast for one call at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from joymigrate.verify.cast_weights import Lender, LentWeights, WeightSource, weights_in
from joymigrate.verify.cloning import clone_module
from joymigrate.verify.isolated_pass import IsolatedPass
from joymigrate.verify.module_replay import Key, ModuleReplay, cotangent


class Mixed(nn.Module):
    """Tied, listed, shared, recurrent and parametrised weights, and some that a parent uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(10, 8), nn.LSTM(8, 8)
        self.attention, self.norm = nn.MultiheadAttention(8, 2), nn.LayerNorm(8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight
        self.gains = nn.ParameterList([torch.ones(8)])
        self.held = [self.norm.bias]
        self.unused = nn.Parameter(torch.ones(2))
        self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(self.table(ids))
        x = self.norm(self.attention(x, x, x)[0] + self.held[0]) * self.gains[0]
        x = nn.functional.linear(x, self.inner.weight, self.inner.bias)
        made: torch.Tensor = self.head(x.to(next(self.parameters()).dtype))
        return made


def test_a_copy_computes_what_a_whole_copy_does_and_shares_nothing() -> None:
    torch.manual_seed(0)
    model, ids = Mixed(), torch.randint(0, 10, (5, 2))
    lender = Lender(torch.float64, "cpu")
    lent, whole = lender.clone(model), clone_module(model, torch.float64, "cpu")
    with lender.call() as weights:
        made = lent(ids)
        assert made.dtype is torch.float64
        assert torch.equal(made, whole(ids))
        asked = {name: w for name, w in weights_in(lent, weights) if w is not None}
        gradients = torch.autograd.grad(made.sum(), list(asked.values()), allow_unused=True)
    expected = dict(whole.named_parameters())
    whole(ids).sum().backward()
    for name, gradient in zip(asked, gradients, strict=True):
        there: Any = expected[name].grad
        assert gradient is there or torch.equal(gradient, there), name
    assert set(expected) == set(asked)
    assert all(p.grad is None and p.dtype is torch.float32 for p in model.parameters())


def test_a_weight_that_something_else_holds_is_cast_at_once() -> None:
    lent = Lender(torch.float64, "cpu").clone(Mixed())
    kinds = {
        f"{path}.{name}": type(value)
        for path, member in lent.named_modules()
        for name, value in getattr(member._parameters, "held", member._parameters).items()
        if value is not None
    }
    eager = {name for name, kind in kinds.items() if kind is not WeightSource}
    assert eager == {"norm.bias", *(n for n in kinds if n.startswith("lstm."))}


def test_scripts_are_copied_whole() -> None:
    with pytest.warns(DeprecationWarning, match="script"):
        model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    lent = Lender(torch.float64, "cpu").clone(model)
    assert not any(isinstance(m.__dict__.get("_parameters"), LentWeights) for m in lent.modules())
    assert lent(torch.ones(1, 2, dtype=torch.float64)).dtype is torch.float64


class Clipping(nn.Module):
    """Writes its own weight as it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-1, 1)
        return x * self.weight


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_the_program_does_not_see_what_a_copy_writes(dtype: torch.dtype | None) -> None:
    model, lender = Clipping(), Lender(dtype)
    copied = lender.clone(model)
    with lender.call():
        assert copied(torch.ones(2, dtype=dtype)).tolist() == [1.0, 1.0]
    assert model.weight.tolist() == [3.0, 3.0]


def hold_replays(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleReplay | None], None]:
    """Send the calls of modules to the replay that is held, as a recorder does."""
    held: list[ModuleReplay] = []
    real = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return held[-1].call(module, args, kwargs, real) if held else real(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", call)

    def hold(replay: ModuleReplay | None) -> None:
        held[:] = [replay] if replay is not None else []

    return hold


def test_a_pass_holds_the_weights_of_one_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
    alive: set[int] = set()
    most = 0
    lend = Lender.lend

    def counted(self: Lender, source: WeightSource) -> nn.Parameter:
        nonlocal most
        weight = lend(self, source)
        if id(weight) not in alive:
            alive.add(id(weight))
            weakref.finalize(weight, alive.discard, id(weight))
        most = max(most, len(alive))
        return weight

    monkeypatch.setattr(Lender, "lend", counted)
    found: list[Key] = []
    isolated = IsolatedPass(model, "", (torch.randn(2, 16),), {}, hold_replays(monkeypatch))
    isolated.run(lambda value: found.append(value.key), torch.float64)
    gradients = [key for key in found if key[2] == "grad" and key[3].startswith("param.")]
    assert len(gradients) == 16
    assert most == 2
    assert not alive


def test_a_table_with_sparse_gradients_is_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[Any, Any] = {}
    model = nn.Embedding(6, 2, sparse=True)
    isolated = IsolatedPass(model, "", (torch.tensor([1, 1, 4]),), {}, hold_replays(monkeypatch))
    isolated.run(lambda value: found.update({value.key: value.tensor}), torch.float64)
    gradient = found["", 0, "grad", "param.weight"]
    assert gradient.layout is torch.strided
    assert gradient.abs().sum(1).ne(0).tolist() == [False, True, False, False, True, False]


class HandsOn(nn.Module):
    """Returns its input and its child's output as they are, beside what it computes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.inner(x)
        kept = self.inner(x)
        return h * 2, h, kept, x


def test_what_is_handed_on_as_it_is_gets_its_gradient_without_a_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[Any, Any] = {}
    asked: list[int] = []
    grad = torch.autograd.grad

    def count(ends: Any, *rest: Any, **options: Any) -> Any:
        asked.append(len(ends))
        return grad(ends, *rest, **options)

    monkeypatch.setattr(torch.autograd, "grad", count)

    x = torch.randn(2, 3)
    isolated = IsolatedPass(HandsOn(), "", (x,), {}, hold_replays(monkeypatch))
    isolated.run(lambda value: found.update({value.key: value.tensor}), torch.float64)
    assert set(asked) == {1}  # of each call of the child, and what the module computes itself

    def sign(end: str) -> torch.Tensor:
        return cotangent(f"#0.{end}", x.double())

    for leaf, expected in (
        ("child.inner#0.", 2 * sign("out.0") + sign("out.1")),
        ("child.inner#1.", sign("out.2")),
        ("in.0", sign("in.inner#0.0") + sign("in.inner#1.0") + sign("out.3")),
    ):
        assert torch.equal(found["", 0, "grad", leaf], expected), leaf

"""Tensors that a recording writes as they come, and the distance that is measured between two."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.verify import tensor_store
from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.isolated_pass import IsolatedPass, content_of, make_reference
from joymigrate.verify.measure import relative_error
from joymigrate.verify.module_replay import another_of
from joymigrate.verify.tensor_store import TensorStore


@pytest.fixture
def writer(tmp_path: Path) -> RankWriter:
    return RankWriter(tmp_path / "rank-0", {})


def test_little_of_what_is_kept_stays_in_memory(
    writer: RankWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_store, "FILE_BYTES", 4000)
    store = TensorStore("forced", lambda: writer)
    tensors = [torch.full((300,), float(n)) for n in range(20)]  # 1200 bytes each
    for tensor in (*tensors, *tensors):
        store.add(content_of(tensor), tensor)
        assert store.waiting_bytes < 4000
    store.write()
    assert len(store) == 20
    assert store.files == 5
    assert not store.waiting
    assert all(torch.equal(store[content_of(t)], t) for t in tensors)
    assert sorted(writer.files) == sorted(p.name for p in writer.folder.iterdir())


def test_what_is_taken_back_leaves_no_file(
    writer: RankWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_store, "FILE_BYTES", 100)
    store = TensorStore("forced", lambda: writer)
    store.add("first", torch.zeros(30))
    before = store.files
    store.add("second", torch.ones(30))
    store.add("third", torch.ones(3))
    store.back_to(before)
    assert list(store) == ["first"]
    assert list(writer.files) == ["forced-0.safetensors"]
    assert [p.name for p in writer.folder.iterdir()] == ["forced-0.safetensors"]


class OnlyFloat32(torch.nn.Module):
    """Runs in no other type, and says so after its first part has run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if y.dtype is torch.float64:
            raise RuntimeError("no kernel for Double")
        made: torch.Tensor = self.second(y)
        return made


def test_a_type_that_fails_leaves_none_of_its_values(
    writer: RankWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_store, "FILE_BYTES", 100)
    store = TensorStore("forced", lambda: writer)
    real, held_by = torch.nn.Module.__call__, []

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if held_by and held_by[-1] is not None:
            return held_by[-1].call(module, args, kwargs, real)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", call)
    isolated = IsolatedPass(OnlyFloat32(), "", (torch.randn(4, 8),), {}, held_by.append)
    reference = make_reference(isolated, 1 << 20, store)
    assert len(reference.notes) == 2
    assert reference.rows
    assert {row.content for row in reference.rows.values()} == set(store)


class Cache:
    """Empty before its first use, as caches of keys and values are."""

    def __init__(self) -> None:
        self.layers: list[torch.Tensor] = []
        self.facts: dict[str, int] = {}


class Caching(torch.nn.Linear):
    """Appends what it computed to the cache that it is given."""

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:  # type: ignore[override]
        made = super().forward(x)
        cache.layers.append(made)
        cache.facts["seen"] = len(cache.layers)
        cache.last = made  # type: ignore[attr-defined]
        return torch.cat(cache.layers)


def test_a_cache_that_is_empty_stays_the_programs(writer: RankWriter) -> None:
    cache = Cache()
    layers = cache.layers
    isolated = IsolatedPass(Caching(3, 3), "", (torch.ones(2, 3), cache), {}, lambda replay: None)
    reference = make_reference(isolated, 1 << 20, TensorStore("forced", lambda: writer))
    assert not reference.notes
    assert vars(cache) == {"layers": [], "facts": {}}
    assert cache.layers is layers


def test_gradients_reach_the_leaf_of_a_value_that_is_written_in_place() -> None:
    leaf = torch.ones(3, requires_grad=True)
    given = another_of(leaf)
    given.mul_(2)
    given.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2, 2]


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from(
    [0.0, -0.0, math.nan, math.inf, -math.inf, 2e38, -3.4e38, 1e38]
)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6))
def test_a_distance_is_that_of_the_values_finite_in_both(rows: list[tuple[float, float]]) -> None:
    pairs = np.array(rows, np.float32).astype(np.float64)
    pairs[pairs > 1e38], pairs[pairs < -1e38] = np.inf, -np.inf
    odd = ~np.isfinite(pairs).all(axis=1)
    alone = any(not (a == g or (np.isnan(a) and np.isnan(g))) for a, g in pairs[odd])
    a, g = pairs[~odd].T
    least = math.sqrt(len(a)) * 2.0**-60
    wanted = np.linalg.norm(a - g) / max(np.linalg.norm(g), least) if len(a) else 0.0
    found = relative_error(
        *(torch.tensor(side, dtype=torch.float32) for side in zip(*rows, strict=True))
    )
    assert found == (math.inf if alone else pytest.approx(wanted))

"""A tf.data pipeline feeds a torch trainer in one process; no batch is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from joymigrate.errors import JoyError

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow", reason="the extra tf is not installed")
from joymigrate.run.tensorflow import bridge  # noqa: E402


def clicks(rows: int = 64_000, batch: int = 64) -> Any:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(rows, 8)).astype("f4")
    y = (x[:, :2].sum(1) > 0).astype("f4")
    whole = tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).shuffle(1000, seed=1)
    return whole.batch(batch, drop_remainder=True).prefetch(2)


def test_a_thousand_steps_read_tensorflows_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: list[int] = []
    original = bridge.share_memory

    def watched(tensor: Any) -> Any:
        mine = original(tensor)
        data = np.asarray(memoryview(tensor)).__array_interface__["data"]
        theirs.append(data[0])
        assert mine.data_ptr() == theirs[-1]
        return mine

    monkeypatch.setattr(bridge, "share_memory", watched)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for batch in bridge.TorchBatches(clicks()):
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(batch["x"])[:, 0], batch["y"]
        )
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert len(losses) == 1000
    assert len(theirs) == 2000
    assert np.mean(losses[-50:]) < 0.2 < np.mean(losses[:5])


def test_values_are_those_of_the_pipeline_after_it_went_on() -> None:
    kept = list(bridge.TorchBatches(clicks(640)))
    for mine, other in zip(kept, clicks(640), strict=True):
        np.testing.assert_array_equal(mine["x"].numpy(), other["x"].numpy())


def test_a_run_goes_on_where_it_stood() -> None:
    first = bridge.TorchBatches(clicks(640))
    stream = iter(first)
    for _ in range(4):
        next(stream)
    second = bridge.TorchBatches(clicks(640))
    second.load_state_dict(first.state_dict())
    rest = list(second)
    assert len(rest) == 6
    np.testing.assert_array_equal(rest[0]["x"].numpy(), next(stream)["x"].numpy())


def test_structures_and_types_come_over() -> None:
    ragged = tf.ragged.constant([[1, 2], [], [3]])
    element = (
        tf.constant([True, False]),
        {"t": tf.constant([b"a", b"b"]), "h": tf.constant([1.5], tf.bfloat16)},
        ragged,
        tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]]),
    )
    flags, inner, (values, splits), sparse = bridge.as_torch(element)
    assert flags.tolist() == [True, False]
    assert inner["t"].tolist() == [b"a", b"b"]
    assert inner["h"].dtype == torch.bfloat16
    assert (values.tolist(), splits.tolist()) == ([1, 2, 3], [0, 2, 2, 3])
    assert sparse.to_dense().tolist() == [[0, 2], [3, 0]]


def test_an_iterator_is_no_pipeline() -> None:
    with pytest.raises(JoyError, match=r"no tf\.data\.Dataset"):
        bridge.TorchBatches(iter([1]))

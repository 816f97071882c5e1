"""Branches and loops of a SavedModel: every output equal, gradients through them, whole numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow", reason="the extra tf is not installed")
from joymigrate.cli._convert_savedmodel import result_lines  # noqa: E402
from joymigrate.run.tensorflow import convert, emit  # noqa: E402
from joymigrate.run.tensorflow.graph import BRANCHES, read_graph  # noqa: E402
from joymigrate.run.tensorflow.operators import control  # noqa: E402


class Controlled(tf.Module):  # type: ignore[misc]
    """A loop over weights, a loop inside of a loop, branches, a table inside of a branch."""

    def __init__(self) -> None:
        super().__init__()
        draws = tf.random.Generator.from_seed(1)
        self.kernel = tf.Variable(draws.normal([4, 4]), name="kernel")
        keys, values = tf.constant(["sh", "bj"]), tf.constant([1, 2], tf.int64)
        initial = tf.lookup.KeyValueTensorInitializer(keys, values)
        self.cities = tf.lookup.StaticHashTable(initial, default_value=0)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 4], tf.float32, name="x"),
            tf.TensorSpec([None], tf.string, name="town"),
        ]
    )
    def serve(self, x: Any, town: Any) -> Any:
        _, deep = tf.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, tf.tanh(tf.matmul(y, self.kernel))),
            [tf.constant(0), x],
        )

        def outer(i: Any, total: Any) -> Any:
            _, more = tf.while_loop(
                lambda j, t: j < i,
                lambda j, t: (j + 1, t + tf.reduce_sum(self.kernel)),
                [tf.constant(0), total],
            )
            return i + 1, more + x

        _, nested = tf.while_loop(lambda i, t: i < 4, outer, [tf.constant(0), tf.zeros_like(x)])
        warm = tf.reduce_sum(x) > 0
        return {
            "deep": deep,
            "nested": nested,
            "chosen": tf.cond(warm, lambda: deep * 2.0, lambda: tf.matmul(deep, self.kernel)),
            "known": tf.cond(
                warm, lambda: self.cities.lookup(town), lambda: tf.zeros([2], tf.int64)
            ),
            "mapped": tf.map_fn(lambda row: tf.reduce_sum(row) * tf.ones([2]), deep),
            "scanned": tf.scan(lambda a, row: a * 0.5 + row, x, initializer=tf.zeros([4])),
            "switched": tf.switch_case(
                tf.cast(tf.reduce_max(self.cities.lookup(town)), tf.int32),
                [lambda: deep, lambda: -deep, lambda: deep + 1.0],
            ),
            "sized": tf.cond(
                warm, lambda: tf.reduce_sum(x), lambda: tf.cast(tf.size(x), tf.float32)
            ),
            "steps": tf.while_loop(lambda n: n * n < tf.size(x), lambda n: [n + 1], [0])[0],
        }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("control") / "saved"
    model = Controlled()
    tf.saved_model.save(model, str(folder), signatures=model.serve)
    return folder


@pytest.mark.dear
@pytest.mark.parametrize("sign", [1, -1])
def test_every_branch_and_loop_gives_what_the_original_gives(
    saved: Path, tmp_path: Path, sign: int
) -> None:
    x = sign * np.abs(np.random.default_rng(0).normal(size=(2, 4))).astype(np.float32)
    np.savez(tmp_path / "batch.npz", x=x, town=np.array([b"bj", b"gz"]))
    made = convert.convert(saved, tmp_path / "out", inputs=tmp_path / "batch.npz")
    assert made.first is None
    assert made.passed
    assert set(made.outputs) == {
        "deep", "nested", "chosen", "known", "mapped", "scanned", "switched", "sized", "steps",
    }  # fmt: skip
    told = made.document("saved")
    assert len([name for name in told["not_run"] if name.endswith(("_then", "_else"))]) == 3
    assert len([name for name in told["not_run"] if "_branch_" in name]) == 2
    assert "not reached by this batch" in "".join(result_lines(made, saved, tmp_path / "out"))
    kinds = {one.removeprefix("Stateless") for one in made.document("saved")["operators"]}
    assert {"While", "If", "Case"} <= kinds


def test_what_any_branch_takes_to_the_device_is_not_on_the_host(saved: Path) -> None:
    graph = read_graph(saved, "serving_default")
    writer = emit.LineWriter(graph, {})
    for node in graph.nodes:
        writer.place(node)
    branches = [node for node in graph.nodes if node.op in BRANCHES]
    mixed = [
        node for node in branches
        if len({writer.stays(ref) for body in node.bodies for ref in body.results}) == 2
    ]  # fmt: skip
    assert mixed
    assert not [node.name for node in mixed if node.name in writer.host]


def test_gradients_go_through_loops_and_branches(saved: Path, tmp_path: Path) -> None:
    convert.convert(saved, tmp_path / "looped")
    spec = importlib.util.spec_from_file_location("looped", tmp_path / "looped" / "__init__.py",
        submodule_search_locations=[str(tmp_path / "looped")])  # fmt: skip
    assert spec is not None
    sys.modules["looped"] = importlib.util.module_from_spec(spec)
    try:
        module = importlib.import_module("looped.model").load()
    finally:
        for name in [one for one in sys.modules if one.split(".")[0] == "looped"]:
            del sys.modules[name]
    x = torch.linspace(0.1, 0.8, 8, dtype=torch.float32).view(2, 4)
    got = module(x=x, town=np.array([b"bj", b"gz"], dtype=object))["chosen"].sum()
    (slope,) = torch.autograd.grad(got, module.kernel)
    kernel = module.kernel.detach().clone().requires_grad_()
    y = x
    for _ in range(3):
        y = torch.tanh(y @ kernel)
    (want,) = torch.autograd.grad((2 * y).sum(), kernel)
    assert torch.allclose(slope, want, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_recurrent_layers_of_keras(tmp_path: Path, kind: str) -> None:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    given = keras.Input((7, 5))
    hidden = getattr(keras.layers, kind)(6, return_sequences=True)(given)
    hidden = keras.layers.Bidirectional(getattr(keras.layers, kind)(3))(hidden)
    model = keras.Model(given, keras.layers.Dense(1)(hidden))
    model.export(str(tmp_path / "saved"), verbose=False)
    made = convert.convert(tmp_path / "saved", tmp_path / "out")
    assert made.first is None
    assert made.passed


def test_a_list_of_tensors_reads_zeros_where_nothing_was_set() -> None:
    held = control.reserve([-1], 3, element_dtype="float32")
    held = control.set_item(held, 1, torch.ones(2))
    assert control.stack(held, [-1]).tolist() == [[0, 0], [1, 1], [0, 0]]
    assert control.get_item(held, 2, [2]).tolist() == [0, 0]
    assert control.length(held) == 3
    none = control.empty([2], -1, element_dtype="int64")
    assert control.stack(none, [2]).shape == (0, 2)
    more = control.push_back(none, torch.tensor([4, 5]))
    assert control.pop_back(more, [2])[1].tolist() == [4, 5]
    lists = control.push_back(control.empty([-1], 0, element_dtype="variant"), more)
    assert control.pop_back(lists, [-1])[1] is more
    assert none.items == ()
    assert control.set_item(none, 1, torch.tensor([1, 2])).items[0] is None


def test_a_condition_is_a_bool_a_number_or_a_text() -> None:
    said = [True, torch.tensor(0.5), np.array([b"x"], object), torch.ones(3)]
    assert all(control.truth(one) for one in said)
    said = [False, torch.tensor(0), np.array([b""], object), torch.ones(0)]
    assert not any(control.truth(one) for one in said)
    branches: list[Any] = [min, max]
    assert [control.choose(n, branches) for n in (-1, 0, 1, 2)] == [max, min, max, max]

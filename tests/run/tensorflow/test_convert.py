"""`convert savedmodel`: what comes out computes the same, alone, and errors name everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.cli._main import run as main
from joymigrate.errors import JoyError

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow", reason="the extra tf is not installed")
from joymigrate.run.tensorflow import convert, emit, operators  # noqa: E402
from joymigrate.run.tensorflow.records import write_records  # noqa: E402


class WideDeep(tf.Module):  # type: ignore[misc]
    """Texts by table and by hash, a list of ids, a number, a fixed statistic."""

    def __init__(self) -> None:
        super().__init__()
        draws = tf.random.Generator.from_seed(1)
        keys, values = tf.constant(["sh", "bj", "gz"]), tf.constant([1, 2, 3], tf.int64)
        initial = tf.lookup.KeyValueTensorInitializer(keys, values)
        self.cities = tf.lookup.StaticHashTable(initial, default_value=0)
        self.city = tf.Variable(draws.normal([4, 3]), name="city")
        self.hashed = tf.Variable(draws.normal([20, 3]), name="hashed")
        self.items = tf.Variable(draws.normal([50, 3]), name="items")
        self.kernel = tf.Variable(draws.normal([10, 1]), name="kernel")
        self.moving = tf.Variable(draws.uniform([1]), trainable=False, name="moving_mean")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="town"),
            tf.TensorSpec([None, None], tf.int64, name="history"),
            tf.TensorSpec([None, 1], tf.float32, name="price"),
        ]
    )
    def serve(self, town: Any, history: Any, price: Any) -> Any:
        known = tf.gather(self.city, self.cities.lookup(town))
        any_town = tf.gather(self.hashed, tf.strings.to_hash_bucket_fast(town, 20))
        mask = tf.cast(history > 0, tf.float32)[..., None]
        rows = tf.gather(self.items, history) * mask
        pooled = tf.reduce_sum(rows, 1) / tf.maximum(tf.reduce_sum(mask, 1), 1.0)
        x = tf.concat([known, any_town, pooled, price - self.moving], 1)
        return {"score": tf.sigmoid(tf.matmul(x, self.kernel))[:, 0]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("wide") / "saved"
    model = WideDeep()
    tf.saved_model.save(model, str(folder), signatures=model.serve)
    return folder


def test_every_tensor_is_equal_and_the_folder_stands_alone(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "torch_model"
    batch = {
        "town": np.array([b"bj", b"gz", b"unheard"]),
        "history": np.array([[1, 2, 49], [0, 0, 0], [7, 0, 0]]),
        "price": np.array([0.5, 2, -1], np.float32),
    }
    np.savez(tmp_path / "batch.npz", **batch)
    said = ["convert", "savedmodel", str(saved), "-o", str(out)]
    assert main([*said, "--inputs", str(tmp_path / "batch.npz")]) == 0
    assert "tensors are equal within 1e-05 on one batch of 3 rows" in capsys.readouterr().err
    report = json.loads((out / "conversion.json").read_text())
    assert report["passed"]
    assert report["compared"] > 15
    assert report["parameters"] == 3 * (4 + 20 + 50) + 10
    expected = tf.saved_model.load(str(saved)).signatures["serving_default"](
        town=tf.constant(batch["town"]),
        history=tf.constant(batch["history"]),
        price=tf.constant(batch["price"][:, None]),
    )["score"]
    program = f"""
import sys; sys.path.insert(0, {str(out)!r})
import torch
from model import load
from tensorflow_operators import texts
model = load()
score = model(town=texts.texts(['bj', 'gz', 'unheard']),
              history=torch.tensor([[1, 2, 49], [0, 0, 0], [7, 0, 0]]),
              price=torch.tensor([[.5], [2], [-1]]))['score']
score.sum().backward()
names = sorted(name for name, _ in model.named_parameters())
assert all(one.grad is not None for one in model.parameters())
assert 'joymigrate' not in sys.modules and 'tensorflow' not in sys.modules
print(names, score.tolist())
"""
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names, _, scores = done.stdout.strip().partition("] ")
    assert names == "['city', 'hashed', 'items', 'kernel'"
    np.testing.assert_allclose(json.loads(scores), expected.numpy(), atol=1e-6)


def test_drawn_inputs_stay_inside_of_tables(saved: Path, tmp_path: Path) -> None:
    result = convert.convert(saved, tmp_path / "out", seed=3)
    assert result.passed
    assert not result.guessed  # the history's numbers are bounded by its table
    assert result.rows == 64


def test_a_wrong_operator_is_named_and_what_came_before_passes(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = convert.copy_operators

    def break_one(folder: Path) -> None:
        copied(folder)
        path = folder / "texts.py"
        text = path.read_text()
        assert "np.uint64(num_buckets)" in text
        path.write_text(text.replace("np.uint64(num_buckets)", "np.uint64(num_buckets - 1)"))

    monkeypatch.setattr(convert, "copy_operators", break_one)
    assert main(["convert", "savedmodel", str(saved), "-o", str(tmp_path / "out")]) == 1
    assert "(StringToHashBucketFast): values differ" in capsys.readouterr().err
    report = json.loads((tmp_path / "out/conversion.json").read_text())
    assert report["first"]["op"] == "StringToHashBucketFast"
    assert not report["passed"]


def test_a_model_that_counts_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """Its graph without the edges that only order it would be equal to itself."""

    class Counting(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen = tf.Variable(0.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def serve(self, x: Any) -> Any:
            self.seen.assign_add(1.0)
            return {"y": x + self.seen}

    model = Counting()
    tf.saved_model.save(model, str(tmp_path / "counting"), signatures=model.serve)
    with pytest.raises(JoyError, match="another 'y' when it is asked again"):
        convert.convert(tmp_path / "counting", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_all_operators_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    class Odd(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([3, 3], tf.float32, name="x")])
        def serve(self, x: Any) -> Any:
            return {"y": tf.linalg.det(x) + tf.reduce_sum(tf.linalg.inv(x) @ tf.linalg.inv(x + 1))}

    model = Odd()
    tf.saved_model.save(model, str(tmp_path / "odd"), signatures=model.serve)
    with pytest.raises(JoyError) as error:
        convert.convert(tmp_path / "odd", tmp_path / "out")
    assert "2 operators can't be converted" in str(error.value)
    assert "MatrixDeterminant (1x" in str(error.value)
    assert "MatrixInverse (2x" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_serialised_examples_come_as_records(tmp_path: Path) -> None:
    class Parsed(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(tf.random.Generator.from_seed(2).normal([30, 4]), name="t")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def serve(self, examples: Any) -> Any:
            wanted = {
                "ids": tf.io.VarLenFeature(tf.int64),
                "d": tf.io.FixedLenFeature([2], tf.float32, default_value=[1.0, 2.0]),
                "r": tf.io.RaggedFeature(tf.int64),
            }
            parsed = tf.io.parse_example(examples, wanted)
            ids, _ = tf.sparse.fill_empty_rows(parsed["ids"], tf.constant(0, tf.int64))
            rows = tf.nn.embedding_lookup_sparse(self.table, ids, None, combiner="mean")
            dense = parsed["r"].to_tensor(-1)
            return {"a": rows, "b": parsed["d"], "c": tf.reduce_sum(dense, 1)}

    model = Parsed()
    tf.saved_model.save(model, str(tmp_path / "saved"), signatures=model.serve)
    made = [
        {"ids": [1, 2, 29], "d": [0.5, 0.0], "r": [1, 2]},
        {"ids": [], "r": []},
        {"ids": [5], "d": [3.0, 0.0]},
    ]
    from joymigrate.run.tensorflow.operators.example import write_example

    write_records(tmp_path / "rows.tfrecord", map(write_example, made))
    result = convert.convert(
        tmp_path / "saved", tmp_path / "out", inputs=tmp_path / "rows.tfrecord"
    )
    assert result.passed, result.first
    assert result.rows == 3
    assert convert.convert(tmp_path / "saved", tmp_path / "out").passed  # drawn examples


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"signature": "servin_default"}, "serving_default"),
        ({"inputs": {"town": np.array([b"x"])}}, "inputs are missing: history, price"),
    ],
)
def test_mistakes_are_one_clear_error(
    saved: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    if "inputs" in changes:
        np.savez(tmp_path / "in.npz", **changes["inputs"])
        changes = {"inputs": tmp_path / "in.npz"}
    with pytest.raises(JoyError) as error:
        convert.convert(saved, tmp_path / "out", **changes)
    assert said in str(error.value)


def test_a_folder_without_a_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match=r"no saved_model\.pb"):
        convert.convert(tmp_path, tmp_path / "out")
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff nonsense")
    with pytest.raises(JoyError, match=r"not a SavedModel|no graph"):
        convert.convert(tmp_path, tmp_path / "out")


def test_every_operator_has_a_name_in_generated_code() -> None:
    paths = [emit.path_of(known.function) for known in operators.OPERATORS.values()]
    assert all(path.count(".") == 1 for path in paths)
    assert max(Counter(paths).values()) <= 4  # aliases of one operator


@pytest.mark.parametrize(("text", "equal"), [(b"none", True), (b"nine", False)])
def test_texts_of_one_length_compare_as_texts(text: bytes, equal: bool) -> None:
    theirs = np.array([b"none"])  # as TensorFlow gives a constant: of one length
    found = convert.compare_values("a:0", "Reshape", theirs, np.array([text], dtype=object))
    assert (found.difference == 0.0) == equal

"""Makes SavedModels of public recommendation models, with random weights and a batch of inputs.

    python benchmarks/tensorflow_models_make.py --repos DIR -o DIR

Runs by itself in an environment with tensorflow 2.15 (the last one with estimators), pandas and
scikit-learn. DIR of --repos holds checkouts, each at the commit named in SOURCES.
`benchmarks/tensorflow_models.py` converts what comes out.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import types
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

SOURCES = {
    "din": ("DIN", "zhougr1993/DeepInterestNetwork@9765f96202f849e59ff260c8b46931a0ddf01d77"),
    "deepctr_din": ("DeepCTR", "shenweichen/DeepCTR@1b5fe40e158d1ee6af8b1d9df217a5ed5aea9136"),
    "deepctr_dien": ("DeepCTR", "shenweichen/DeepCTR@1b5fe40e158d1ee6af8b1d9df217a5ed5aea9136"),
    "deepctr_deepfm": ("DeepCTR", "shenweichen/DeepCTR@1b5fe40e158d1ee6af8b1d9df217a5ed5aea9136"),
    "dlrm": ("recommenders", "tensorflow/recommenders@cf1dafa988f223ed5f30b68cb9aed518484b3a1d"),
    "wide_deep": ("models", "tensorflow/models@23341a239100ba7faa2fbf7d35779eb19156c6e3"),
}
ROWS = 64


def write_inputs(folder: Path, inputs: dict[str, np.ndarray]) -> None:
    """Inputs beside a SavedModel: texts as fixed-width bytes."""
    plain = {
        key: np.asarray(value).astype("S") if np.asarray(value).dtype == object else value
        for key, value in inputs.items()
    }
    np.savez(folder / "inputs.npz", **plain)


def make_din(repo: Path, out: Path) -> None:
    """DIN by its authors, a TF 1 program in Python 2; only its prints are taken out."""
    import tensorflow.compat.v1 as tf

    graph = tf.Graph()
    sys.path.insert(0, str(repo / "din"))
    old, sys.modules["tensorflow"] = sys.modules["tensorflow"], tf
    try:
        text = re.sub(r"(?m)^(\s*)print .*$", r"\1pass", (repo / "din/model.py").read_text())
        module = types.ModuleType("din_model")
        exec(compile(text, "din/model.py", "exec"), module.__dict__)
    finally:
        sys.modules["tensorflow"] = old
    draws = np.random.default_rng(0)
    items, cates = 500, 40
    with graph.as_default(), tf.Session() as session:
        tf.disable_eager_execution()
        model = module.Model(50, items, cates, draws.integers(0, cates, items), ROWS, 100)
        session.run(tf.global_variables_initializer())
        jitter(tf, session, draws)
        names = {"i": model.i, "j": model.j, "hist_i": model.hist_i, "sl": model.sl}
        tf.saved_model.simple_save(
            session, str(out), names, {"p_and_n": model.p_and_n, "logits_sub": model.logits_sub}
        )
    tf.enable_eager_execution()
    write_inputs(
        out,
        {
            "i": draws.integers(0, items, ROWS).astype(np.int32),
            "j": draws.integers(0, items, ROWS).astype(np.int32),
            "hist_i": draws.integers(0, items, (ROWS, 20)).astype(np.int32),
            "sl": draws.integers(1, 21, ROWS).astype(np.int32),
        },
    )


def jitter(tf: types.ModuleType, session: object, draws: np.random.Generator) -> None:
    """Weights as after some training: constants of the initialisation are moved as well."""
    for variable in tf.global_variables():
        if variable.dtype.base_dtype == tf.float32:
            value = session.run(variable)
            variable.load(np.abs(value + draws.normal(0, 0.05, value.shape)) * sign(value), session)


def sign(value: np.ndarray) -> np.ndarray:
    """-1 where a value is negative, 1 elsewhere: variances stay positive."""
    return np.where(value < 0, -1, 1)


def shake(model: object, draws: np.random.Generator) -> None:
    """`jitter` for a Keras model."""
    for variable in model.variables:
        if variable.dtype == "float32":
            value = variable.numpy()
            noise = np.abs(value + draws.normal(0, 0.05, value.shape).astype("f4"))
            variable.assign(noise * sign(value))


def make_deepctr_din(repo: Path, out: Path) -> None:
    """DIN of DeepCTR, from its example's columns."""
    make_sequence(repo, out, "DIN")


def make_sequence(repo: Path, out: Path, name: str) -> None:
    """A model of the DIN example."""
    sys.path[:0] = [str(repo), str(repo / "examples")]
    import tensorflow as tf
    from deepctr import models
    from run_din import get_xy_fd

    x, _, columns, behaviour = get_xy_fd()
    draws = np.random.default_rng(1)
    model = getattr(models, name)(columns, behaviour)
    shake(model, draws)
    inputs = {
        key: np.concatenate([value] * 5).astype("f4" if value.dtype.kind == "f" else "i4")
        for key, value in x.items()
    }
    model({key: tf.constant(value) for key, value in inputs.items()})
    tf.saved_model.save(model, str(out))
    write_inputs(out, inputs)


def make_deepctr_dien(repo: Path, out: Path) -> None:
    """DIEN of DeepCTR, whose recurrent layers are loops with branches. Run it alone (`--only`): it
    is a program of graphs, as its example says, and ends eager execution."""
    sys.path[:0] = [str(repo), str(repo / "examples")]
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.enable_control_flow_v2()
    import run_dien
    from deepctr import feature_column
    from tensorflow.python.ops import array_ops, control_flow_ops
    from tensorflow.python.util import nest

    array_ops.stack, array_ops.unstack = tf.stack, tf.unstack  # newer releases moved these
    control_flow_ops.while_loop, control_flow_ops.cond = tf.while_loop, tf.cond
    control_flow_ops.Assert = tf.Assert
    nest.is_sequence = nest.is_nested
    from deepctr.models import DIEN

    vars(run_dien).update(vars(feature_column))  # the example imports them when it is run
    x, _, columns, behaviour = run_dien.get_xy_fd()
    model = DIEN(columns, behaviour, dnn_hidden_units=[8, 4], gru_type="AUGRU")
    session = tf.keras.backend.get_session()
    session.run(tf.global_variables_initializer())
    jitter(tf, session, np.random.default_rng(5))
    names = dict(zip(model.input_names, model.inputs, strict=True))
    tf.saved_model.simple_save(session, str(out), names, {"click": model.outputs[0]})
    write_inputs(
        out,
        {
            key: np.concatenate([x[key]] * 5).astype(names[key].dtype.as_numpy_dtype)
            .reshape(-1, *names[key].shape[1:]) for key in names
        },
    )  # fmt: skip


def make_deepctr_deepfm(repo: Path, out: Path) -> None:
    """DeepFM of DeepCTR, with hashed texts, a vocabulary file and a pooled list of genres."""
    sys.path.insert(0, str(repo))
    import pandas as pd
    import tensorflow as tf
    from deepctr.feature_column import SparseFeat, VarLenSparseFeat, get_feature_names
    from deepctr.models import DeepFM

    data = pd.read_csv(repo / "examples/movielens_sample.txt")
    names = ["movie_id", "user_id", "gender", "age", "occupation", "zip"]
    data[names] = data[names].astype(str)
    lists = [each.split("|") for each in data["genres"]]
    longest = max(map(len, lists))
    genres = np.array([each + ["0"] * (longest - len(each)) for each in lists], dtype=object)
    vocabulary = str(repo / "examples/movielens_age_vocabulary.csv")
    columns = [
        SparseFeat(
            name,
            data[name].nunique() * 5,
            embedding_dim=4,
            use_hash=True,
            vocabulary_path=vocabulary if name == "age" else None,
            dtype="string",
        )
        for name in names
    ]
    listed = SparseFeat(
        "genres", vocabulary_size=100, embedding_dim=4, use_hash=True, dtype="string"
    )
    columns += [VarLenSparseFeat(listed, maxlen=longest, combiner="mean")]
    model = DeepFM(columns, columns, task="regression")
    shake(model, np.random.default_rng(2))
    inputs = {
        name: data[name].to_numpy(dtype=object)[:ROWS] for name in get_feature_names(columns)[:-1]
    }
    inputs["genres"] = genres[:ROWS]
    tf.saved_model.save(model, str(out))
    write_inputs(out, inputs)


def make_dlrm(repo: Path, out: Path) -> None:
    """DLRM as TensorFlow Recommenders ranks: bottom MLP, dot interaction, top MLP."""
    sys.path.insert(0, str(repo))
    import tensorflow as tf
    import tensorflow_recommenders as tfrs

    draws = np.random.default_rng(3)
    sizes = [1000, 200, 50, 30000]

    class Embeddings(tf.keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [tf.keras.layers.Embedding(size, 16) for size in sizes]

        def call(self, features: dict) -> dict:
            return {
                key: table(features[key]) for key, table in zip(features, self.tables, strict=True)
            }

    model = tfrs.experimental.models.Ranking(embedding_layer=Embeddings())
    inputs = {f"c{at}": draws.integers(0, size, ROWS) for at, size in enumerate(sizes)}
    dense = draws.normal(size=(ROWS, 13)).astype("f4")

    @tf.function(
        input_signature=[
            {key: tf.TensorSpec([None], tf.int64, name=key) for key in inputs}
            | {"dense": tf.TensorSpec([None, 13], tf.float32, name="dense")}
        ]
    )
    def serve(features: dict) -> dict:
        sparse = {key: features[key] for key in inputs}
        return {"score": model({"dense_features": features["dense"], "sparse_features": sparse})}

    serve(
        {**{key: tf.constant(value) for key, value in inputs.items()}, "dense": tf.constant(dense)}
    )
    shake(model, draws)
    tf.saved_model.save(model, str(out), signatures={"serving_default": serve})
    write_inputs(out, {**inputs, "dense": dense})


def make_wide_deep(repo: Path, out: Path) -> None:
    """The census estimator of the model garden: crossed, hashed, bucketed, vocabulary columns."""
    import tensorflow as tf

    text = (repo / "official/r1/wide_deep/census_dataset.py").read_text()
    text = re.sub(r"(?m)^(from absl.*|from six.*|from official.*)$", "", text)
    module = types.ModuleType("census_dataset")
    exec(compile(text, "census_dataset.py", "exec"), module.__dict__)
    wide, deep = module.build_model_columns()
    draws = np.random.default_rng(4)
    texts = {
        "education": ["Bachelors", "HS-grad", "11th", "Masters", "unheard of"],
        "marital_status": ["Divorced", "Never-married", "Widowed"],
        "relationship": ["Husband", "Wife", "Own-child", ""],
        "workclass": ["Private", "State-gov", "?"],
        "occupation": ["Tech-support", "Craft-repair", "Exec-managerial", "Armed-Forces", "?"],
    }
    numbers = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
    rows = {
        key: draws.choice(np.array(values, dtype=object), ROWS) for key, values in texts.items()
    }
    rows |= {key: draws.integers(0, 90, ROWS).astype("f4") for key in numbers}
    estimator = tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide, dnn_feature_columns=deep, dnn_hidden_units=[100, 75, 50, 25]
    )

    def feed() -> tf.data.Dataset:
        labels = draws.integers(0, 2, ROWS)
        return tf.data.Dataset.from_tensor_slices((rows, labels)).batch(16).repeat(4)

    estimator.train(feed)
    spec = tf.feature_column.make_parse_example_spec(wide + deep)
    receive = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    made = estimator.export_saved_model(str(out) + "_export", receive)
    Path(made.decode()).rename(out)
    examples = []
    for at in range(ROWS):
        features = {
            key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[rows[key][at].encode()]))
            for key in texts
            if not (at % 7 == 0 and key == "workclass")  # a feature that is not there
        } | {
            key: tf.train.Feature(float_list=tf.train.FloatList(value=[rows[key][at]]))
            for key in numbers
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        examples.append(example.SerializeToString())
    with tf.io.TFRecordWriter(str(out / "inputs.tfrecord")) as file:
        for each in examples:
            file.write(each)


def main() -> None:
    """The models named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repos", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SOURCES))
    given = parser.parse_args()
    for name in given.only:
        folder, source = SOURCES[name]
        globals()[f"make_{name}"](given.repos / folder, given.output / name)
        print(f"{name}: {source}")


if __name__ == "__main__":
    main()

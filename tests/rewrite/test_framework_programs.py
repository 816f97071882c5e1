"""TensorFlow programs: one finding a file, with the road that fits its generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rewrite.projects import look


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("import tensorflow as tf\nm = tf.keras.Sequential()\n", "2.6.5"),
        ("from tensorflow import keras\n", "2.6.5"),
        ("import tensorflow.compat.v1 as tf\nx = tf.zeros([2])\n", "1.15"),
        ("import tensorflow as tf\nx = tf.placeholder(tf.float32)\n", "1.15"),
        ("import tensorflow as tf\nwith tf.Session() as s:\n    pass\n", "1.15"),
    ],
)
def test_the_road_fits_the_generation(tmp_path: Path, text: str, release: str) -> None:
    (tmp_path / "a.py").write_text(text)
    found = [one for one in look(tmp_path).findings if one.rule == "JM240"]
    assert len(found) == 1
    assert f"TensorFlow {release} alone" in str(found[0].reason)
    assert "shorter" in str(found[0].reason)
    assert "convert savedmodel" in str(found[0].reason)


def test_files_of_torch_and_one_s_own_package_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text("import torch\nimport tensorflow as tf\n")
    assert not [o for o in look(tmp_path).findings if o.rule == "JM240"]
    (tmp_path / "logs.py").write_text("import tensorflow_io\n")
    assert not [o for o in look(tmp_path).findings if o.rule == "JM240"]


def test_a_package_that_finds_the_chip_by_itself_needs_nothing_and_its_parts_may(
    tmp_path: Path,
) -> None:
    text = (
        "import deepspeed\nfrom deepspeed import zero\nimport deepspeed.inference.v2\nimport mii\n"
    )
    (tmp_path / "a.py").write_text(text)
    assert [(one.rule, one.line) for one in look(tmp_path).findings] == [("JM204", 3), ("JM204", 4)]


def test_the_names_of_a_distributed_job_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import tensorflow as tf\n"
        "import horovod.tensorflow as hvd\n"
        "import tensorflow_recommenders_addons as tfra\n"
        "import sparse_operation_kit as sok\n"
        "tf.config.set_visible_devices([], 'GPU')\n"
        "s = tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.NcclAllReduce())\n"
        "c = tf.distribute.experimental.CollectiveCommunication.NCCL\n"
        "f = tf.function(lambda x: x, jit_compile=True)\n"
        "e = tf.estimator.DNNClassifier([], [])\n"
    )
    found = [(one.rule, one.line) for one in look(tmp_path).findings]
    assert sorted(found, key=lambda pair: pair[1]) == [
        *[("JM240", 1), ("JM204", 2), ("JM242", 3), ("JM204", 4), ("JM241", 5)],
        *[("JM242", 6), ("JM242", 6), ("JM242", 7), ("JM243", 8), ("JM242", 9)],
    ]


def test_branches_and_loops_of_a_graph_are_named_with_what_the_adapter_takes(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text(
        "import tensorflow.compat.v1 as tf\n"
        "y = tf.cond(p, f, g)\n"
        "o, s = tf.nn.dynamic_rnn(cell, x)\n"
        "n = tf.while_loop(c, b, [i])\n"
        "z = tf.raw_ops.Switch(data=x, pred=p)\n"
    )
    found = [one for one in look(tmp_path).findings if one.rule == "JM244"]
    assert [one.line for one in found] == [2, 3, 4, 5]
    assert "enable_control_flow_v2" in str(found[0].reason)

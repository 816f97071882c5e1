"""Our operators against TensorFlow's own, on inputs with the corners that each one has."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from joymigrate.run.tensorflow.operators import OPERATORS  # noqa: E402
from joymigrate.run.tensorflow.operators.fingerprint import fingerprint64  # noqa: E402

# Values of tf.fingerprint (farmhash64): each branch of the hash by length.
FINGERPRINTS = [
    (b"", 0x9AE16A3B2F90404F),
    (b"a", 0xB3454265B6DF75E3),
    (b"hello", 0xB48BE5A931380CE8),
    (b"12345678", 0x2F99D2664A0FB6EA),
    (b"a text of seventeen..", 0xD79FCAE56C7F2B74),
    (b"x" * 40, 0xEBF8E8AEAC993C94),
    (b"y" * 64, 0x3E0F00391283E8B8),
    (b"z" * 65, 0x732F393FA3E7DF35),
    (bytes(range(200)), 0x074C7FCC26D66FB3),
]


def test_fingerprints_are_those_that_tensorflow_keys_with() -> None:
    found = fingerprint64(np.array([text for text, _ in FINGERPRINTS], dtype=object))
    assert found.tolist() == [value for _, value in FINGERPRINTS]


def floats(*shape: int, seed: int = 0, low: float = -3) -> Any:
    return np.random.default_rng(seed).uniform(low, 3, shape).astype(np.float32)


def whole(*shape: int, top: int = 5, kind: str = "int64") -> Any:
    return np.random.default_rng(1).integers(0, top, shape).astype(kind)


A = np.array
I32 = np.int32
PLACES = A([[0, 0], [0, 2], [2, 1]], np.int64)
ROWS = (floats(6, 3), A([5, 0, 1, 3], I32), A([0, 0, 2, 3], I32))
HOLES = A(
    [[1, np.nan], [np.nan, 2], [0, np.nan], [np.nan, -np.inf], [3, -np.inf], [np.nan, 1]], "f4"
)
WORDS = A([b"a", b"bb", b"", b"a"], dtype=object)
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *[(op, [floats(3, 4), floats(4, seed=1)], {}) for op in ("AddV2", "Sub", "Mul", "RealDiv")],
    *[(op, [floats(3, 4), floats(4, seed=1)], {}) for op in ("Maximum", "Minimum")],
    *[(op, [A([-7, 7, 5], I32), A([2, -2, 5], I32)], {}) for op in ("FloorDiv", "FloorMod")],
    *[(op, [A([-7, 7, 5], I32), A([2, -2, 5], I32)], {}) for op in ("TruncateDiv", "TruncateMod")],
    *[
        (op, [A([-7, 6], I32), A([3, 5], I32)], {})
        for op in ("BitwiseXor", "BitwiseOr", "BitwiseAnd")
    ],
    ("Xlogy", [A([0, 2, 1], np.float32), A([0, 3, 0.5], np.float32)], {}),
    ("SquaredDifference", [floats(3, 4), floats(3, 1, seed=1)], {}),
    ("DivNoNan", [floats(4), A([0, 1, 0, 2], np.float32)], {}),
    ("Pow", [floats(4, low=0.1), floats(4)], {}),
    *[
        (op, [A([1, 2, 3.0], np.float32), A([1, 3, 2.0], np.float32)], {})
        for op in ("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual")
    ],
    ("Equal", [WORDS, A(b"a", dtype=object)], {}),
    *[
        (op, [floats(3, 4)], {})
        for op in (
            *("Abs", "Ceil", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Floor", "Neg", "Relu"),
            *("Relu6", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Square", "Tanh"),
        )
    ],
    ("Round", [A([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32)], {}),
    *[(op, [floats(5, low=0.1)], {}) for op in ("Log", "Log1p", "Rsqrt", "Sqrt", "Reciprocal")],
    ("LeakyRelu", [floats(5)], {"alpha": 0.3}),
    ("Cast", [A([-1.7, 1.7, 0.0], np.float32)], {"DstT": "int32"}),
    ("Cast", [A([-1.7, 1.7, 0.0], np.float32)], {"DstT": "bool"}),
    ("ClipByValue", [floats(5), A(-1, np.float32), A(1, np.float32)], {}),
    ("Select", [A([True, False, True]), floats(3, 4), floats(3, 4, seed=1)], {}),
    ("SelectV2", [A([[True], [False]]), floats(2, 3), A(0, np.float32)], {}),
    ("AddN", [[floats(3), floats(3, seed=1), floats(3, seed=2)]], {}),
    ("BiasAdd", [floats(2, 3), floats(3)], {}),
    ("MatMul", [floats(3, 2), floats(4, 3)], {"transpose_a": True, "transpose_b": True}),
    ("BatchMatMulV2", [floats(2, 3, 4), floats(5, 4)], {"adj_y": True}),
    ("Einsum", [[floats(2, 3, 4), floats(4, 5)]], {"equation": "bij,jk->bik"}),
    ("Softmax", [floats(3, 4)], {}),
    ("LogSoftmax", [floats(3, 4)], {}),
    ("L2Loss", [floats(3, 4)], {}),
    *[
        (op, [floats(2, 3, 4), A([0, -1], I32)], {"keep_dims": keep})
        for op in ("Sum", "Mean", "Max", "Min", "Prod")
        for keep in (True, False)
    ],
    ("Sum", [whole(3, 4, kind="int32"), A(1, I32)], {}),
    ("Sum", [floats(3, 4), A([], I32)], {}),
    ("All", [whole(3, 4) > 0, A(1, I32)], {}),
    ("Any", [whole(3, 4) > 3, A([0], I32)], {}),
    ("ArgMax", [A([[1, 3, 3], [2, 2, 1]], np.float32), A(1, I32)], {"output_type": "int64"}),
    ("ArgMin", [A([[1, 1, 3], [2, 2, 1]], np.float32), A(-1, I32)], {"output_type": "int32"}),
    ("Cumsum", [floats(2, 4), A(1, I32)], {"exclusive": True, "reverse": True}),
    ("TopKV2", [A([[1, 3, 3, 0]], np.float32), A(3, I32)], {}),
    ("MatrixBandPart", [floats(4, 5), A(1, np.int64), A(-1, np.int64)], {}),
    ("Shape", [floats(2, 3)], {"out_type": "int64"}),
    ("Size", [floats(2, 3)], {}),
    ("Reshape", [floats(2, 6), A([3, -1], I32)], {}),
    ("Squeeze", [floats(2, 1, 3, 1)], {"axis": [1]}),
    ("Squeeze", [floats(2, 1, 3, 1)], {}),
    ("ExpandDims", [floats(2, 3), A(-1, I32)], {}),
    ("Transpose", [floats(2, 3, 4), A([2, 0, 1], I32)], {}),
    ("Tile", [floats(2, 3), A([2, 1], I32)], {}),
    ("Tile", [WORDS, A([2], I32)], {}),
    ("BroadcastTo", [floats(3), A([2, 3], I32)], {}),
    ("Pack", [[floats(3), floats(3, seed=1)]], {"axis": 1}),
    ("Unpack", [floats(3, 2)], {"num": 2, "axis": 1}),
    ("ConcatV2", [[floats(2, 3), floats(2, 1)], A(-1, I32)], {}),
    ("ConcatV2", [[WORDS, WORDS], A(0, I32)], {}),
    ("Split", [A(1, I32), floats(2, 4)], {"num_split": 2}),
    ("SplitV", [floats(2, 6), A([1, -1, 2], I32), A(1, I32)], {"num_split": 3}),
    ("Fill", [A([2, 3], I32), A(4, np.float32)], {}),
    ("Range", [A(1, I32), A(9, I32), A(3, I32)], {}),
    (
        "StridedSlice",
        [floats(4, 5, 6), A([1, 0, 5], I32), A([4, 0, 0], I32), A([2, 1, -2], I32)],
        {"shrink_axis_mask": 2},
    ),
    (
        "StridedSlice",
        [floats(4, 5), A([0, 0, 1], I32), A([0, 0, 2], I32), A([1, 1, 1], I32)],
        {"ellipsis_mask": 1, "new_axis_mask": 2},
    ),
    (
        "StridedSlice",
        [floats(4, 5), A([3, 2], I32), A([-9, -1], I32), A([-1, 1], I32)],
        {"begin_mask": 1, "end_mask": 1},
    ),
    ("StridedSlice", [WORDS, A([1], I32), A([3], I32), A([1], I32)], {}),
    ("Slice", [floats(4, 5), A([1, 2], I32), A([2, -1], I32)], {}),
    ("GatherV2", [floats(6, 3), whole(2, 2), A(0, I32)], {}),
    ("GatherV2", [floats(2, 6, 3), whole(4), A(1, I32)], {}),
    ("GatherV2", [floats(2, 6, 3), whole(2, 4), A(1, I32)], {"batch_dims": 1}),
    ("GatherV2", [WORDS, A([3, 1], I32), A(0, I32)], {}),
    ("GatherNd", [floats(3, 4, 2), PLACES], {}),
    ("ScatterNd", [A([[1], [3], [1]], I32), floats(3, 2), A([5, 2], I32)], {}),
    ("TensorScatterUpdate", [floats(5, 2), A([[1], [3]], I32), floats(2, 2)], {}),
    ("OneHot", [A([0, -1, 7, 2]), A(3, I32), A(5, np.float32), A(-1, np.float32)], {"axis": -1}),
    ("OneHot", [A([0, 2]), A(3, I32), A(1, np.float32), A(0, np.float32)], {"axis": 0}),
    ("Where", [whole(3, 4) > 2], {}),
    ("Pad", [floats(2, 3), A([[1, 0], [0, 2]], I32)], {}),
    ("PadV2", [floats(2, 3), A([[1, 0], [0, 2]], I32), A(7, np.float32)], {}),
    ("ReverseV2", [floats(2, 3), A([1], I32)], {}),
    ("InvertPermutation", [A([2, 0, 1], I32)], {}),
    ("DynamicPartition", [floats(4, 2), A([1, 0, 1, 1], I32)], {"num_partitions": 2}),
    ("DynamicStitch", [[A([0, 2], I32), A([1], I32)], [floats(2, 3), floats(1, 3)]], {}),
    ("Unique", [A([4, 2, 4, 9, 2])], {"out_idx": "int64"}),
    ("Unique", [WORDS], {}),
    ("SegmentSum", [floats(4, 2), A([0, 0, 2, 3], I32)], {}),
    ("SegmentMean", [floats(4, 2), A([0, 0, 2, 3], I32)], {}),
    ("UnsortedSegmentSum", [floats(4, 2), A([2, -1, 0, 2], I32), A(3, I32)], {}),
    ("SegmentMax", [floats(4, 2), A([0, 0, 2, 3], I32)], {}),
    ("SegmentMax", [whole(4, 2), A([0, 0, 2, 3], I32)], {}),
    *[
        ("SegmentMax", [np.repeat(HOLES, wide, 1).astype(kind), A([0, 0, 0, 1, 1, 2], I32)], {})
        for wide in (1, 2, 4, 9)
        for kind in ("f2", "f4", "f8")
    ],
    ("SegmentMax", [np.repeat(HOLES, 6, 1).reshape(6, 3, 4), A([0, 0, 2, 2, 2, 3], I32)], {}),
    ("UnsortedSegmentMax", [HOLES, A([0, 0, 0, 1, 1, 2], I32), A(4, I32)], {}),
    ("UnsortedSegmentMax", [floats(4, 2), A([2, -1, 0, 2], I32), A(3, I32)], {}),
    ("UnsortedSegmentMax", [whole(2, 2), A([[1, 3], [1, 0]], I32), A(4, I32)], {}),
    *[(f"SparseSegment{kind}", [*ROWS], {}) for kind in ("Sum", "Mean", "SqrtN")],
    ("DenseBincount", [A([[0, 2, 2], [9, 1, 0]]), A(3), A([], np.float32)], {}),
    ("DenseBincount", [A([0, 2, 2]), A(4), A([1, 2, 3], np.float32)], {}),
    ("Bucketize", [A([-1, 0, 0.5, 1, 9], np.float32)], {"boundaries": [0.0, 1.0]}),
    ("SparseReshape", [PLACES, A([3, 4]), A([-1, 2])], {}),
    ("SparseReduceSum", [PLACES, A([7, 8, 9]), A([3, 4]), A([1], I32)], {"keep_dims": True}),
    ("SparseReduceSum", [PLACES, floats(3), A([3, 4]), A([], I32)], {}),
    ("SparseFillEmptyRows", [PLACES, A([7, 8, 9]), A([4, 3]), A(-1)], {}),
    ("SparseFillEmptyRows", [PLACES, WORDS[:3], A([4, 3]), A(b"none", dtype=object)], {}),
    ("SparseToDense", [PLACES, A([3, 4]), floats(3), A(0, np.float32)], {}),
    ("SparseToDense", [PLACES, A([3, 4]), WORDS[:3], A(b"", dtype=object)], {}),
    ("StringToHashBucketFast", [WORDS], {"num_buckets": 97}),
    ("StringToHashBucketStrong", [WORDS], {"num_buckets": 97, "key": [3, -5]}),
    (
        "StringToHashBucketStrong",
        [A([b"x" * n for n in range(20)], dtype=object)],
        {"num_buckets": 1 << 40, "key": [1 << 60, 2]},
    ),
    ("StringLength", [A([b"a", "\u00e9".encode(), b""], dtype=object)], {}),
    ("StringLength", [A([b"a", "\u00e9".encode(), b""], dtype=object)], {"unit": "UTF8_CHAR"}),
    (
        "StaticRegexReplace",
        [A([b"a1b22", b""], dtype=object)],
        {"pattern": "([a-z])(\\d+)", "rewrite": "\\2<\\0>", "replace_global": True},
    ),
    (
        "StaticRegexReplace",
        [A([b"a1b22"], dtype=object)],
        {"pattern": "\\d", "rewrite": "", "replace_global": False},
    ),
    ("AsString", [A([1, -20])], {}),
    ("AsString", [A([1.5, 0.1, 1e10], np.float32)], {}),
    ("AsString", [A([1.5, 0.126], np.float32)], {"precision": 2}),
    ("AsString", [A([True, False])], {}),
    ("StringToNumber", [A([b"1.5", b"-2"], dtype=object)], {"out_type": "float32"}),
    ("StringLower", [A([b"AbC", b""], dtype=object)], {}),
    ("StringStrip", [A([b" a ", b""], dtype=object)], {}),
    ("StringJoin", [[WORDS, A([b"x"] * 4, dtype=object)]], {"separator": "_X_"}),
    ("StringSplitV2", [A([b"a|b", b"", b"c"], dtype=object), A(b"|", dtype=object)], {}),
    ("StringSplitV2", [A([b" a  b ", b"c"], dtype=object), A(b"", dtype=object)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES, ids=lambda case: str(case)[:20])
def test_an_operator_computes_what_tensorflows_does(
    op: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    tf = pytest.importorskip("tensorflow", reason="the extra tf is not installed")
    from joymigrate.run.tensorflow.emit import keywords
    from joymigrate.run.tensorflow.graph import attributes_of

    with tf.Graph().as_default() as graph:
        tensors = [
            [tf.constant(one) for one in each] if isinstance(each, list) else tf.constant(each)
            for each in inputs
        ]
        names = list(inspect.signature(getattr(tf.raw_ops, op)).parameters)
        result = getattr(tf.raw_ops, op)(**dict(zip(names, tensors, strict=False)), **attributes)
        flat = [each for each in tf.nest.flatten(result) if isinstance(each, tf.Tensor)]
        node = next(each for each in graph.as_graph_def().node if each.op == op)
        with tf.compat.v1.Session() as session:
            expected = session.run(flat)
        operation = graph.get_operation_by_name(node.name)
        wanted = [session_order(operation, each) for each in flat]
    known = OPERATORS[op]
    given = [each for one in inputs for each in (one if isinstance(one, list) else [one])]
    slots = {slot % len(given) for slot in known.host}
    ours = [ready(value, slot in slots) for slot, value in enumerate(given)]
    said = attributes_of(node)
    chosen = {k: said[k] for k in keywords(known.function) if said.get(k) is not None}
    answer = known.function(*ours, **chosen)
    found = list(answer) if isinstance(answer, tuple) else [answer]
    for number, value in zip(wanted, expected, strict=True):
        mine = found[number]
        mine = mine.numpy() if isinstance(mine, torch.Tensor) else np.asarray(mine)
        assert mine.shape == value.shape
        assert mine.dtype == value.dtype
        if value.dtype == object or value.dtype.kind in "bi":
            assert mine.tolist() == value.tolist()
        else:
            np.testing.assert_allclose(mine, value, rtol=2e-6, atol=2e-6)  # another libm


def session_order(operation: Any, tensor: Any) -> int:
    """Which output of its operation a tensor is."""
    return next(at for at, each in enumerate(operation.outputs) if each is tensor)


def ready(value: Any, plain: bool) -> Any:
    """An input as a generated module gives it."""
    if plain:
        return value.tolist()
    return value if value.dtype == object else torch.from_numpy(np.asarray(value))


@pytest.mark.parametrize(
    ("pattern", "rewrite", "same"),
    [(r"[!\"\#\$%&'\(\)\*\+,\-\./:;<=>\?@\[\\\]\^_`\{\|\}\~]", "", True), ("<br />", " ", True),
     (r"(a+)b?c", r"\1", True), ("[[:punct:]]", "", False), ("a.b", "", False), ("a$", "", False),
     ("x*", "-", False), (r"\s+", " ", False), ("[^a]", "", False), ("é", "", False),
     ("a", "\\\\0", False)],
)  # fmt: skip
def test_patterns_that_python_reads_otherwise_than_re2_are_refused(
    pattern: str, rewrite: str, same: bool
) -> None:
    from joymigrate.run.tensorflow.operators.texts import is_shared

    assert is_shared(pattern, rewrite) is same

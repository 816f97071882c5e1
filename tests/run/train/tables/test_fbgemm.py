"""Operators of fbgemm in torch: the examples of its documentation, and what is refused."""

from __future__ import annotations

import pytest
import torch

from joymigrate.run.train.tables import KeyedJaggedTensor, fbgemm

EDGES = torch.tensor([0, 2, 2, 5])


def test_cumsums_keep_the_type() -> None:
    """Complete, inclusive and exclusive sums, also of nothing."""
    lengths = torch.tensor([2, 0, 3], dtype=torch.int32)
    for act, wanted in (
        (fbgemm.asynchronous_complete_cumsum, [0, 2, 2, 5]),
        (fbgemm.asynchronous_inclusive_cumsum, [2, 2, 5]),
        (fbgemm.asynchronous_exclusive_cumsum, [0, 2, 2]),
    ):
        assert act(lengths).tolist() == wanted
        assert act(lengths).dtype is torch.int32
    assert fbgemm.asynchronous_complete_cumsum(lengths[:0]).tolist() == [0]


def test_dense_forms_pad_cut_and_pass_gradients() -> None:
    """Shorter sequences get the padding, longer ones lose their end, and that has no gradient."""
    rows = torch.arange(10.0).view(5, 2).requires_grad_()
    dense = fbgemm.jagged_2d_to_dense(rows, EDGES, 2)
    assert dense.tolist() == [[[0, 1], [2, 3]], [[0, 0], [0, 0]], [[4, 5], [6, 7]]]
    dense.sum().backward()
    assert rows.grad is not None
    assert rows.grad.sum(1).tolist() == [2, 2, 2, 2, 0]
    numbers = fbgemm.jagged_1d_to_dense(torch.arange(5), EDGES, 3, -1)
    assert numbers.tolist() == [[0, 1, -1], [-1, -1, -1], [2, 3, 4]]
    assert torch.equal(fbgemm.jagged_to_padded_dense(rows, [EDGES], [2]), dense)
    with pytest.raises(ValueError, match="one jagged dimension"):
        fbgemm.jagged_to_padded_dense(rows, [EDGES, EDGES], [2, 2])


def test_ids_are_padded_as_ids() -> None:
    """Whole numbers stay whole numbers, as a model that masks by its ids needs them."""
    ids = KeyedJaggedTensor(["item"], torch.tensor([2**40, 3, 4]), lengths=torch.tensor([2, 1]))
    dense = ids["item"].to_padded_dense(desired_length=3)
    assert dense.tolist() == [[2**40, 3, 0], [4, 0, 0]]
    assert dense.dtype is torch.int64

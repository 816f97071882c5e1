"""What a grouped product leaves unwritten stays poison, and a list that is too long is refused."""

from __future__ import annotations

import pytest
import torch

from joymigrate.run.rehearse.refs.grouped_matmul import npu_grouped_matmul

X, WEIGHT = torch.ones(6, 4), torch.ones(3, 4, 2)


def product(*ends: int) -> torch.Tensor:
    (made,) = npu_grouped_matmul(
        [X], [WEIGHT], group_list=torch.tensor(ends), split_item=3, group_type=0, group_list_type=0
    )
    return made


def test_rows_of_no_group_are_poison() -> None:
    made = product(1, 2, 4)
    assert torch.equal(made[:4], torch.full((4, 2), 4.0))
    assert made[4:].isnan().all()
    assert not product(1, 2, 6).isnan().any()


def test_more_groups_than_experts_are_refused() -> None:
    with pytest.raises(RuntimeError, match="group list of 4 for 3 experts"):
        product(1, 2, 4, 6)

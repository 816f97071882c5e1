"""Copies lie in memory as the tensors that they stand for."""

from __future__ import annotations

import pytest
import torch

from joymigrate.verify import layout

BASE = torch.arange(120.0)
LIKES = {
    "contiguous": BASE[:24].view(4, 6),
    "transposed": BASE[:24].view(6, 4).t(),
    "with an offset": BASE[30:54].view(4, 6),
    "every second column": BASE[:48].view(4, 12)[:, ::2],
    "expanded": BASE[:6].expand(4, 6),
    "channels last": BASE.view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "empty": BASE[:0].view(0, 6),
}


@pytest.mark.parametrize("name", LIKES)
def test_a_copy_has_the_strides_and_shares_no_memory(name: str) -> None:
    like = LIKES[name]
    for made in (layout.copy_as(like), layout.lay(like.clone(), like, torch.float32, "cpu")):
        assert torch.equal(made, like)
        assert made.stride() == like.stride() or not like.numel()
        assert bool(made.storage_offset()) == bool(like.storage_offset()) or not like.numel()
        assert made.untyped_storage().data_ptr() != like.untyped_storage().data_ptr()


def test_other_values_are_laid_in_another_type() -> None:
    like, value = LIKES["transposed"], torch.randn(4, 6)
    made = layout.lay(value, like, torch.float64, "cpu")
    assert torch.equal(made, value.double())
    assert made.stride() == like.stride()


def test_values_that_differ_in_shared_memory_are_contiguous() -> None:
    value = torch.arange(24.0).view(4, 6)
    assert torch.equal(layout.lay(value, LIKES["expanded"], torch.float32, "cpu"), value)
    windows = BASE[:10].unfold(0, 4, 2)  # neighbours share two elements
    other = torch.randn(windows.shape)
    assert torch.equal(layout.lay(other, windows, torch.float32, "cpu"), other)
    same = layout.lay(windows.clone(), windows, torch.float32, "cpu")
    assert torch.equal(same, windows)
    assert same.stride() == windows.stride()


def test_the_memory_of_a_view_is_read_as_one_block() -> None:
    assert layout.memory_of(LIKES["every second column"]).numel() == 3 * 12 + 5 * 2 + 1
    assert layout.memory_of(LIKES["expanded"]).numel() == 6
